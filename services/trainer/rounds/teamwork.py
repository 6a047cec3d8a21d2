"""The processes of one attempt: the chief, which control has forked, and the workers that it forks itself or that
other trainers bring."""

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.errors import InvalidInput
from common.eventlog.base import EventLog
from services.trainer import determinism
from services.trainer.data.divided_log import DividedLog
from services.trainer.families.port import Arrays
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn.steps import NotFiniteError
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Helped, Report, Shrunk
from services.trainer.shards.cluster_spec import ClusterSpec, on_this_machine
from services.trainer.shards.shared_memory import SharedMemory
from services.trainer.shards.team import Team, WorkerLostError, introduce, use_devices
from services.trainer.shards.workers import LOST_SECONDS, LocalWorkers, join_cluster

logger = logging.getLogger(__name__)
Help = Callable[[RoundAssignment, Team, Report], None]


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
    digest = hashlib.sha256()
    for path, array in sorted(captured().items()):
        digest.update(f"{path} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    found = introduce(team, digest.hexdigest())
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
