"""Plans rounds: looks at the log's end many times a second, at the registry after a change.

Any number of trainers may plan at once. A plan names the round's place in the model's sequence, the registry takes
the first, and the others get Conflict, read again and find the round open.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from common.errors import Conflict, DataLoss, HeadraceError
from common.eventlog.sourced_log import SourcedLog
from common.eventlog.topics import examples_topic
from common.process.beat import until_next
from common.process.health import Health
from common.process.lifecycle import Stop
from common.registry.catalog import PRODUCTION, ChangeKind, Round
from common.registry.client import RegistryClient
from common.registry.plan_notes import (
    ALLOW_SIGNATURE_CHANGE,
    FIRED,
    QUALITY_ALARM,
    SCORES_ALARM,
    SHIFT,
    SKIPPED,
    UPSTREAM_VERSION,
)
from services.trainer import metrics
from services.trainer.plan.chain import Beginning, ModelState, beginning_of, from_chosen, left_out
from services.trainer.plan.drafts import Drafts
from services.trainer.plan.drift import Drifts
from services.trainer.plan.reading import Declines, Reading
from services.trainer.plan.shifts import Shifts
from services.trainer.plan.tracked import LogBounds, Tracked, shown, status_of, stopped
from services.trainer.plan.triggers import DRIFT, Alarm, Fire, Situation, Wait, decide
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
Start = Literal["head", "scratch"] | Mapping[int, int]
_NO_MODEL_SECONDS, _AWAY_SECONDS = 30.0, 1.0
"""Between two turns where there is no log to look at (a new model wakes the planner); while the registry is away."""


class Planner:
    """`run` is the loop, `plan_now` and `status` may be called from any thread.

    Args:
        on_planned: called for each round planned here, so that it is leased at once.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        registry: RegistryClient,
        log: SourcedLog,
        health: Health,
        on_planned: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._registry, self._log, self._health = settings, registry, log, health
        self._on_planned, self._clock = on_planned, clock
        self._lock = threading.RLock()
        self._counted: dict[str, Any] = {}
        self._drafts = Drafts(settings, registry, log)
        self._reading = Reading(registry, log, health, clock, on_new_log=self._drafts.forget_counts)
        self._drifts = Drifts(registry, log, clock)
        self._declines = Declines(registry, clock)
        self._shifts = Shifts(registry, log, self._drifts)
        self._snapshot: tuple[dict[str, Any], ...] = ()
        self._wake = threading.Event()

    # changes

    def wake(self) -> None:
        self._wake.set()

    def mark_stale(self, kind: ChangeKind, name: str) -> None:
        """Something in the registry has changed: read it again at the next turn. From any thread, never waits long."""
        self._reading.mark_stale(kind, name)
        self._wake.set()

    def run(self, stop: Stop) -> None:
        while not stop.is_requested():
            without_models = _AWAY_SECONDS
            try:
                without_models = _NO_MODEL_SECONDS if self.turn() else _AWAY_SECONDS
            except Exception:
                logger.exception("planning failed unexpectedly")
            interval = self._settings.poll_interval_seconds
            self._wake.wait(interval if self._reading.tracked else until_next(max(interval, without_models)))
            self._wake.clear()

    def turn(self) -> bool:
        """Looks once at everything and plans what is due; False: the registry is away."""
        with self._lock:
            if not self._reading.refresh():
                return False
            found = self._reading.tracked
            self._counted = {name: counted for name, counted in self._counted.items() if name in found}
            if not found:
                self._health.satisfy("event_log")  # nothing needs it yet
            logs: dict[str, LogBounds | str] = {}
            for tracked in found.values():
                stream = tracked.state.model.stream
                if stream not in logs:
                    logs[stream] = self._reading.look(stream)
                self._consider(tracked, self._reading.faults.get(tracked.state.model.name) or logs[stream])
            self._snapshot = tuple(status_of(tracked) for _, tracked in sorted(found.items()))
            return True

    # doors

    def plan_now(
        self, name: str, *, by: str, reason: str, start: Start = "head", allow_signature_change: bool = False,
        request_id: str = "",
    ) -> Round:  # fmt: skip
        """Plans a round by hand.

        Args:
            start: "head": over new events; "scratch": from nothing, over the log from its start; {partition: offset}:
                from there on, earlier events are left out. Offsets before the head's end would be learned twice.
            allow_signature_change: the version may break the signatures of the version before it.
            request_id: by which the caller knows the round again.

        Raises:
            NotFound: no such model.
            Conflict: there is nothing to learn, or a round of the model is open.
            Unavailable: the log or the registry is away.
        """
        with self._lock:
            tracked = self._reading.again(name)
            if tracked.state.open_round is not None:
                raise Conflict(f"{name} has a round already: {shown(tracked.state.open_round)}")
            log = self._reading.look(tracked.state.model.stream)
            if isinstance(log, str):
                raise Conflict(f"no round of {name} can be planned: {log}")
            if tracked.state.model.paused or tracked.state.model.archived:
                raise Conflict(f"no round of {name} can be planned: {stopped(tracked.state.model)}")
            if start == "scratch":
                tracked = Tracked(tracked.state)  # with a backlog of its own: the other goes on from the head
                beginning = Beginning(log.start, log.start, log.start)
            else:
                beginning, _ = self._count(tracked, log)
                beginning = beginning if start == "head" else from_chosen(beginning, start, log.end)
            fresh = self._take_up(tracked, log, beginning)
            decision = decide(tracked.state.definition.triggers, self._situation(tracked, fresh, is_requested=True))
            if isinstance(decision, Wait):
                raise Conflict(f"no round of {name} is due: {decision.reason}{_skip_notice(name, beginning, log)}")
            requested: dict[str, Any] = {"by": by, "reason": reason} | ({} if start == "head" else {"from": start})
            requested |= {ALLOW_SIGNATURE_CHANGE: True} if allow_signature_change else {}
            requested |= {"request_id": request_id} if request_id else {}
            return self._plan(tracked, log, beginning, decision, requested=requested)

    def known(self, name: str) -> tuple[ModelState, LogBounds]:
        """The model and its log as they are now. Raises NotFound; Conflict: there is no such log, or it is damaged."""
        with self._lock:
            state = self._reading.read(name)
            log = self._reading.look(state.model.stream)
        if isinstance(log, str):
            raise Conflict(f"nothing of {name} can be planned: {log}")
        return state, log

    def known_models(self) -> list[str]:
        return list(self._reading.tracked)

    def has_open_rounds(self) -> bool:
        """Whether a model has a round that is planned or runs, as of the last turn."""
        return any(tracked.state.open_round is not None for tracked in tuple(self._reading.tracked.values()))

    def status(self) -> list[dict[str, Any]]:
        """Per model, as of the last turn: lag in examples, the open round, the next round's hindrance."""
        return list(self._snapshot)

    def counted(self) -> dict[str, Any]:
        """By model, for reports: examples in the log beyond the head, as of the last turn."""
        return dict(self._counted)

    def faults(self) -> dict[str, str]:
        """Models that cannot be planned for, with the reason."""
        return dict(self._reading.faults)

    # deciding

    def _consider(self, tracked: Tracked, log: LogBounds | str) -> None:
        if isinstance(log, str):
            tracked.waiting = Wait(log)
            return
        try:
            beginning, fresh = self._count(tracked, log)
            self._reading.note_sound(tracked.state.model.stream)
            if tracked.state.open_round is not None:
                tracked.waiting = Wait(f"the end of {shown(tracked.state.open_round)}")
                return
            if tracked.state.model.paused or tracked.state.model.archived:
                tracked.waiting = Wait(stopped(tracked.state.model))
                return
            self._compare(tracked, beginning)
            decision = decide(tracked.state.definition.triggers, self._situation(tracked, fresh))
            if isinstance(decision, Fire) and self._is_held_by_drift(tracked, beginning):
                decision = Wait(f"{tracked.drift}; it waits for a round by hand")
            if isinstance(decision, Wait):
                tracked.waiting = decision
                return
            self._plan(tracked, log, beginning, decision)
        except Conflict as error:
            logger.debug("somebody else was first", extra={"error": error.message})
            tracked.is_stale = True
        except HeadraceError as error:
            if isinstance(error, DataLoss):
                self._reading.note_damage(tracked.state.model.stream, error)
            if tracked.waiting.reason != error.message:
                logger.warning(
                    "no round can be planned", extra={"model": tracked.state.model.name, "error": str(error)}
                )
            tracked.waiting = Wait(error.message)
            tracked.is_stale = True

    def _compare(self, tracked: Tracked, beginning: Beginning) -> None:
        """Compares waiting events with the head's, where a trigger needs it."""
        state, drift = tracked.state, tracked.state.definition.triggers.drift
        tracked.shift = {}
        if drift and state.head:
            tracked.shift = self._shifts.of(state.model.name, state.head, drift, tracked.backlog, beginning.judged_to)

    def _is_held_by_drift(self, tracked: Tracked, beginning: Beginning) -> bool:
        """Measures how far waiting events have drifted, where the definition has such a trigger."""
        state, triggers = tracked.state, tracked.state.definition.triggers
        tracked.drift = ""
        if triggers.on_drift == "ignore" or not state.head:
            return False
        waits = tracked.backlog.cut(beginning.judged_to, max_examples=triggers.max_round_examples)
        topic = examples_topic(state.model.stream)
        tracked.drift = self._drifts.reason(
            state.model.name, state.head, topic, waits.ranges, count=waits.example_count, bounds=triggers.drift_psi
        )
        if tracked.drift and tracked.waiting.reason.partition(";")[0] != tracked.drift:
            logger.warning("the events have drifted", extra={"model": state.model.name, "reason": tracked.drift})
        return bool(tracked.drift) and triggers.on_drift == "hold"

    def _count(self, tracked: Tracked, log: LogBounds) -> tuple[Beginning, int]:
        """Where the next round begins and how many fresh examples there are; takes up the records since."""
        beginning = beginning_of(tracked.state, log.start)
        name = tracked.state.model.name
        fresh = self._take_up(tracked, log, beginning)
        metrics.LAG_EXAMPLES.labels(name).set(tracked.backlog.examples)
        self._note(tracked, beginning, log, fresh)
        return beginning, fresh

    def _take_up(self, tracked: Tracked, log: LogBounds, beginning: Beginning) -> int:
        """Counts the records since; how many examples are fresh, and do not wait for their labels."""
        late = tracked.state.late_labels
        tracked.backlog.ripe_at = self._clock() - late.wait_seconds if late else math.inf
        tracked.backlog.start_at(beginning.begin, tracked.state.forgotten)
        tracked.backlog.advance(self._log, examples_topic(tracked.state.model.stream), log.end)
        return tracked.backlog.examples_from(beginning.judged_to)

    def _note(self, tracked: Tracked, beginning: Beginning, log: LogBounds, fresh: int) -> None:
        """Keeps counts beyond the head for reports: waiting, judged before, and about to be left out."""
        state = tracked.state
        self._counted[state.model.name] = {
            "head_version": state.head,
            "waiting": tracked.backlog.examples,
            "judged_before": tracked.backlog.ripe_examples - fresh,
            "judged": self._judged(tracked, fresh),
            "left_out": [
                *self._drafts.left_out_of(state, log, beginning),
                *self._drafts.forgotten_of(state, log, tracked.backlog.counted()),
            ],
            "log_start": {str(partition): offset for partition, offset in log.start.items()},
            "log_end": {str(partition): offset for partition, offset in log.end.items()},
            "waiting_for": tracked.waiting.reason,
        }

    def _judged(self, tracked: Tracked, fresh: int) -> dict[str, int]:
        """Of waiting examples that were in a round: {a reason to leave out: examples}."""
        judged = tracked.backlog.ripe_examples - fresh
        if not judged:
            return {}
        behind = judged
        if tracked.state.rolled_back_to:
            behind = max(0, tracked.backlog.examples_from(tracked.state.rolled_back_to) - fresh)
        reasons = {"rollback": judged - behind} if behind < judged else {}
        if behind:
            reason = self._drafts.fate_of_finished(tracked.state)
            reasons[reason] = reasons.get(reason, 0) + behind
        return reasons

    def _situation(self, tracked: Tracked, fresh: int, *, is_requested: bool = False) -> Situation:
        model, rounds = tracked.state.model, tracked.state.rounds
        triggers, live = tracked.state.definition.triggers, model.aliases.get(PRODUCTION, 0)
        if triggers.quality:
            tracked.quality = self._declines.of(model.name, live, "quality")
        if triggers.drift and triggers.drift.scores:
            tracked.scores = self._declines.of(model.name, live, "scores")
        return Situation(
            is_first=not tracked.state.head,
            failures=model.consecutive_failures,
            last_failure=model.last_failure,
            now=self._clock(),
            fresh_examples=fresh,
            last_planned_at=rounds[0].planned_at if rounds else model.created_at,
            has_planned=bool(rounds),
            retry_at=model.retry_at,
            is_requested=is_requested,
            judged_before=tracked.backlog.ripe_examples - fresh,
            unlabelled=tracked.backlog.examples - tracked.backlog.ripe_examples,
            upstream=self._upstream(tracked),
            upstream_before=tracked.state.upstream_before,
            shift=_shift_of(tracked.shift),
            scores=_alarm_of(tracked.scores),
            scores_before=_alarm_of(tracked.state.noted_before(SCORES_ALARM)),
            quality=_alarm_of(tracked.quality),
            quality_before=_alarm_of(tracked.state.noted_before(QUALITY_ALARM)),
        )

    def _upstream(self, tracked: Tracked) -> int:
        """The version of triggers.upstream that is in production; 0: none."""
        upstream = self._reading.tracked.get(tracked.state.definition.triggers.upstream)
        return upstream.state.model.aliases.get(PRODUCTION, 0) if upstream else 0

    def _plan(
        self,
        tracked: Tracked,
        log: LogBounds,
        beginning: Beginning,
        fired: Fire,
        *,
        requested: Mapping[str, Any] | None = None,
    ) -> Round:
        limit = tracked.state.definition.triggers.max_round_examples
        backlog = tracked.backlog
        begin = backlog.newest(beginning.begin, beginning.judged_to, max_examples=limit)
        beginning = Beginning(beginning.chain_end, begin, beginning.judged_to)
        judged_again = backlog.examples_from(begin) - backlog.examples_from(beginning.judged_to)
        stretch = backlog.cut(begin, max_examples=limit + judged_again)
        notes: dict[str, Any] = {"drift": tracked.drift} if tracked.drift else {}
        if fired.fired:
            notes[FIRED] = dict(fired.fired)
        if upstream := tracked.state.definition.triggers.upstream:
            notes[UPSTREAM_VERSION] = {upstream: self._upstream(tracked)}
        if tracked.quality.get("alarms"):
            notes[QUALITY_ALARM] = tracked.quality
        if tracked.scores.get("alarms"):
            notes[SCORES_ALARM] = tracked.scores
        if DRIFT in fired.fired:
            notes[SHIFT] = tracked.shift
        plan = self._drafts.plan_of(tracked.state, log, beginning, stretch, fired, requested=requested, notes=notes)
        planned = self._registry.plan_round(plan)
        tracked.state = replace(tracked.state, rounds=(planned, *tracked.state.rounds))
        tracked.waiting = Wait(f"the end of {shown(planned)}")
        metrics.PLANS.labels(plan.model, fired.trigger).inc()
        logger.info(
            "round planned",
            extra={
                "round": planned.round_id,
                "trigger": fired.trigger,
                "fired": dict(fired.fired),
                "examples": stretch.example_count,
            }
            | ({"left_out": plan.configuration[SKIPPED]} if SKIPPED in plan.configuration else {})
            | dict(requested or {}),
        )
        self._on_planned()
        return planned


def _alarm_of(decline: Mapping[str, Any]) -> Alarm:
    """`decline`: as Decline.shown has it; {} where there is none."""
    if not decline:
        return Alarm()
    sentence = decline["alarm"].get("says") or decline["says"]
    return Alarm(decline["version"], decline["alarms"], sentence)


def _shift_of(compared: Mapping[str, Any]) -> Alarm:
    """`compared`: as Shifts.of has it; {} where nothing was compared."""
    if not compared:
        return Alarm(sentence="there is no version to compare new events with")
    return Alarm(compared.get("version", 0), compared["window"] if compared.get("shifted") else 0, compared["says"])


def _skip_notice(model: str, beginning: Beginning, log: LogBounds) -> str:
    """The command that learns left-out events that are still in the log; "" for none."""
    starts = {piece.partition: max(piece.from_offset, log.start[piece.partition]) for piece in left_out(beginning)}
    start = ",".join(f"{part}:{offset}" for part, offset in starts.items() if offset < beginning.begin[part])
    if not start:
        return ""
    return f"; `headrace train {model} --from {start}` learns the events that were left out"
