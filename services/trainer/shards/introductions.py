"""What the members of a team tell each other before the first step: texts, gathered by TensorFlow."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from services.trainer.shards.team import Team, WorkerLostError

_GROUP_KEY, _INSTANCE_KEY = 7_002, 1
_SIZE_BYTES = 512
_TIMEOUT_SECONDS = 120.0


def introduce(team: Team, text: str) -> Sequence[str]:
    """Every member's text, in order of rank; all members call it alike, with at most 512 bytes.

    Raises:
        WorkerLostError: not all have come.
    """
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
