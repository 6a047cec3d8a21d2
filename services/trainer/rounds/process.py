"""One round in a process of its own, from its assignment to its last word, whatever happens to it."""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

import tensorflow as tf

from common.errors import InvalidInput
from services.trainer.export.fresh_process import FreshProcess
from services.trainer.families.reasons import DefinitionFailedError, describe
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.steps import NotFiniteError
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Done, Failed, FailureKind, Rebuilt, Shrunk, Stopped
from services.trainer.rounds import judging, parameter_servers, rebuild_check, teamwork
from services.trainer.rounds.environment import environment_of
from services.trainer.rounds.evaluating import Evaluator
from services.trainer.rounds.inputs import log_of, registry_of
from services.trainer.rounds.one_round import Report, RoundWork, StopRequestedError, Surroundings
from services.trainer.rounds.publishing import Trained
from services.trainer.shards.team import Team, WorkerLostError

_WATCH_SECONDS = 2.0
"""A step that fails is heard of before the worker that was lost is seen to have ended; the watch ends this process with
that word (teamwork.py)."""


def run_round(assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool]) -> None:
    """As services/trainer/protocol/messages.py says: ends with Done, Failed or Stopped, or raises one of the six."""
    if assignment.rank:
        if assignment.is_asynchronous:
            parameter_servers.help_along(assignment, report)
        else:
            teamwork.help_along(assignment, report, _help)
        return
    fresh = FreshProcess.fork(trial_seconds=assignment.trial_seconds)  # first: nothing of TensorFlow runs yet
    evaluator = Evaluator.of(assignment)
    with (
        closing(fresh),
        closing(evaluator),
        parameter_servers.led_by_this(assignment) as coordinator,
        teamwork.led_by_this(assignment, report, _help) as alone,
    ):
        team = replace(alone, coordinator=coordinator)
        registry = registry_of(assignment, traceparent=assignment.traceparent)
        with closing(registry), closing(log_of(assignment, registry)) as log:
            if assignment.candidate:
                report(judging.figures_of(assignment, registry=registry, log=log))
                return
            around = Surroundings(registry, log, fresh, team, evaluator)
            doing = rebuild if assignment.rebuild_of else conduct
            report(doing(assignment, report, stop_requested, around))


def _help(assignment: RoundAssignment, team: Team, report: Report) -> None:
    """What a worker does: it trains as the chief does, over the same range, and keeps the result to itself."""
    registry = registry_of(assignment)
    log = log_of(assignment, registry)  # stays open: until the round ends, others may ask for parts of it
    with closing(registry):
        RoundWork(assignment, report, lambda: False, Surroundings(registry, log, None, team)).trained()


def conduct(
    assignment: RoundAssignment,
    report: Report,
    stop_requested: Callable[[], bool],
    around: Surroundings,
) -> Done | Failed | Stopped | Shrunk:
    """The round; reports progress and returns the last word."""
    work = RoundWork(assignment, report, stop_requested, around)
    try:
        return work.run()
    except StopRequestedError:
        return Stopped(work.place.examples_done)
    except WorkerLostError as error:
        time.sleep(_WATCH_SECONDS)
        return Shrunk(assignment.processes if assignment.addresses else 1, str(error))
    except NotFiniteError as error:
        return Failed(str(error), FailureKind.NUMERIC, error.told)
    except DefinitionFailedError as error:
        return Failed(str(error), FailureKind.DEFINITION)
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        return Failed(f"out of memory: {describe(error)}", FailureKind.MEMORY)


def rebuild(
    assignment: RoundAssignment,
    report: Report,
    stop_requested: Callable[[], bool],
    around: Surroundings,
) -> Rebuilt | Stopped:
    """Trains the version again from its lineage and compares; see rebuild_check.py. Changes nothing anywhere."""
    work = RoundWork(assignment, report, stop_requested, around)
    here = environment_of(assignment)

    made: list[Trained] = []

    def train_again() -> tuple[Checkpoint, int]:
        try:
            made.append(work.trained())
        except (NotFiniteError, DefinitionFailedError) as error:
            raise InvalidInput(f"training it again failed: {error}") from error
        return made[0].final, work.examples_trained

    def measured() -> Mapping[str, float]:
        return work.measured(made[0]).metrics["candidate"]

    try:
        return rebuild_check.compare(
            assignment, train_again, measured, here=here, registry=around.registry, log=around.log
        )
    except StopRequestedError:
        return Stopped(work.place.examples_done)
