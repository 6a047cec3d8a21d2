"""The planner's view of models and logs: read again after changes, and now and then anyway."""

import logging
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from common.definition.model import parse_definition
from common.errors import DataLoss, InvalidInput, NotFound, Overloaded, Unavailable
from common.eventlog.sourced_log import SourcedLog
from common.eventlog.topics import examples_topic
from common.process.health import Health
from common.registry.catalog import ChangeKind, Model, Round, RoundState
from common.registry.client import RegistryClient
from common.registry.forgotten import NOTHING
from common.registry.plan_notes import PUSHED
from common.schema import Schema
from services.trainer.plan.chain import ModelState
from services.trainer.plan.tracked import LogBounds, Tracked

logger = logging.getLogger(__name__)
_LISTED_ROUNDS = 50
_REFRESH_SECONDS = 30.0
"""How often everything is read again although no change was heard of."""
_LIVE_SECONDS = 2.0


class Reading:
    """One thread reads at a time; `mark_stale` may be called from any.

    Args:
        on_new_log: a stream's log has another source.
    """

    def __init__(
        self,
        registry: RegistryClient,
        log: SourcedLog,
        health: Health,
        clock: Callable[[], float],
        *,
        on_new_log: Callable[[], None],
    ) -> None:
        self._registry, self._log, self._health, self._clock = registry, log, health, clock
        self._on_new_log = on_new_log
        self.tracked: dict[str, Tracked] = {}
        self.faults: dict[str, str] = {}
        """Models that cannot be planned for, with the reason."""
        self._definition = lru_cache(256)(lambda digest: parse_definition(registry.get_definition(digest)))
        self._ends: dict[tuple[str, int], Mapping[int, int]] = {}
        self._ended: dict[tuple[str, float], tuple[Round, ...]] = {}
        """By model, its name and when it was registered: the newest rounds behind which none is open, newest first."""
        self._damaged: dict[str, str] = {}
        """By stream, the fault of its log."""
        self._refresh_at = 0.0
        self._changes: set[tuple[ChangeKind, str]] = set()
        self._changes_lock = threading.Lock()

    def mark_stale(self, kind: ChangeKind, name: str) -> None:
        """Something in the registry has changed: it is read again at the next refresh. Never waits long."""
        with self._changes_lock:
            self._changes.add((kind, name))

    def again(self, name: str) -> Tracked:
        """The model as it is now, read once more at the next refresh. Raises NotFound, Unavailable."""
        state = self.read(name)
        found = self.tracked.setdefault(name, Tracked(state))
        found.state, found.is_stale = state, True
        return found

    def note_sound(self, stream: str) -> None:
        """The stream's log was read to its end."""
        self._damaged.pop(stream, None)

    def refresh(self) -> bool:
        """Reads changed models again; False when the registry is away."""
        with self._changes_lock:
            changes, self._changes = self._changes, set()
        for kind, name in changes:
            self._mark(kind, name)
        try:
            if self._clock() >= self._refresh_at:
                self._read_all()
            for name, tracked in self.tracked.items():
                if tracked.is_stale:
                    tracked.is_stale = False
                    self._read_model(name)
        except (Unavailable, Overloaded) as error:
            self._health.fail("registry", error.message)
            self._refresh_at = 0.0
            return False
        self._health.satisfy("registry")
        return True

    def _mark(self, kind: ChangeKind, name: str) -> None:
        if kind is ChangeKind.RESET or (kind is not ChangeKind.STREAM and name not in self.tracked):
            self._refresh_at = 0.0
        for model, tracked in self.tracked.items():
            if name == (tracked.state.model.stream if kind is ChangeKind.STREAM else model):
                tracked.is_stale = True

    def _read_all(self) -> None:
        self._ended.clear()
        names = [model.name for model in self._registry.list_models()]
        for name in {*self.tracked, *self.faults}.difference(names):  # deleted
            self.tracked.pop(name, None)
            self.faults.pop(name, None)
        for name in names:
            self._read_model(name)
        self._refresh_at = self._clock() + _REFRESH_SECONDS

    def _read_model(self, name: str) -> None:
        try:
            state = self.read(name)
        except (InvalidInput, NotFound, DataLoss) as error:
            if self.faults.get(name) != error.message:
                logger.error("a model cannot be planned for", extra={"model": name, "error": error.message})
            self.faults[name] = error.message
            if isinstance(error, NotFound):
                self._refresh_at = 0.0
            return
        self.faults.pop(name, None)
        known = self.tracked.get(name)
        if known is not None and known.state.log_name == state.log_name:
            known.state = state
        else:  # also a model with the name of a deleted model, of another log: it has none of the counts
            self.tracked[name] = Tracked(state)

    def read(self, name: str) -> ModelState:
        model = self._registry.get_model(name)
        stream = self._registry.get_stream(model.stream)
        schema, definition = Schema.from_json(stream.schema_json), self._definition(model.definition_digest)
        if self._log.attach(model.stream, schema, stream.log_name):
            self._on_new_log()
        rounds = tuple(found for found in self._newest_rounds(model) if found.plan.trigger != PUSHED)
        head = model.head_version
        if head and (name, head) not in self._ends:
            self._ends[name, head] = self._registry.get_version(name, head).end_position
        return ModelState(
            model=model,
            definition=definition,
            schema_version=stream.schema_version,
            rounds=rounds,
            head_end=self._ends[name, head] if head else {},
            log_name=stream.log_name,
            forgotten=self._registry.forgotten_by(name) if model.forgotten_examples else NOTHING,
            late_labels=schema.late_labels if definition.labels else None,
        )

    def _newest_rounds(self, model: Model) -> tuple[Round, ...]:
        """Newest first. Ended rounds stay as they are: only newer rounds are read."""
        known = self._ended.get((model.name, model.created_at), ())
        last = known[0].plan.sequence if known else 0
        newer = model.round_sequence - last
        found = self._registry.list_rounds(model.name, limit=min(newer, _LISTED_ROUNDS)) if newer > 0 else []
        if newer < 0 or (found and found[-1].plan.sequence > last + 1 and len(found) < _LISTED_ROUNDS):
            found, known = self._registry.list_rounds(model.name, limit=_LISTED_ROUNDS), ()
        listed = (*found, *known)[:_LISTED_ROUNDS]
        is_open = (RoundState.PLANNED, RoundState.RUNNING)
        opened = [place for place, entry in enumerate(listed) if entry.state in is_open]
        self._ended[model.name, model.created_at] = listed[opened[-1] + 1 :] if opened else listed
        return listed

    def look(self, stream: str) -> LogBounds | str:
        """The topic's start and end, or why there is none."""
        topic = examples_topic(stream)
        try:
            found = LogBounds(self._log.start_position(topic), self._log.end_position(topic))
        except NotFound:
            self._health.satisfy("event_log")
            return f"stream {stream} has no events yet"
        except DataLoss as error:
            self.note_damage(stream, error)
            return error.message
        except InvalidInput as error:
            return error.message
        except (Unavailable, Overloaded) as error:
            self._health.fail("event_log", error.message)
            return error.message
        if not self._damaged:
            self._health.satisfy("event_log")
        return found

    def note_damage(self, stream: str, error: DataLoss) -> None:
        """Shown by /readyz until the stream can be read again: nothing that is damaged mends by itself."""
        self._damaged[stream] = error.message
        self._health.fail("event_log", "; ".join(self._damaged.values()))


class Declines:
    """The evidence of production's live answers (triggers: quality, and drift: scores), as a trainer has stored it.

    Not thread-safe. Reads the registry at most every 2 s for the same model."""

    def __init__(self, registry: RegistryClient, clock: Callable[[], float]) -> None:
        self._registry, self._clock = registry, clock
        self._found: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def of(self, model: str, version: int, part: str) -> dict[str, Any]:
        """`part` quality: as Decline.shown of services/trainer/live/evidence.py, scores: as Scores.shown of scores.py
        there; {} where there is nothing. Raises Unavailable."""
        at, state = self._found.get(model, (0.0, {}))
        if self._clock() >= at + _LIVE_SECONDS:
            state = self._registry.get_evidence(model).state
            self._found[model] = (self._clock(), {name: state.get(name, {}) for name in ("quality", "scores")})
        found: dict[str, Any] = state.get(part, {}).get(str(version), {})
        return found
