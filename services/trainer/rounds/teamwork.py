"""The processes of one attempt: the chief, which control has forked, and the workers that it forks itself."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from common.errors import InvalidInput
from services.trainer import determinism
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.learn.training import NotFiniteError
from services.trainer.rounds.assignment import Message, RoundAssignment, Shrunk
from services.trainer.shards.team import Team, use_devices
from services.trainer.shards.tf_config import ClusterSpec
from services.trainer.shards.workers import LocalWorkers, join_cluster

logger = logging.getLogger(__name__)
Help = Callable[[RoundAssignment, Team], None]


@contextmanager
def led_by_this(assignment: RoundAssignment, report: Callable[[Message], None], help_with: Help) -> Iterator[Team]:
    """Inside, TensorFlow is set up and all workers have found each other. Call it in a process with one thread, before
    TensorFlow's first operation.

    A worker that ends before its time ends this process too, with a word to control: it may be waiting for that worker
    in an operation that never returns. The round then goes on with one worker fewer.
    """
    if assignment.workers == 1:
        yield Team(devices=_set_up(assignment))
        return

    def work(rank: int, cluster: ClusterSpec) -> None:
        own = _of_worker(assignment, rank)
        team = Team(rank, own.workers, _set_up(own))
        join_cluster(cluster)
        try:
            help_with(own, team)
        except (InvalidInput, DefinitionFailedError, NotFiniteError) as error:
            logger.info("a worker waits for its chief to find the same", extra={"rank": rank, "error": str(error)})

    def give_up(reason: str) -> None:
        logger.warning("a round lost a worker", extra={"model": assignment.plan.model, "reason": reason})
        report(Shrunk(assignment.workers - 1, reason))
        os._exit(0)

    workers = LocalWorkers(assignment.workers, work)
    workers.watch(give_up)
    devices = _set_up(assignment)
    workers.connect()
    try:
        yield Team(0, assignment.workers, devices)
    finally:
        workers.release()


def _set_up(assignment: RoundAssignment) -> tuple[str, ...]:
    determinism.configure(intra_op_threads=assignment.intra_op_threads, inter_op_threads=assignment.inter_op_threads)
    return use_devices(assignment.devices)


def _of_worker(assignment: RoundAssignment, rank: int) -> RoundAssignment:
    """The same round, with a folder of its own."""
    work_dir = Path(assignment.work_dir) / f"worker-{rank}"
    work_dir.mkdir(exist_ok=True)
    return replace(assignment, work_dir=str(work_dir))
