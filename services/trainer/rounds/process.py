"""One round in a process of its own, from its assignment to its last word, whatever happens to it."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import tensorflow as tf

from common.errors import DataLoss, InvalidInput
from common.registry.catalog import Version
from services.trainer.export.fresh_process import FreshProcess
from services.trainer.families.reasons import DefinitionFailedError, describe
from services.trainer.learn import checkpoint
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.steps import NotFiniteError
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Done, Failed, FailureKind, Rebuilt, Report, RunRound, Shrunk, Stopped
from services.trainer.rounds import judging, parameter_servers, rebuild_check, teamwork
from services.trainer.rounds.environment import environment_of, misses_gpu
from services.trainer.rounds.evaluating import BY_CHIEF, Evaluator
from services.trainer.rounds.inputs import log_of, version_dir
from services.trainer.rounds.kept import Kept, NotAsFreshError
from services.trainer.rounds.one_round import RoundWork, StopRequestedError, Surroundings
from services.trainer.rounds.outside import registry_of
from services.trainer.rounds.own_export import Scorer
from services.trainer.rounds.publishing import Trained
from services.trainer.shards.team import Team, WorkerLostError

logger = logging.getLogger(__name__)
_WATCH_SECONDS = 2.0
"""A step that fails is heard of before the worker that was lost is seen to have ended; the watch ends this process with
that word (teamwork.py)."""


def run_round(assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool]) -> RunRound | None:
    """As services/trainer/protocol/messages.py says: ends with Done, Failed or Stopped, or raises one of the six."""
    if assignment.rank:
        if assignment.is_asynchronous:
            parameter_servers.help_along(assignment, report)
        else:
            teamwork.help_along(assignment, report, _help)
        return None
    if assignment.candidate_is_own:
        return _scoring(Scorer())(assignment, report, stop_requested)
    if assignment.candidate:
        _judge(assignment, report)
        return None
    with ExitStack() as means:
        trial_seconds = assignment.trial_seconds
        fresh = means.enter_context(
            closing(FreshProcess.fork(trial_seconds=trial_seconds))  # first: nothing of TensorFlow runs yet
        )
        evaluator = means.enter_context(closing(Evaluator.of(assignment)))
        coordinator = means.enter_context(parameter_servers.led_by_this(assignment))
        alone = means.enter_context(teamwork.led_by_this(assignment, report, _help))
        if misses_gpu():
            logger.warning("the machine has a GPU that CUDA cannot use in this round, which takes the CPU")
        kept = Kept(_leaves_because(assignment, evaluator))
        process = _Process(fresh, evaluator, replace(alone, coordinator=coordinator), kept)
        process.run(assignment, report, stop_requested)
        return process.following(means.pop_all()) if process.stays else None


def _judge(assignment: RoundAssignment, report: Report) -> None:
    registry = registry_of(assignment)
    with closing(registry), closing(log_of(assignment, registry)) as log:
        report(judging.figures_of(assignment, registry=registry, log=log))


def _scoring(scorer: Scorer) -> RunRound:
    """What scores a version, and those of the model that come after it."""

    def run(assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool]) -> RunRound | None:
        registry = registry_of(assignment)
        with closing(registry), closing(log_of(assignment, registry)) as log:
            report(scorer.figures_of(assignment, registry=registry, log=log))
        return run if assignment.may_stay and not _keeps_gpus() else None

    return run


@dataclass
class _Process:
    """What a round's process has from its first round on."""

    fresh: FreshProcess
    evaluator: Evaluator
    team: Team
    kept: Kept
    stays: bool = False

    def run(self, assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool]) -> None:
        """One round; the process stays where it has ended with a version and everything can be used again."""
        self.stays = False
        registry = registry_of(assignment)
        with closing(registry), closing(log_of(assignment, registry)) as log:
            around = Surroundings(registry, log, self.fresh, self.team, self.evaluator)
            if assignment.rebuild_of:
                report(rebuild(assignment, report, stop_requested, around))
                return
            word = conduct(assignment, report, stop_requested, replace(around, kept=self.kept))
            self.stays = isinstance(word, Done) and not self.kept.leaves_because
        report(word)

    def following(self, means: ExitStack) -> RunRound:
        """What runs the next round; `means` end with the last round."""

        def run(assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool]) -> RunRound | None:
            with ExitStack() as ending:
                ending.push(means)
                self.run(assignment, report, stop_requested)
                if self.stays:
                    ending.pop_all()
                    return run
            return None

        return run


def _leaves_because(assignment: RoundAssignment, evaluator: Evaluator) -> str:
    """Why the process takes one round only; empty where it may take more."""
    return next(
        (
            reason
            for reason, is_so in {
                "TRAINER_WARM_PROCESSES is 0": not assignment.may_stay,
                "several trainers or processes compute its rounds": assignment.workers > 1
                or bool(assignment.addresses),
                "parameter servers compute its rounds": assignment.is_asynchronous,
                "its batches are cut into shards": assignment.shards > 1
                or assignment.training.get("local_steps", 1) > 1,
                "another process evaluates on the way": evaluator is not BY_CHIEF,
                "it has taken all memory of its GPUs (TF_FORCE_GPU_ALLOW_GROWTH is not true)": _keeps_gpus(),
            }.items()
            if is_so
        ),
        "",
    )


def _keeps_gpus() -> bool:
    return bool(tf.config.list_physical_devices("GPU")) and os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") != "true"


def _help(assignment: RoundAssignment, team: Team, report: Report) -> None:
    """What a worker does: it trains as the chief does, over the same range, and keeps the result to itself."""
    registry = registry_of(assignment)
    log = log_of(assignment, registry)  # stays open: until the round ends, others may ask for parts of it
    with closing(registry):
        RoundWork(assignment, report, lambda: False, Surroundings(registry, log, None, team)).trained()


def conduct(
    assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool], around: Surroundings
) -> Done | Failed | Stopped | Shrunk:
    """The round; reports progress and returns the last word."""
    work = RoundWork(assignment, report, stop_requested, around)
    try:
        return work.run()
    except NotAsFreshError as error:
        assert around.kept, "only a kept program is not fresh"
        around.kept.drop(str(error))
        return conduct(assignment, report, stop_requested, around)
    except StopRequestedError:
        return Stopped(work.examples_done)
    except WorkerLostError as error:
        time.sleep(_WATCH_SECONDS)
        return Shrunk(assignment.processes if assignment.addresses else 1, str(error))
    except NotFiniteError as error:
        return Failed(str(error), FailureKind.NUMERIC, error.facts)
    except DefinitionFailedError as error:
        return Failed(str(error), FailureKind.DEFINITION)
    except (MemoryError, tf.errors.ResourceExhaustedError) as error:
        return Failed(f"out of memory: {describe(error)}", FailureKind.MEMORY)


def rebuild(
    assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool], around: Surroundings
) -> Rebuilt | Stopped:
    """Trains the version again from its lineage and compares; see rebuild_check.py. Changes nothing anywhere."""
    work = RoundWork(assignment, report, stop_requested, around)
    here = environment_of(assignment)

    made: list[Trained] = []

    def train_again() -> tuple[Checkpoint, int]:
        version = around.registry.get_version(assignment.plan.model, assignment.rebuild_of)
        try:
            for ancestor in rebuild_check.thinned_ancestors(version, around.registry):
                _train_ancestor(ancestor, assignment, report, stop_requested, around)
            made.append(work.trained())
        except (NotFiniteError, DefinitionFailedError) as error:
            raise InvalidInput(f"training it again failed: {error}") from error
        return made[0].final, made[0].pace.examples_trained

    def measured() -> Mapping[str, float]:
        found = work.measured(made[0])
        if fault := found.warnings.get("window"):
            raise DataLoss(fault)
        return found.metrics["candidate"]

    try:
        return rebuild_check.compare(
            assignment, train_again, measured, here=here, registry=around.registry, log=around.log
        )
    except StopRequestedError:
        return Stopped(work.examples_done)


def _train_ancestor(
    ancestor: Version,
    assignment: RoundAssignment,
    report: Report,
    stop_requested: Callable[[], bool],
    around: Surroundings,
) -> None:
    """Leaves the checkpoint of a version without files where the round that continues from it looks for it. Raises
    InvalidInput: other weights came out than the registry has on record."""
    its_round = around.registry.get_round(ancestor.model, ancestor.round_id)
    own = replace(
        assignment,
        lease=replace(assignment.lease, round=its_round),
        work_dir=f"{assignment.work_dir}/{ancestor.version}",
        rebuild_of=ancestor.version,
    )
    final = RoundWork(own, report, stop_requested, around).trained().final
    digest = checkpoint.weights_digest(final.arrays)
    if digest != ancestor.weights_digest:
        raise InvalidInput(
            f"thinned version {ancestor.version}, trained again, has weights {digest[:12]}, expected "
            f"{ancestor.weights_digest[:12]}"
        )
    checkpoint.write(version_dir(assignment, ancestor.model, ancestor.version), final)
