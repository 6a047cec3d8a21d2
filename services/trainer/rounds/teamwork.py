"""The processes of one attempt: the chief, which control has forked, and the workers that it forks itself or that
other trainers bring.

All of them run the round's own code over the same range and hold the same variables; each computes its shards, and
TensorFlow's collectives bring the parts of every step to all. The chief alone saves resume points, judges, exports and
registers. Workers are forked before TensorFlow has run an operation, die with the chief, and end when it says so.

A worker that is lost (it died, or never came up) ends the chief's attempt: a collective whose peer is gone returns
after seconds, or never. The round then goes on from its last resume point with fewer workers, and to the same bits.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from common.errors import InvalidInput
from common.eventlog.base import EventLog
from services.trainer import determinism
from services.trainer.data.divided_log import DividedLog
from services.trainer.families.port import Arrays
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn.checkpoint import weights_digest
from services.trainer.learn.steps import NotFiniteError
from services.trainer.parameters.peers import forked, how_ended
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Helped, Report, Shrunk
from services.trainer.shards.cluster_spec import ClusterSpec, on_this_machine
from services.trainer.shards.shared_memory import SharedMemory
from services.trainer.shards.team import Team, WorkerLostError, introduce, use_devices

START_SECONDS = 60.0
"""How long all workers may take to find each other."""
_LOOK_SECONDS = 0.1
_LOST = 70
LOST_SECONDS = 5.0
"""How long a worker that finds a step unfinished waits before it ends: the chief says first who was lost."""
logger = logging.getLogger(__name__)
Help = Callable[[RoundAssignment, Team, Report], None]


class LocalWorkers:
    """The workers of one round on this machine, seen from the first of them, the one that makes this.

    Make it in a process with one thread.

    Args:
        cluster: all processes of the round, also those elsewhere; the rank is this one's.
        count: processes on this machine, this one among them.
        work: what another one does, given its rank; its return ends the process.
    """

    def __init__(self, cluster: ClusterSpec, count: int, work: Callable[[int, ClusterSpec], None]) -> None:
        self.cluster = cluster
        self._pids = dict[int, int]()
        self._are_released = threading.Event()
        self._are_connected = threading.Event()
        for rank in range(cluster.rank + 1, cluster.rank + count):
            self._pids[forked(partial(_live, work, rank, cluster.of_rank(rank)))] = rank

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """From a thread of its own: calls `on_lost` with a sentence, once, when a worker ends before its time."""
        threading.Thread(target=self._watch, args=(on_lost,), daemon=True, name="workers").start()

    def connect(self) -> None:
        """Waits until the cluster stands; a worker that never comes up is told by `on_lost`."""
        join_cluster(self.cluster)
        self._are_connected.set()

    def release(self) -> None:
        """Ends the workers: nothing is exchanged any more."""
        self._are_released.set()
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _watch(self, on_lost: Callable[[str], None]) -> None:
        deadline = time.monotonic() + START_SECONDS
        count = len(self.cluster.addresses)
        while not self._are_released.wait(_LOOK_SECONDS):
            for pid, rank in self._pids.items():
                ended = _ended(pid)
                if ended and not self._are_released.is_set():
                    on_lost(f"worker {rank} of {count} ended: {ended}")
                    return
            if not self._are_connected.is_set() and time.monotonic() > deadline:
                on_lost(f"the {count} workers of the round did not find each other within {START_SECONDS:g} s")
                return


def join_cluster(cluster: ClusterSpec) -> None:
    """Brings TensorFlow's cluster up in this process; returns when all have come. Before the first operation.

    The strategy only starts the cluster: variables stay ordinary ones, and no step runs in its scope.
    """
    os.environ["TF_CONFIG"] = cluster.to_json()
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _live(work: Callable[[int, ClusterSpec], None], rank: int, cluster: ClusterSpec) -> None:
    """Of a worker, until the chief ends it: one that leaves would look like one that died."""
    try:
        work(rank, cluster)
    except WorkerLostError:
        time.sleep(LOST_SECONDS)
        os._exit(_LOST)
    threading.Event().wait()


def _ended(pid: int) -> str:
    """How a child has ended, in words; empty while it lives."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return "it is gone"
    return how_ended(status) if found else ""


@contextmanager
def led_by_this(assignment: RoundAssignment, report: Report, help_with: Help) -> Iterator[Team]:
    """Inside, TensorFlow is set up and all workers have found each other. Call it in a process with one thread, before
    TensorFlow's first operation.

    A worker that ends before its time ends this process too, with a word to control: it may be waiting for that worker
    in an operation that never returns. The round then goes on with one worker fewer.
    """
    if assignment.workers == 1:
        yield Team(devices=_set_up(assignment), reduction=assignment.device_reduction)
        return
    workers, team = _joined(assignment, report, help_with)
    try:
        yield team
    finally:
        workers.release()
        if team.memory:
            team.memory.close()


def divided(log: EventLog, team: Team, assignment: RoundAssignment) -> DividedLog | None:
    """The log as this member reads it with the others, who all call this at once; None where it is alone. Raises
    WorkerLostError: not all have come."""
    if team.workers == 1:
        return None
    host = "127.0.0.1"
    if assignment.addresses:
        host = assignment.addresses[team.rank].rpartition(":")[0]
    found = DividedLog(log, rank=team.rank, members=team.workers, host=host)
    found.meet(introduce(team, found.introduction))
    return found


def check_begins_alike(team: Team, captured: Callable[[], Arrays]) -> None:
    """All members call it; `captured` gives everything that steps start from: steps bring gradients together, never
    weights. Raises WorkerLostError: one has something else, or not all have come."""
    if team.workers == 1:
        return
    found = introduce(team, weights_digest(captured()))
    others = [str(rank) for rank, theirs in enumerate(found) if theirs != found[0]]
    if others:
        raise WorkerLostError(
            f"worker {', '.join(others)} of {team.workers} does not begin with the weights of worker 0: something that "
            f"the model is made with differs from process to process"
        )


def warnings_of(course: Mapping[str, Any]) -> dict[str, str]:
    """Whether several processes or a single one was faster, where the round compared them."""
    compared = course.get("workers_compared", {})
    if not compared or compared["step_seconds"] <= compared["alone_step_seconds"]:
        return {}
    together, alone = (f"{1000 * compared[name]:.3g} ms" for name in ("step_seconds", "alone_step_seconds"))
    return {"workers": f"{compared['workers']} processes took {together} for a step, one alone {alone}"}


def help_along(assignment: RoundAssignment, report: Report, help_with: Help) -> None:
    """The life of a member's first process; does not return, control ends it with the round."""
    workers, team = _joined(assignment, report, help_with)
    try:
        _helped(assignment, team, report, help_with)
    except WorkerLostError as error:
        threading.Event().wait(LOST_SECONDS)  # the chief looks meanwhile which one it was
        report(Shrunk(assignment.processes, str(error)))
        return
    finally:
        workers.release()
    report(Helped())
    threading.Event().wait()  # who leaves would look like one that died


def _joined(assignment: RoundAssignment, report: Report, help_with: Help) -> tuple[LocalWorkers, Team]:
    cluster = ClusterSpec(assignment.addresses, assignment.rank)
    if not assignment.addresses:
        cluster = on_this_machine(assignment.workers)
    memory = SharedMemory(assignment.workers) if assignment.shares_memory else None

    def work(rank: int, cluster: ClusterSpec) -> None:
        own = _of_worker(assignment, rank)
        team = Team(rank, own.workers, _set_up(own), own.straggler_seconds, own.device_reduction, memory=memory,
                    is_compared=own.compares_workers and not own.addresses)  # fmt: skip
        join_cluster(cluster)
        _helped(own, team, lambda message: None, help_with)

    def give_up(reason: str) -> None:
        logger.warning("a round lost a worker", extra={"model": assignment.plan.model, "reason": reason})
        report(Shrunk(max(1, assignment.processes - 1), reason))
        os._exit(0)

    workers = LocalWorkers(cluster, assignment.processes, work)
    workers.watch(give_up)
    devices = _set_up(assignment)
    workers.connect()
    return workers, Team(
        assignment.rank, assignment.workers, devices, assignment.straggler_seconds, assignment.device_reduction,
        memory=memory, is_compared=assignment.compares_workers and not assignment.addresses,
    )  # fmt: skip


def _helped(assignment: RoundAssignment, team: Team, report: Report, help_with: Help) -> None:
    try:
        help_with(assignment, team, report)
    except (InvalidInput, DefinitionFailedError, NotFiniteError) as error:
        logger.info("a worker waits for its chief to find the same", extra={"rank": team.rank, "error": str(error)})


def _set_up(assignment: RoundAssignment) -> tuple[str, ...]:
    determinism.configure(intra_op_threads=assignment.intra_op_threads, inter_op_threads=assignment.inter_op_threads)
    return use_devices(assignment.devices)


def _of_worker(assignment: RoundAssignment, rank: int) -> RoundAssignment:
    """The same round in the worker's folder."""
    work_dir = Path(assignment.work_dir) / f"worker-{rank}"
    work_dir.mkdir(exist_ok=True)
    return replace(assignment, work_dir=str(work_dir), process_dir="")
