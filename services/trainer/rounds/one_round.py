"""One round's work, from the plan to a registered version. The happy path is `RoundWork.run`.

What a round computes with is in program.py, what it needs of its process in `Surroundings`; RoundWork is what begins
and ends with the round.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import InvalidInput, Overloaded, Unavailable
from common.eventlog.base import EventLog
from common.facts import present
from common.process.tracing import traceparent_of
from common.registry.catalog import ranges_from_json
from common.registry.plan_notes import SKEW, WINDOW
from services.trainer.data.dataset import Reading
from services.trainer.export.fresh_process import FreshProcess
from services.trainer.families.hooks import Saved
from services.trainer.families.port import Trainable
from services.trainer.features.statistics import Statistics
from services.trainer.learn import adapters, checkpoint
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.steps import NotFiniteError
from services.trainer.learn.tracing import StepTracer
from services.trainer.protocol.assignment import LIVE_EVENTS, RoundAssignment
from services.trainer.protocol.messages import Done, Report
from services.trainer.rounds import program, publishing, teamwork, window
from services.trainer.rounds.blocks import RoundData
from services.trainer.rounds.calibrating import calibrate
from services.trainer.rounds.curve import LossCurve
from services.trainer.rounds.evaluating import BY_CHIEF, Evaluator, Scores
from services.trainer.rounds.exporting import Export, Exporter
from services.trainer.rounds.feature_counts import FeatureCounts
from services.trainer.rounds.inputs import RoundInputs, as_seen, data_of, fetch_inputs, fitted
from services.trainer.rounds.kept import Kept
from services.trainer.rounds.measuring import Measured, measure
from services.trainer.rounds.outside import RoundRegistry
from services.trainer.rounds.pace import Evaluate, Reached, RoundPace
from services.trainer.rounds.prepared import PreparedBlock
from services.trainer.rounds.program import Begun, FirstBuild, Program
from services.trainer.rounds.progress_reports import ProgressReports
from services.trainer.rounds.publishing import Trained
from services.trainer.rounds.resume import Place, Resumed, ResumePoints
from services.trainer.rounds.skew import skew_of
from services.trainer.rounds.stages import Stages
from services.trainer.rounds.unusable import Unusable
from services.trainer.rounds.window import Window
from services.trainer.shards.team import ALONE, Team
from services.trainer.summaries.observing import Observer

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
    """The state of one round in progress: where it stands, what it has measured, how long the stages took."""

    def __init__(
        self, assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool], around: Surroundings
    ) -> None:
        self._assignment, self._plan = assignment, assignment.plan
        self._stop_requested = stop_requested
        self._around, self._registry, self._log, self._team = around, around.registry, around.log, around.team
        self._work_dir = Path(assignment.work_dir)
        self._points = ResumePoints(
            self._registry, assignment.lease, self._work_dir, interval_seconds=assignment.resume_interval_seconds
        )
        self._stages = Stages(self._begin_stage, waited_seconds=max(0.0, time.time() - assignment.round.planned_at))
        self._seconds = self._stages.seconds
        self._progress = ProgressReports(report, self._points, self._team)
        self._seen_log: Reading = self._log
        self._held_out = around.kept.held_out if around.kept else window.Kept()
        self._scores: Scores | None = None
        self._curve = LossCurve()
        self._pace: RoundPace | None = None
        self._carried: Statistics = {}
        self._statistics: Statistics = {}
        self._program: Program | None = None
        self._begun = Begun({}, {})
        self._observer: Observer | None = None
        self._tracer: StepTracer | None = None
        self._final: Checkpoint | None = None  # what goes on; the model may hold averages then
        self._saved_place = Place()
        self.place = Place()

    def run(self) -> Done:
        trained = self.trained()
        measured = self.measured(trained)
        kept = self._around.kept
        if kept:
            kept.check()
            trained = replace(trained, process=kept.facts())
        with self._stages.stage("export"), ThreadPoolExecutor(1) as beside:
            digest = beside.submit(checkpoint.weights_digest, trained.final.arrays)
            output, facts = publishing.write_files(
                self._assignment, trained, measured, self._around.fresh, exporter=self._around.exporter
            )
            if SKEW in self._plan.configuration:
                facts |= {"skew": found} if (found := skew_of(self._plan, trained.parent, self._log)) else {}
            if trained.data.labelling:
                facts["labels"] = trained.data.labelling.facts()
            trained.training.after_saving(_saved("result", trained.final))
            if self._tracer:
                steps = self._tracer.traced_steps
                publishing.write_profile(self._assignment, output, trained.training, self._seconds, traced_steps=steps)
        with self._stages.stage("upload"):
            files, facts["uploaded_bytes"] = self._registry.upload(output)
        with self._stages.stage("register"):
            unusable = Unusable.of(measured.unusable, self._seen_log, self._plan)
            draft = publishing.draft_of(
                self._assignment,
                trained,
                measured,
                weights_digest=digest.result(),
                files=files,
                facts=facts,
                seconds=self._seconds,
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

    def measured(self, trained: Trained) -> Measured:
        """On the events of the range, and on those of the window."""
        with self._stages.stage("evaluate"):
            return measure(
                trained.model,
                trained.parent,
                trained.data,
                FeatureCounts(trained.definition, self._carried, self._statistics),
                set_aside=trained.set_aside,
                left_out=trained.pace.left_out,
                check_stop=lambda: self._check_stop("evaluate"),
                window=Window.of(self._plan, trained.data, self._log, self._held_out),
            )

    def trained(self) -> Trained:
        """From the plan, or the lease's resume point, to the final weights."""
        inputs, data, resumed, is_warm = self._read()
        with self._stages.stage("build"):
            self._pace = self._begin(inputs, data, resumed, is_warm=is_warm)
        assert self._program is not None, "it is built"
        training = self._program.training
        if self._team.coordinator:
            shutil.rmtree(self._team.coordinator.checkpoint, ignore_errors=True)
            point = adapters.for_contributors(inputs.definition, self._captured(training))
            checkpoint.write(self._team.coordinator.checkpoint, point)
        try:
            self._train(training, self._pace, data)
        finally:
            if self._observer:
                self._observer.close()
            if self._tracer:
                self._tracer.stop()
        final = self._final = self._captured(training)
        if self._team.is_chief and not self._assignment.rebuild_of:
            training.before_saving(final.arrays)
        training.use_averages()
        calibrated: dict[str, Any] = {}
        if self._team.is_chief:
            learned, calibrated = calibrate(training.model, data)
            final.arrays.update(learned)
        return self._come_to(final, data, calibrated)

    def _read(self) -> tuple[RoundInputs, RoundData, Resumed | None, bool]:
        """What the round needs before it builds, and whether it can begin with the kept program."""
        divided = self._progress.input = teamwork.divided(self._log, self._team, self._assignment)
        with self._stages.stage("download"):
            resumed = self._points.load()
            kept = self._around.kept
            warm = kept.inputs_of(self._assignment, self._registry, resumes=resumed is not None) if kept else None
            inputs = warm or fetch_inputs(self._assignment, self._registry, self._assignment.code_dir)
        data = data_of(self._assignment, inputs, divided or self._log)
        self._seen_log = as_seen(self._log, self._plan, inputs)
        self._progress.weights_from = "resume point" if resumed else inputs.weights_from(self._plan)
        self._carried = inputs.known.statistics_for(inputs.definition) if inputs.known else {}
        with self._stages.stage("read"):
            self._statistics = resumed.checkpoint.statistics if resumed else fitted(inputs, data, self._carried)
            self._stages.split_seconds("read", data, (0.0, 0.0))
        return inputs, data, resumed, warm is not None

    def _come_to(self, final: Checkpoint, data: RoundData, calibrated: Mapping[str, Any]) -> Trained:
        assert self._program is not None, "it has trained"
        assert self._pace is not None, "it has trained"
        training, observer, coordinator = self._program.training, self._observer, self._team.coordinator
        return Trained(
            data=data,
            parent=self._program.parent,
            training=training,
            final=final,
            curve=self._curve,
            pace=self._pace,
            set_aside=dict(training.set_aside),
            warm_start=self._begun.changes,
            seen=observer.seen if observer else [],
            texts={**training.texts, **(observer.taps.files() if observer else {})},
            course={
                **self._pace.course(),
                **self._progress.rates.whole(),
                **(self._scores.facts() if self._scores else {}),
                **present(
                    debugger=observer.debugger.dump if observer and observer.debugger else None,
                    asynchronous=coordinator.facts() if coordinator else None,
                ),
            },
            members=self._progress.members(),
            calibration=calibrated,
        )

    def _begin(self, inputs: RoundInputs, data: RoundData, resumed: Resumed | None, *, is_warm: bool) -> RoundPace:
        """The program with the weights that training starts from."""
        kept = self._around.kept
        if kept and is_warm:
            self._program = kept.program_for(inputs, self._assignment, self._registry, self._statistics)
        if self._program is None:
            inputs = fetch_inputs(self._assignment, self._registry, self._assignment.code_dir) if is_warm else inputs
            known = resumed or inputs.known
            self._program = program.build(
                inputs,
                self._statistics,
                known.checkpoint.arrays if known else {},
                lambda model: (block.trained.columns for block in data.prepared(model)),
                assignment=self._assignment,
                registry=self._registry,
                team=self._team,
                first_build=self._around.first_build,
            )
            if kept:
                kept.keep(self._program, inputs, self._plan)
        if kept:
            kept.begin()
        training = self._program.training
        self._begun = program.begin(self._program, inputs, self._statistics)
        pace = self._paced(training, data)
        if resumed:
            self._resume(training, pace, resumed)
        else:
            training.begin_round()
        teamwork.check_begins_alike(self._team, training.captured)
        return pace

    def _paced(self, training: Trainable, data: RoundData) -> RoundPace:
        section = training.model.definition.training
        evaluate: Evaluate | None = None
        if section.evaluate_every_steps:
            evaluate = dict  # the chief's scores are the round's
        if evaluate and (self._team.is_chief or section.early_stopping):
            self._scores = Scores(training, data, self._statistics, self._around.evaluator)
            evaluate = self._scores.of_this_step
        return RoundPace(section, training, self._curve, evaluate, self._report_on_the_way)

    def _resume(self, training: Trainable, pace: RoundPace, resumed: Resumed) -> None:
        training.restore(resumed.checkpoint.arrays)
        training.set_aside = {(block, row): reason for block, row, reason in resumed.checkpoint.state["set_aside"]}
        self.place = self._saved_place = resumed.place
        self._curve = pace.curve = LossCurve(resumed.losses)
        pace.restore(resumed.checkpoint.state["pace"], resumed.best)

    def _train(self, training: Trainable, pace: RoundPace, data: RoundData) -> None:
        if self._team.is_chief and not self._assignment.rebuild_of:
            self._observer = Observer(training, self._work_dir / LIVE_EVENTS, self._work_dir)
            if steps := self._assignment.profile_steps:
                self._tracer = training.tracer = StepTracer(
                    self._work_dir / "profile", first_step=self._assignment.profile_first, steps=steps
                )
        self._points.begin(training.step, interval_steps=pace.section.save_every_steps)
        self._progress.rates.begin(training.step)
        is_left = self.place.pass_index < training.passes
        for pass_index in range(self.place.pass_index, training.passes):
            blocks = data.prepared(training.model, self.place.position, self.place.block_index)
            for block in self._stages.timed("read", blocks, data):
                self._check_stop("train")
                try:
                    self._train_block(training, pace, block, pass_index)
                except NotFiniteError as error:
                    places = [int(block.trained_rows[row]) for row in error.facts.pop("rows", ())]
                    error.facts["events"] = publishing.events_at(
                        self._seen_log, self._plan, data, {block.index: places}
                    )
                    raise
                if pace.ended:
                    break
            self.place = Place(training.passes if pace.ended else pass_index + 1, 0, None, self.place.examples_done)
            if pace.ended:
                break
        if self._observer:
            self._observer.after_blocks()
        if is_left:  # a point after the last pass has what end_round changed
            pace.finish()
            if self._scores:
                self._scores.settle()
            training.end_round()
        if pace.examples_trained <= 0:
            why = next((f": {reason}" for reason in training.set_aside.values()), "")
            raise InvalidInput(f"none of the {self._plan.example_count} examples of the range can be trained on{why}")

    def _train_block(self, training: Trainable, pace: RoundPace, block: PreparedBlock, pass_index: int) -> None:
        began = time.monotonic()
        pace.begin_block(pass_index, block.index)
        self._progress.rates.begin_block()
        losses = training.train_block(block.trained, pass_index=pass_index, block_index=block.index, pace=pace)
        self._seconds["train"] += time.monotonic() - began
        self._curve.add(losses, training.added, pass_index=pass_index, norms=training.norms)
        if self._observer:
            self._observer.after_block(block.trained, losses, training.added)
        taken = block.trained.count - training.rows_left
        pace.end_block(taken)
        self._progress.rates.add(training.step, done=taken)
        done = self.place.examples_done + taken
        self.place = Place(pass_index, block.index + 1, dict(block.next_position), done)
        is_due = not pace.ended and self._points.is_due(training.step)
        if is_due and self._team.is_chief and not self._assignment.rebuild_of:
            self._save_point(training)
        self._progress.loss = float(losses.mean()) if len(losses) else None
        self._progress.report(training, pace, done, pass_index)

    def _report_on_the_way(self, at: Reached) -> None:
        """Within a block; the loss is that of the block before."""
        assert self._program is not None, "it is training"
        assert self._pace is not None, "it is training"
        training = self._program.training
        self._progress.rates.add(training.step, done=at.rows)
        self._progress.report(training, self._pace, self.place.examples_done + at.rows, at.pass_index)

    def _captured(self, training: Trainable) -> Checkpoint:
        return program.captured(training, self._statistics, self._begun, self._assignment.round)

    def _save_point(self, training: Trainable) -> None:
        """Without a registry the round goes on; a crash then costs what was done since the point before."""
        if self._scores:
            self._scores.settle()
        began = time.monotonic()
        try:
            point = self._final or self._captured(training)
            training.before_saving(point.arrays)
            assert self._pace is not None, "there is nothing to save before the training begins"
            shard_bytes = training.model.definition.export.checkpoint_shard_bytes
            self._points.save(self.place, point, self._curve.rows, self._pace.state(), shard_bytes=shard_bytes)
            self._saved_place = self.place
            training.after_saving(_saved("resume_point", point))
        except (Unavailable, Overloaded) as error:
            logger.warning("no resume point", extra={"model": self._plan.model, "error": error.message})
        self._seconds["resume_points"] += time.monotonic() - began

    def _check_stop(self, stage: str) -> None:
        if not self._stop_requested():
            return
        if self._program is not None and self.place != self._saved_place and not self._assignment.rebuild_of:
            self._save_point(self._program.training)
        logger.info("the round stops as asked", extra={"stage": stage, "examples_done": self.place.examples_done})
        raise StopRequestedError

    def _begin_stage(self, name: str) -> None:
        self._check_stop(name)
        self._progress.report_stage(name, self._pace.examples if self._pace else 0)


def _saved(kind: str, point: Checkpoint) -> Saved:
    return Saved(kind, int(point.state["step"]), tuple(sorted(point.arrays)))
