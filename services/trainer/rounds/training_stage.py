"""A round's training: from its first block, or from where a resume point was taken, to the final weights."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.errors import InvalidInput, Overloaded, Unavailable
from common.facts import present
from services.trainer.families.hooks import Saved
from services.trainer.learn import adapters, checkpoint
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.steps import NotFiniteError
from services.trainer.learn.tracing import StepTracer
from services.trainer.protocol.assignment import LIVE_EVENTS, RoundAssignment
from services.trainer.rounds import program as programs
from services.trainer.rounds import publishing, teamwork
from services.trainer.rounds.calibrating import calibrate
from services.trainer.rounds.curve import LossCurve
from services.trainer.rounds.evaluating import Evaluator, Scores
from services.trainer.rounds.inputs import Beginning
from services.trainer.rounds.pace import Reached, RoundPace
from services.trainer.rounds.prepared import PreparedBlock
from services.trainer.rounds.program import Program
from services.trainer.rounds.progress_reports import ProgressReports
from services.trainer.rounds.publishing import Trained
from services.trainer.rounds.resume import Place, Resumed, ResumePoints
from services.trainer.rounds.stages import Stages
from services.trainer.shards.team import Team
from services.trainer.summaries.observing import Observer

logger = logging.getLogger(__name__)


class TrainingStage:
    """Trains a program over the blocks of a round, and saves resume points between them.

    Attributes:
        place: where it stands.
        pace: how far it has come, and what was measured on the way.
    """

    def __init__(
        self,
        program: Program,
        beginning: Beginning,
        assignment: RoundAssignment,
        team: Team,
        evaluator: Evaluator,
        points: ResumePoints,
        progress: ProgressReports,
        stages: Stages,
        check_stop: Callable[[str], None],
    ) -> None:
        """Gives the program the weights that training starts from. `check_stop`: gets the stage's name; raises where
        the round shall end."""
        self._program, self._beginning, self._training = program, beginning, program.training
        self._assignment, self._team = assignment, team
        self._points, self._progress, self._stages, self._check_stop = points, progress, stages, check_stop
        self._keeps_points = team.is_chief and not assignment.rebuild_of
        self._begun = programs.begin(program, beginning.inputs, beginning.statistics)
        section = beginning.inputs.definition.training
        self._scores: Scores | None = None
        if section.evaluate_every_steps and (team.is_chief or section.early_stopping):
            self._scores = Scores(self._training, beginning.data, beginning.statistics, evaluator)
        evaluate = self._scores.of_this_step if self._scores else dict  # the chief's scores are the round's
        self.pace = RoundPace(
            section,
            self._training,
            LossCurve(),
            evaluate if section.evaluate_every_steps else None,
            self._report_within_block,
        )
        self.place = self._saved_place = Place()
        self._final: Checkpoint | None = None  # what goes on; the model may hold averages then
        if beginning.resumed:
            self._resume(beginning.resumed)
        else:
            self._training.begin_round()
        teamwork.check_begins_alike(team, self._training.captured)
        self._observer: Observer | None = None
        self._tracer: StepTracer | None = None

    def run(self) -> Trained:
        """Raises InvalidInput: none of the examples can be trained on; NotFiniteError."""
        training, coordinator = self._training, self._team.coordinator
        if coordinator:
            shutil.rmtree(coordinator.checkpoint, ignore_errors=True)
            point = adapters.for_contributors(self._beginning.inputs.definition, self._captured())
            checkpoint.write(coordinator.checkpoint, point)
        self._watch()
        try:
            self._train()
        finally:
            if self._observer:
                self._observer.close()
            if self._tracer:
                self._tracer.stop()
        final = self._final = self._captured()
        if self._keeps_points:
            training.before_saving(final.arrays)
        training.use_averages()
        calibrated: dict[str, Any] = {}
        if self._team.is_chief:
            learned, calibrated = calibrate(training.model, self._beginning.data)
            final.arrays.update(learned)
        return self._come_to(final, calibrated)

    def _resume(self, resumed: Resumed) -> None:
        training, state = self._training, resumed.checkpoint.state
        training.restore(resumed.checkpoint.arrays)
        training.set_aside = {(block, row): reason for block, row, reason in state["set_aside"]}
        self.place = self._saved_place = resumed.place
        self.pace.curve = LossCurve(resumed.losses)
        self.pace.restore(state["pace"], resumed.best)

    def _watch(self) -> None:
        """What the version's record and `profile` want of the steps."""
        if not self._keeps_points:
            return
        work_dir = Path(self._assignment.work_dir)
        self._observer = Observer(self._training, work_dir / LIVE_EVENTS, work_dir)
        if steps := self._assignment.profile_steps:
            self._tracer = self._training.tracer = StepTracer(
                work_dir / "profile", first_step=self._assignment.profile_first, steps=steps
            )

    def _train(self) -> None:
        training, pace = self._training, self.pace
        self._points.begin(training.step, interval_steps=pace.section.save_every_steps)
        self._progress.rates.begin(training.step)
        is_left = self.place.pass_index < training.passes
        for pass_index in range(self.place.pass_index, training.passes):
            self._train_pass(pass_index)
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
            count = self._assignment.plan.example_count
            raise InvalidInput(f"none of the {count} examples of the range can be trained on{why}")

    def _train_pass(self, pass_index: int) -> None:
        data = self._beginning.data
        blocks = data.prepared(self._training.model, self.place.position, self.place.block_index)
        for block in self._stages.timed("read", blocks, data):
            self._check_stop("train")
            try:
                self._train_block(block, pass_index)
            except NotFiniteError as error:
                places = [int(block.trained_rows[row]) for row in error.facts.pop("rows", ())]
                seen, plan = self._beginning.seen, self._assignment.plan
                error.facts["events"] = publishing.events_at(seen, plan, data, {block.index: places})
                raise
            if self.pace.ended:
                return

    def _train_block(self, block: PreparedBlock, pass_index: int) -> None:
        training, pace = self._training, self.pace
        began = time.monotonic()
        pace.begin_block(pass_index, block.index)
        self._progress.rates.begin_block()
        losses = training.train_block(block.trained, pass_index=pass_index, block_index=block.index, pace=pace)
        self._stages.seconds["train"] += time.monotonic() - began
        pace.curve.add(losses, training.added, pass_index=pass_index, norms=training.norms)
        if self._observer:
            self._observer.after_block(block.trained, losses, training.added)
        taken = block.trained.count - training.rows_left
        pace.end_block(taken)
        self._progress.rates.add(training.step, done=taken)
        done = self.place.examples_done + taken
        self.place = Place(pass_index, block.index + 1, dict(block.next_position), done)
        if not pace.ended and self._points.is_due(training.step):
            self.save_point()
        self._progress.loss = float(losses.mean()) if len(losses) else None
        self._progress.report(training, pace, done, pass_index)

    def _report_within_block(self, at: Reached) -> None:
        """The loss is that of the block before."""
        self._progress.rates.add(self._training.step, done=at.rows)
        self._progress.report(self._training, self.pace, self.place.examples_done + at.rows, at.pass_index)

    def save_point(self) -> None:
        """Where it has moved since the last point, and is the process that keeps them.

        Without a registry the round goes on; a crash then costs what was done since the point before.
        """
        if not self._keeps_points or self.place == self._saved_place:
            return
        if self._scores:
            self._scores.settle()
        began = time.monotonic()
        training = self._training
        try:
            point = self._final or self._captured()
            training.before_saving(point.arrays)
            shard_bytes = training.model.definition.export.checkpoint_shard_bytes
            self._points.save(self.place, point, self.pace.curve.rows, self.pace.state(), shard_bytes=shard_bytes)
            self._saved_place = self.place
            training.after_saving(saved("resume_point", point))
        except (Unavailable, Overloaded) as error:
            logger.warning("no resume point", extra={"model": self._assignment.plan.model, "error": error.message})
        self._stages.seconds["resume_points"] += time.monotonic() - began

    def _captured(self) -> Checkpoint:
        return programs.captured(self._training, self._beginning.statistics, self._begun, self._assignment.round)

    def _come_to(self, final: Checkpoint, calibrated: Mapping[str, Any]) -> Trained:
        training, observer, coordinator = self._training, self._observer, self._team.coordinator
        return Trained(
            beginning=self._beginning,
            parent=self._program.parent,
            training=training,
            final=final,
            pace=self.pace,
            set_aside=dict(training.set_aside),
            warm_start=self._begun.changes,
            seen=observer.seen if observer else [],
            texts={**training.texts, **(observer.taps.files() if observer else {})},
            course={
                **self.pace.course(),
                **self._progress.rates.whole(),
                **(self._scores.facts() if self._scores else {}),
                **present(
                    debugger=observer.debugger.dump if observer and observer.debugger else None,
                    asynchronous=coordinator.facts() if coordinator else None,
                ),
            },
            members=self._progress.members(),
            calibration=calibrated,
            traced_steps=self._tracer.traced_steps if self._tracer else None,
        )


def saved(kind: str, point: Checkpoint) -> Saved:
    """What a hook hears of a point that was kept."""
    return Saved(kind, int(point.state["step"]), tuple(sorted(point.arrays)))
