"""Who computes a round's shards: how many processes, which one this is, and on which devices of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from common.errors import Unavailable
from services.trainer.parameters.coordinator import Coordinator
from services.trainer.shards.exchange import Collectives, Exchange, Shared
from services.trainer.shards.shared_memory import SharedMemory

_GROUP_KEY, _INSTANCE_KEY = 7_002, 1
_SIZE_BYTES = 512
_TIMEOUT_SECONDS = 120.0


class WorkerLostError(Exception):
    """A step could not be finished by all workers: one is gone, or stopped where the others did not."""


@dataclass(frozen=True)
class Team:
    """Attempts of one round may have different teams: what comes out does not depend on it.

    Attributes:
        rank: of this process; the first is the chief.
        devices: TensorFlow's names; empty: wherever it puts an operation.
        reduction: where the parts of several devices are added up (gradients.py).
        straggler_seconds: a worker that has nothing to say for so long is lost; its death is noticed earlier.
        coordinator: of an asynchronous round: others take its steps.
        memory: by which the workers' rows travel, where all of them are on this machine; else TensorFlow's collective
            operations move them.
        is_compared: before its first step the chief measures whether it would be faster alone.
    """

    rank: int = 0
    workers: int = 1
    devices: tuple[str, ...] = ()
    straggler_seconds: float = 120.0
    reduction: str = "tree"
    coordinator: Coordinator | None = None
    memory: SharedMemory | None = None
    is_compared: bool = False

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def exchange(self, shards: int) -> Exchange:
        if self.workers == 1:
            return Exchange(shards)
        transport: Shared | Collectives
        if self.memory:
            transport = Shared(self.memory, rank=self.rank, timeout_seconds=self.straggler_seconds)
        else:
            transport = Collectives(workers=self.workers, timeout_seconds=self.straggler_seconds)
        return Exchange(shards, transport, rank=self.rank, workers=self.workers)


ALONE = Team()


def use_devices(count: int) -> tuple[str, ...]:
    """The names of so many devices: GPUs where there are any, else parts of the CPU. Before the first operation. Raises
    Unavailable: this machine has GPUs, but fewer."""
    if count == 1:
        return ()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if len(gpus) < count:
            raise Unavailable(f"TRAINER_DEVICES is {count}, and this machine has {len(gpus)} GPUs")
        return tuple(f"GPU:{index}" for index in range(count))
    whole = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(whole, [tf.config.LogicalDeviceConfiguration()] * count)
    return tuple(f"CPU:{index}" for index in range(count))


def introduce(team: Team, text: str) -> Sequence[str]:
    """What each member tells the others before the first step, in order of rank; all call it alike, with at most 512
    bytes. Raises WorkerLostError: not all have come."""
    own = np.frombuffer(text.encode().ljust(_SIZE_BYTES, b"\0"), np.int32)
    try:
        found = _gathered(tf.constant(own), tf.constant(team.workers))
    except tf.errors.OpError as error:
        reason = str(error.message).partition("\n")[0]
        raise WorkerLostError(f"the {team.workers} workers of the round did not all begin: {reason}") from error
    return [row.tobytes().rstrip(b"\0").decode() for row in found.numpy()]


@tf.function(autograph=False)
def _gathered(row: tf.Tensor, workers: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.CollectiveGatherV2(
        input=row[tf.newaxis],
        group_size=workers,
        group_key=_GROUP_KEY,
        instance_key=_INSTANCE_KEY,
        ordering_token=[],
        communication_hint="ring",
        timeout_seconds=_TIMEOUT_SECONDS,
    )
