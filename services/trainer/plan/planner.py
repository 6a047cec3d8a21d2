"""Plans rounds: looks at the log's end many times a second, at the registry when it says that something has changed.

Any number of trainers may plan at once. A plan names the round's place in the model's sequence, the registry takes
the first one, and the others are told Conflict, read again and find the round open.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from common.definition.model import Definition, parse_definition
from common.errors import Conflict, DataLoss, HeadraceError, InvalidInput, NotFound, Overloaded, Unavailable
from common.eventlog.base import Position
from common.eventlog.sourced_log import SourcedLog
from common.eventlog.topics import examples_topic
from common.process.health import Health
from common.process.lifecycle import Stop
from common.registry.catalog import (
    ALLOW_SIGNATURE_CHANGE,
    FROM_SCRATCH,
    HEAD_BEFORE,
    LEFT_OUT,
    PRODUCTION,
    PUSHED,
    SKIPPED,
    ChangeKind,
    Decision,
    Model,
    Round,
    RoundPlan,
    ranges_as_json,
)
from common.registry.client import RegistryClient
from common.schema import Schema
from services.trainer import metrics
from services.trainer.plan import lineage
from services.trainer.plan.account import RangeCounts, entries_of
from services.trainer.plan.backlog import Backlog, Stretch
from services.trainer.plan.chain import Beginning, ModelState, beginning_of, left_out
from services.trainer.plan.drift import Drifts
from services.trainer.plan.triggers import MANUAL, Fire, Situation, Wait, decide
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
_LISTED_ROUNDS = 50
SCRATCH = "scratch"
Start = Literal["head", "scratch"] | Mapping[int, int]
_REFRESH_SECONDS = 30.0
"""How often everything is read again although no change was heard of."""


@dataclass
class _Tracked:
    """One model, as far as the planner has followed it."""

    state: ModelState
    backlog: Backlog = field(default_factory=Backlog)
    is_stale: bool = False
    waiting: Wait = field(default_factory=lambda: Wait("starting"))
    drift: str = ""
    """Of what waits, as Drifts says; "" where nobody asked."""


@dataclass(frozen=True)
class _Log:
    """The stream's topic at this moment."""

    start: Position
    end: Position


class Planner:
    """`run` is the loop, `plan_now` and `status` may be called from any thread.

    Args:
        on_planned: told of each round planned here, so that it is leased at once.
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
        self._code_digest = lineage.code_digest()
        self._lock = threading.RLock()
        self._tracked: dict[str, _Tracked] = {}
        self._definitions: dict[str, Definition] = {}
        self._ends: dict[tuple[str, int], Mapping[int, int]] = {}
        self._damaged: dict[str, str] = {}
        """By stream, what of the log cannot be read."""
        self._faults: dict[str, str] = {}
        self._counted: dict[str, Any] = {}
        self._counts = RangeCounts(log)
        self._drifts = Drifts(registry, log, clock)
        self._reasons: dict[tuple[str, int], str] = {}
        self._refresh_at = 0.0
        self._snapshot: tuple[dict[str, Any], ...] = ()
        self._changes: set[tuple[ChangeKind, str]] = set()
        self._changes_lock = threading.Lock()
        self._wake = threading.Event()

    # what changes

    def wake(self) -> None:
        self._wake.set()

    def mark_stale(self, kind: ChangeKind, name: str) -> None:
        """Something in the registry has changed: read it again at the next turn. From any thread, never waits long."""
        with self._changes_lock:
            self._changes.add((kind, name))
        self._wake.set()

    def run(self, stop: Stop) -> None:
        while not stop.is_requested():
            try:
                self.turn()
            except Exception:
                logger.exception("planning failed unexpectedly")
            self._wake.wait(self._settings.poll_interval_seconds)
            self._wake.clear()

    def turn(self) -> None:
        """Looks once at everything and plans what is due."""
        with self._lock:
            if not self._refresh():
                return
            if not self._tracked:
                self._health.satisfy("event_log")  # nothing asks for it yet
            logs: dict[str, _Log | str] = {}
            for tracked in self._tracked.values():
                stream = tracked.state.model.stream
                if stream not in logs:
                    logs[stream] = self._look(stream)
                self._consider(tracked, self._faults.get(tracked.state.model.name) or logs[stream])
            self._snapshot = tuple(_status_of(tracked) for _, tracked in sorted(self._tracked.items()))

    # doors

    def plan_now(
        self, name: str, *, by: str, reason: str, start: Start = "head", allow_signature_change: bool = False
    ) -> Round:
        """Plans a round because somebody asks.

        Args:
            start: "head": over what is new; "scratch": from nothing, over the log from its start; {partition: offset}:
                from there on, what lies before is left out. Offsets before the head's end would be learned twice.
            allow_signature_change: the version may break the signatures of the one before it.

        Raises:
            NotFound: no such model.
            Conflict: there is nothing new, or a round of the model is open.
            Unavailable: the log or the registry is away.
        """
        with self._lock:
            tracked = self._tracked.get(name) or _Tracked(self._read(name))
            tracked.state = self._read(name)
            tracked.is_stale = True
            self._tracked[name] = tracked
            if tracked.state.open_round is not None:
                raise Conflict(f"{name} has a round already: {_shown(tracked.state.open_round)}")
            log = self._look(tracked.state.model.stream)
            if isinstance(log, str):
                raise Conflict(f"no round of {name} can be planned: {log}")
            if tracked.state.model.paused or tracked.state.model.archived:
                raise Conflict(f"no round of {name} can be planned: {_stopped(tracked.state.model)}")
            if start == "scratch":
                tracked = _Tracked(tracked.state)  # with a backlog of its own: the other one goes on from the head
                beginning = Beginning(log.start, log.start, log.start)
            else:
                beginning, _ = self._count(tracked, log)
                beginning = beginning if start == "head" else _from_chosen(beginning, start, log.end)
            tracked.backlog.start_at(beginning.begin)
            tracked.backlog.advance(self._log, examples_topic(tracked.state.model.stream), log.end)
            fresh = tracked.backlog.examples_from(beginning.judged_to)
            decision = decide(tracked.state.definition.triggers, self._situation(tracked, fresh, asked_for=True))
            if isinstance(decision, Wait):
                raise Conflict(f"no round of {name} is due: {decision.reason}")
            asked: dict[str, Any] = {"by": by, "reason": reason} | ({} if start == "head" else {"from": start})
            asked |= {ALLOW_SIGNATURE_CHANGE: True} if allow_signature_change else {}
            return self._plan(tracked, log, beginning, decision, requested=asked)

    def known_models(self) -> list[str]:
        return list(self._tracked)

    def status(self) -> list[dict[str, Any]]:
        """Per model, as of the last turn: lag in examples, the open round, what the next one waits for."""
        return list(self._snapshot)

    def counted(self) -> dict[str, Any]:
        """By model, for reports: what the log holds beyond the head, as of the last turn."""
        return dict(self._counted)

    def faults(self) -> dict[str, str]:
        """Models that cannot be planned for, with the reason."""
        return dict(self._faults)

    # reading

    def _refresh(self) -> bool:
        """Reads again what has changed; False when the registry is away."""
        with self._changes_lock:
            changes, self._changes = self._changes, set()
        for kind, name in changes:
            self._mark(kind, name)
        try:
            if self._clock() >= self._refresh_at:
                self._read_all()
            for name, tracked in self._tracked.items():
                if tracked.is_stale:
                    tracked.is_stale = False
                    self._read_one(name)
        except (Unavailable, Overloaded) as error:
            self._health.fail("registry", error.message)
            self._refresh_at = 0.0
            return False
        self._health.satisfy("registry")
        return True

    def _mark(self, kind: ChangeKind, name: str) -> None:
        if kind is ChangeKind.RESET or (kind is not ChangeKind.STREAM and name not in self._tracked):
            self._refresh_at = 0.0
        for model, tracked in self._tracked.items():
            if name == (tracked.state.model.stream if kind is ChangeKind.STREAM else model):
                tracked.is_stale = True

    def _read_all(self) -> None:
        names = [model.name for model in self._registry.list_models()]
        for name in names:
            self._read_one(name)
        self._refresh_at = self._clock() + _REFRESH_SECONDS

    def _read_one(self, name: str) -> None:
        try:
            state = self._read(name)
        except (InvalidInput, NotFound, DataLoss) as error:
            if self._faults.get(name) != error.message:
                logger.error("a model cannot be planned for", extra={"model": name, "error": error.message})
            self._faults[name] = error.message
            return
        self._faults.pop(name, None)
        if name in self._tracked:
            self._tracked[name].state = state
        else:
            self._tracked[name] = _Tracked(state)

    def _read(self, name: str) -> ModelState:
        model = self._registry.get_model(name)
        if model.definition_digest not in self._definitions:
            files = self._registry.get_definition(model.definition_digest)
            self._definitions[model.definition_digest] = parse_definition(files)
        stream = self._registry.get_stream(model.stream)
        self._log.attach(model.stream, Schema.from_json(stream.schema_json))
        listed = self._registry.list_rounds(name, limit=_LISTED_ROUNDS)
        rounds = tuple(found for found in listed if found.plan.trigger != PUSHED)
        head = model.head_version
        if head and (name, head) not in self._ends:
            self._ends[name, head] = self._registry.get_version(name, head).end_position
        return ModelState(
            model=model,
            definition=self._definitions[model.definition_digest],
            schema_version=stream.schema_version,
            rounds=rounds,
            head_end=self._ends[name, head] if head else {},
        )

    def _look(self, stream: str) -> _Log | str:
        """The topic's start and end, or why there is none."""
        topic = examples_topic(stream)
        try:
            found = _Log(self._log.start_position(topic), self._log.end_position(topic))
        except NotFound:
            self._health.satisfy("event_log")
            return f"stream {stream} has no events yet"
        except DataLoss as error:
            self._note_damage(stream, error)
            return error.message
        except InvalidInput as error:
            return error.message
        except (Unavailable, Overloaded) as error:
            self._health.fail("event_log", error.message)
            return error.message
        if not self._damaged:
            self._health.satisfy("event_log")
        return found

    def _note_damage(self, stream: str, error: DataLoss) -> None:
        """Shown by /readyz until the stream can be read again: nothing that is damaged mends by itself."""
        self._damaged[stream] = error.message
        self._health.fail("event_log", "; ".join(self._damaged.values()))

    # deciding

    def _consider(self, tracked: _Tracked, log: _Log | str) -> None:
        if isinstance(log, str):
            tracked.waiting = Wait(log)
            return
        try:
            beginning, fresh = self._count(tracked, log)
            self._damaged.pop(tracked.state.model.stream, None)
            if tracked.state.open_round is not None:
                tracked.waiting = Wait(f"the end of {_shown(tracked.state.open_round)}")
                return
            if tracked.state.model.paused or tracked.state.model.archived:
                tracked.waiting = Wait(_stopped(tracked.state.model))
                return
            decision = decide(tracked.state.definition.triggers, self._situation(tracked, fresh))
            if isinstance(decision, Fire) and self._is_held_by_drift(tracked, beginning):
                decision = Wait(f"{tracked.drift}; it waits for somebody to ask for a round")
            if isinstance(decision, Wait):
                tracked.waiting = decision
                return
            self._plan(tracked, log, beginning, decision)
        except Conflict as error:
            logger.debug("somebody else was first", extra={"error": error.message})
            tracked.is_stale = True
        except HeadraceError as error:
            if isinstance(error, DataLoss):
                self._note_damage(tracked.state.model.stream, error)
            if tracked.waiting.reason != error.message:
                logger.warning(
                    "no round can be planned", extra={"model": tracked.state.model.name, "error": str(error)}
                )
            tracked.waiting = Wait(error.message)
            tracked.is_stale = True

    def _is_held_by_drift(self, tracked: _Tracked, beginning: Beginning) -> bool:
        """Looks how far what waits has drifted, where the definition says so."""
        state, triggers = tracked.state, tracked.state.definition.triggers
        tracked.drift = ""
        if triggers.on_drift == "ignore" or not state.head:
            return False
        waits = tracked.backlog.cut(beginning.judged_to, max_examples=triggers.max_round_examples)
        topic = examples_topic(state.model.stream)
        tracked.drift = self._drifts.reason(
            state.model.name, state.head, topic, waits.ranges, count=waits.example_count
        )
        if tracked.drift and tracked.waiting.reason.partition(";")[0] != tracked.drift:
            logger.warning("the events have drifted", extra={"model": state.model.name, "reason": tracked.drift})
        return bool(tracked.drift) and triggers.on_drift == "hold"

    def _count(self, tracked: _Tracked, log: _Log) -> tuple[Beginning, int]:
        """Where the next round begins and how many fresh examples there are; takes up what has come since."""
        beginning = beginning_of(tracked.state, log.start)
        name = tracked.state.model.name
        tracked.backlog.start_at(beginning.begin)
        tracked.backlog.advance(self._log, examples_topic(tracked.state.model.stream), log.end)
        metrics.LAG_EXAMPLES.labels(name).set(tracked.backlog.examples)
        fresh = tracked.backlog.examples_from(beginning.judged_to)
        self._note(tracked, beginning, log, fresh)
        return beginning, fresh

    def _note(self, tracked: _Tracked, beginning: Beginning, log: _Log, fresh: int) -> None:
        """Keeps for reports what lies beyond the head: waiting, judged before, and about to be left out."""
        state, topic = tracked.state, examples_topic(tracked.state.model.stream)
        reason = self._reason_of(state) if left_out(beginning) else ""
        self._counted[state.model.name] = {
            "head_version": state.head,
            "waiting": tracked.backlog.examples,
            "judged_before": tracked.backlog.examples - fresh,
            "left_out": entries_of(left_out(beginning), self._counts, topic, log.start, reason),
            "log_start": {str(partition): offset for partition, offset in log.start.items()},
            "log_end": {str(partition): offset for partition, offset in log.end.items()},
            "waiting_for": tracked.waiting.reason,
        }

    def _reason_of(self, state: ModelState) -> str:
        """Why events before the next round's beginning are left out; asked once per finished round."""
        finished = state.last_finished
        triggers = state.definition.triggers
        if triggers.on_failure == "leave_out" and state.model.consecutive_failures >= triggers.max_failures:
            return "failed"
        if finished is None or finished.version == state.head:
            return "retention"
        key = (state.model.name, finished.version)
        if key not in self._reasons:
            version = self._registry.get_version(*key)
            kinds = {Decision.PROMOTE: "rollback", Decision.CANARY: "canary", Decision.HOLD: "held"}
            self._reasons[key] = kinds.get(version.verdict.decision, "rejection")
        return self._reasons[key]

    def _situation(self, tracked: _Tracked, fresh: int, *, asked_for: bool = False) -> Situation:
        model, rounds = tracked.state.model, tracked.state.rounds
        return Situation(
            is_first=not tracked.state.head,
            failures=model.consecutive_failures,
            last_failure=model.last_failure,
            now=self._clock(),
            fresh_examples=fresh,
            last_planned_at=rounds[0].planned_at if rounds else model.created_at,
            has_planned=bool(rounds),
            retry_at=model.retry_at,
            asked_for=asked_for,
        )

    def _plan(
        self,
        tracked: _Tracked,
        log: _Log,
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
        drift = {"drift": tracked.drift} if tracked.drift else {}
        plan = self._plan_of(tracked.state, log, beginning, stretch, fired, requested=requested, notes=drift)
        planned = self._registry.plan_round(plan)
        tracked.state = _with_round(tracked.state, planned)
        tracked.waiting = Wait(f"the end of {_shown(planned)}")
        metrics.PLANS.labels(plan.model, fired.trigger).inc()
        logger.info(
            "round planned",
            extra={"round": planned.round_id, "trigger": fired.trigger, "examples": stretch.example_count}
            | ({"left_out": plan.configuration[SKIPPED]} if SKIPPED in plan.configuration else {})
            | dict(requested or {}),
        )
        self._on_planned()
        return planned

    def _plan_of(
        self,
        state: ModelState,
        log: _Log,
        beginning: Beginning,
        stretch: Stretch,
        fired: Fire,
        *,
        requested: Mapping[str, Any] | None,
        notes: Mapping[str, Any],
    ) -> RoundPlan:
        configuration = lineage.configuration_of(state.definition, self._settings)
        skipped = left_out(beginning)
        # What is left out, and who asked, are on record with the plan, but no part of what the digest names.
        notes = dict(notes)
        start = (requested or {}).get("from", "head")
        if skipped:
            topic, reason = examples_topic(state.model.stream), "chosen" if start != "head" else self._reason_of(state)
            notes[SKIPPED] = ranges_as_json(skipped)
            notes[LEFT_OUT] = entries_of(skipped, self._counts, topic, log.start, reason)
        if fired.trigger == MANUAL:
            notes["requested"] = dict(requested or {})
        if start == SCRATCH:
            notes |= {FROM_SCRATCH: True, HEAD_BEFORE: state.head}
        sequence = state.model.round_sequence + 1
        return RoundPlan(
            model=state.model.name,
            sequence=sequence,
            parent_version=0 if start == SCRATCH else state.head,
            stream=state.model.stream,
            schema_version=state.schema_version,
            ranges=stretch.ranges,
            definition_digest=state.model.definition_digest,
            configuration=configuration | notes,
            configuration_digest=lineage.digest_of(configuration),
            code_digest=self._code_digest,
            seed=lineage.seed_of(state.definition, sequence),
            example_count=stretch.example_count,
            trigger=fired.trigger,
            last_event_at=stretch.last_event_at,
        )


def _stopped(model: Model) -> str:
    return f"it is paused by {model.paused}" if model.paused else "it is archived"


def _from_chosen(beginning: Beginning, start: Mapping[int, int], log_end: Position) -> Beginning:
    """Raises InvalidInput for a position that is not in the log, or would be learned twice."""
    for partition, offset in start.items():
        end = log_end.get(partition)
        if end is None:
            raise InvalidInput(f"there is no partition {partition}; the log has {', '.join(map(str, sorted(log_end)))}")
        if not beginning.chain_end[partition] <= offset <= end:
            raise InvalidInput(
                f"partition {partition} can begin from {beginning.chain_end[partition]}, where the head of the model "
                f"ended, to {end}, where the log ends, not at {offset}; only `scratch` learns events again"
            )
    begin = {partition: start.get(partition, offset) for partition, offset in beginning.begin.items()}
    return Beginning(beginning.chain_end, begin, begin)


def _with_round(state: ModelState, planned: Round) -> ModelState:
    return ModelState(
        model=state.model,
        definition=state.definition,
        schema_version=state.schema_version,
        rounds=(planned, *state.rounds),
        head_end=state.head_end,
    )


def _shown(found: Round) -> str:
    return f"round {found.round_id} ({found.state})"


def _status_of(tracked: _Tracked) -> dict[str, Any]:
    model, open_round = tracked.state.model, tracked.state.open_round
    return {
        "model": model.name,
        "stream": model.stream,
        "production_version": model.aliases.get(PRODUCTION, 0),
        "newest_version": model.newest_version,
        "lag_examples": tracked.backlog.examples,
        "round": None if open_round is None else _round_status(open_round),
        "next_round": {"waiting_for": tracked.waiting.reason, "not_before": tracked.waiting.until},
        "backoff": {
            "consecutive_failures": model.consecutive_failures,
            "retry_at": model.retry_at,
            "last_failure": model.last_failure,
        },
    }


def _round_status(found: Round) -> dict[str, Any]:
    return {
        "round_id": found.round_id,
        "state": str(found.state),
        "trigger": found.plan.trigger,
        "examples": found.plan.example_count,
        "holder": found.lease_holder,
        "attempts": found.attempts,
        "planned_at": found.planned_at,
        "reason": found.reason,
        "progress": dict(found.progress),
    }
