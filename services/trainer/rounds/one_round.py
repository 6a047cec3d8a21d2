"""One round's work, from the plan to a registered version. The happy path is `RoundWork.run`.

What a round computes with is in program.py, how it trains in training_stage.py, what it needs of its process in
`Surroundings`; RoundWork is what begins and ends with the round.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from common.eventlog.base import EventLog
from common.process.tracing import traceparent_of
from common.registry.catalog import ranges_from_json
from common.registry.plan_notes import SKEW, WINDOW
from services.trainer.export.fresh_process import FreshProcess
from services.trainer.learn import checkpoint
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Done, Report
from services.trainer.rounds import program, publishing, teamwork, window
from services.trainer.rounds.evaluating import BY_CHIEF, Evaluator
from services.trainer.rounds.exporting import Export, Exporter
from services.trainer.rounds.feature_counts import FeatureCounts
from services.trainer.rounds.inputs import Beginning, as_seen, data_of, fetch_inputs, fitted
from services.trainer.rounds.kept import Kept
from services.trainer.rounds.measuring import Measured, measure
from services.trainer.rounds.outside import RoundRegistry
from services.trainer.rounds.program import FirstBuild, Program
from services.trainer.rounds.progress_reports import ProgressReports
from services.trainer.rounds.publishing import Trained
from services.trainer.rounds.resume import ResumePoints
from services.trainer.rounds.skew import skew_of
from services.trainer.rounds.stages import Stages
from services.trainer.rounds.training_stage import TrainingStage, saved
from services.trainer.rounds.unusable import Unusable
from services.trainer.rounds.window import Window
from services.trainer.shards.team import ALONE, Team

logger = logging.getLogger(__name__)


class StopRequestedError(Exception):
    """The trainer is being stopped; what there is to save is saved."""


@dataclass(frozen=True)
class Surroundings:
    """What a round's process has beside the round.

    Attributes:
        fresh: in which exports are tried; None for a worker, which exports nothing.
        team: the processes that compute the round together.
        evaluator: scores on the way.
        kept: of rounds before, where the process may take several.
        exporter: writes saved_model/ of a version.
        first_build: of a module's model in a round that begins from nothing.
    """

    registry: RoundRegistry
    log: EventLog
    fresh: FreshProcess | None
    team: Team = ALONE
    evaluator: Evaluator = BY_CHIEF
    kept: Kept | None = None
    exporter: Exporter = Export.write
    first_build: FirstBuild = program.first_build


class RoundWork:
    """One round in progress: its stages, one after the other, and how long each took."""

    def __init__(
        self, assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool], around: Surroundings
    ) -> None:
        self._assignment, self._plan, self._around = assignment, assignment.plan, around
        self._registry, self._stop_requested = around.registry, stop_requested
        self._points = ResumePoints(
            self._registry,
            assignment.lease,
            Path(assignment.work_dir),
            interval_seconds=assignment.resume_interval_seconds,
        )
        self._stages = Stages(self._begin_stage, waited_seconds=max(0.0, time.time() - assignment.round.planned_at))
        self._progress = ProgressReports(report, self._points, around.team)
        self._held_out = around.kept.held_out if around.kept else window.Kept()
        self._training: TrainingStage | None = None

    @property
    def examples_done(self) -> int:
        """Trained on so far, all passes together."""
        return self._training.place.examples_done if self._training else 0

    def run(self) -> Done:
        trained = self.trained()
        measured = self.measured(trained)
        kept, seconds = self._around.kept, self._stages.seconds
        if kept:
            kept.check()
            trained = replace(trained, process=kept.facts())
        with self._stages.stage("export"), ThreadPoolExecutor(1) as beside:
            digest = beside.submit(checkpoint.weights_digest, trained.final.arrays)
            output, facts = publishing.write_files(
                self._assignment, trained, measured, self._around.fresh, exporter=self._around.exporter
            )
            if SKEW in self._plan.configuration:
                facts |= {"skew": found} if (found := skew_of(self._plan, trained.parent, self._around.log)) else {}
            if trained.data.labelling:
                facts["labels"] = trained.data.labelling.facts()
            trained.training.after_saving(saved("result", trained.final))
            publishing.write_profile(self._assignment, output, trained, seconds)
        with self._stages.stage("upload"):
            files, facts["uploaded_bytes"] = self._registry.upload(output)
        with self._stages.stage("register"):
            unusable = Unusable.of(measured.unusable, trained.beginning.seen, self._plan)
            draft = publishing.draft_of(
                self._assignment,
                trained,
                measured,
                weights_digest=digest.result(),
                files=files,
                facts=facts,
                seconds=seconds,
                unusable=unusable,
            )
            version = self._registry.register_version(draft)
        if kept:
            kept.made(version.version, trained.final)
            self._held_out.keep(
                ranges_from_json(self._plan.configuration.get(WINDOW, [])), trained.data.held_out.values()
            )
        publishing.keep(self._assignment, version, output)
        unusable.set_aside(self._registry, self._plan)
        learned = tuple(map(traceparent_of, trained.data.traces)) if self._assignment.traceparent else ()
        return Done(learned, trained.process)

    def trained(self) -> Trained:
        """From the plan, or the lease's resume point, to the final weights."""
        beginning = self._read()
        with self._stages.stage("build"):
            self._training = TrainingStage(
                *self._program(beginning),
                self._assignment,
                self._around.team,
                self._around.evaluator,
                self._points,
                self._progress,
                self._stages,
                self._check_stop,
            )
        return self._training.run()

    def measured(self, trained: Trained) -> Measured:
        """On the events of the range, and on those of the window."""
        with self._stages.stage("evaluate"):
            begins = trained.beginning
            return measure(
                trained.model,
                trained.parent,
                trained.data,
                FeatureCounts(trained.definition, begins.carried, begins.statistics),
                set_aside=trained.set_aside,
                left_out=trained.pace.left_out,
                check_stop=lambda: self._check_stop("evaluate"),
                window=Window.of(self._plan, trained.data, self._around.log, self._held_out),
            )

    def _read(self) -> Beginning:
        """What the round needs before it builds."""
        log, kept = self._around.log, self._around.kept
        divided = self._progress.input = teamwork.divided(log, self._around.team, self._assignment)
        with self._stages.stage("download"):
            resumed = self._points.load()
            warm = kept.inputs_of(self._assignment, self._registry, resumes=resumed is not None) if kept else None
            inputs = warm or fetch_inputs(self._assignment, self._registry, self._assignment.code_dir)
        data = data_of(self._assignment, inputs, divided or log)
        self._progress.weights_from = "resume point" if resumed else inputs.weights_from(self._plan)
        carried = inputs.known.statistics_for(inputs.definition) if inputs.known else {}
        with self._stages.stage("read"):
            statistics = resumed.checkpoint.statistics if resumed else fitted(inputs, data, carried)
            self._stages.split_seconds("read", data, (0.0, 0.0))
        seen = as_seen(log, self._plan, inputs)
        return Beginning(inputs, data, resumed, carried, statistics, seen, is_warm=warm is not None)

    def _program(self, beginning: Beginning) -> tuple[Program, Beginning]:
        """The program that the process has kept, or a new one with inputs that nothing before has used."""
        kept, inputs, assignment = self._around.kept, beginning.inputs, self._assignment
        found = None
        if kept and beginning.is_warm:
            found = kept.program_for(inputs, assignment, self._registry, beginning.statistics)
        if found is None:
            if beginning.is_warm:
                inputs = fetch_inputs(assignment, self._registry, assignment.code_dir)
                beginning = replace(beginning, inputs=inputs)
            known, data = beginning.resumed or inputs.known, beginning.data
            found = program.build(
                inputs,
                beginning.statistics,
                known.checkpoint.arrays if known else {},
                lambda model: (block.trained.columns for block in data.prepared(model)),
                assignment=assignment,
                registry=self._registry,
                team=self._around.team,
                first_build=self._around.first_build,
            )
            if kept:
                kept.keep(found, inputs, self._plan)
        if kept:
            kept.begin()
        return found, beginning

    def _check_stop(self, stage: str) -> None:
        if not self._stop_requested():
            return
        if self._training:
            self._training.save_point()
        logger.info("the round stops as asked", extra={"stage": stage, "examples_done": self.examples_done})
        raise StopRequestedError

    def _begin_stage(self, name: str) -> None:
        self._check_stop(name)
        self._progress.report_stage(name, self._training.pace.examples if self._training else 0)
