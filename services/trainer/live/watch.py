"""Watches the live quality of every model whose labels find their predictions, in a thread of its own.

Every trainer watches; the registry takes each step from one of them. The other trainers wait, and one of them takes
over from the stored state when the first has stopped.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from common.definition.model import parse_definition
from common.definition.rollout import labels_by
from common.errors import Conflict, HeadraceError, InvalidInput
from common.eventlog.base import EventLog
from common.late_labels import LateLabels
from common.process.beat import until_next
from common.process.lifecycle import Stop
from common.quality import OUTPUTS
from common.registry.catalog import PRODUCTION, Model
from common.registry.client import RegistryClient
from common.schema import Schema
from services.trainer.live.watched import Watched
from services.trainer.live.watching import Watching

logger = logging.getLogger(__name__)
_LOOK_SECONDS, _IDLE_SECONDS, _AGAIN_SECONDS = 0.5, 30.0, 5.0
"""Between two looks; where no model has such labels, unless the registry changes; after an error."""
_YIELD_SECONDS = 10.0
_MOST_STEPS = 20
"""Of a model before the next has its turn."""


@dataclass
class _Place:
    """Of a model. `seen`: the revision that another trainer stored, which goes on undisturbed until `until`."""

    watching: Watching | None = None
    digest: str = ""
    seen: int = -1
    until: float = 0.0


class LiveWatch:
    """`run` in a thread; `turn` is a single look. Call `wake` when the registry has changed."""

    def __init__(self, registry: RegistryClient, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry, self._log, self._clock = registry, log, clock
        self._places: dict[str, _Place] = {}
        self._definition = lru_cache(256)(lambda digest: parse_definition(registry.get_definition(digest)))
        self._held_up = ""
        """Why the last look ended before its time."""
        self._woken = threading.Event()

    def wake(self) -> None:
        """From any thread."""
        self._woken.set()

    def run(self, stop: Stop) -> None:
        while not stop.is_requested():
            self._woken.clear()
            pause_seconds = _AGAIN_SECONDS
            try:
                pause_seconds = _LOOK_SECONDS if self.turn() else _IDLE_SECONDS
                self._held_up = ""
            except HeadraceError as error:
                if error.message != self._held_up:
                    logger.warning("live quality of no model is measured", extra={"reason": error.message})
                self._held_up = error.message
            except Exception:
                logger.exception("watching live quality failed unexpectedly")
            self._woken.wait(until_next(pause_seconds))

    def turn(self) -> int:
        """Looks once at every model; how many have labels that find their prediction. Raises Unavailable."""
        live = [model for model in self._registry.list_models() if not model.archived and model.aliases.get(PRODUCTION)]
        schemas = {stream.name: _schema(stream.schema_json) for stream in self._registry.list_streams()}
        return sum(self._look(model, schemas[model.stream]) for model in live if model.stream in schemas)

    def _look(self, model: Model, schema: Schema) -> bool:
        """Whether its labels have a key. An error holds up no other model."""
        place = self._places.setdefault(model.name, _Place())
        try:
            keyed = schema.late_labels or self._labels_by(model, schema)
            if keyed and self._clock() >= place.until:
                self._look_at(model, schema, keyed, place)
            return bool(keyed)
        except Conflict as error:
            self._wait(place, _YIELD_SECONDS)
            logger.info("another trainer watches", extra={"model": model.name, "reason": error.message})
        except HeadraceError as error:
            self._wait(place, _AGAIN_SECONDS)
            logger.warning("live quality cannot be measured", extra={"model": model.name, "reason": error.message})
        except Exception:
            self._wait(place, _AGAIN_SECONDS)
            logger.exception("watching live quality failed unexpectedly", extra={"model": model.name})
        return True

    def _labels_by(self, model: Model, schema: Schema) -> LateLabels | None:
        try:
            return labels_by(self._definition(model.definition_digest).live, schema)
        except InvalidInput:  # of another release: the planner says so
            return None

    def _look_at(self, model: Model, schema: Schema, keyed: LateLabels, place: _Place) -> None:
        for _ in range(_MOST_STEPS):
            watching = self._watching(model, schema, keyed, place)
            if watching is None or not watching.turn(model, self._registry):
                return
            model = self._registry.get_model(model.name)

    def _wait(self, place: _Place, seconds: float) -> None:
        """What was read is thrown away: the next look begins with what is stored."""
        place.watching, place.seen, place.until = None, -1, self._clock() + seconds

    def _watching(self, model: Model, schema: Schema, keyed: LateLabels, place: _Place) -> Watching | None:
        """None: the model has no output that is measured, or another trainer watches it."""
        digest = f"{model.definition_digest} {schema.to_json()}"
        if place.watching is not None and place.digest == digest:
            return place.watching
        definition = self._definition(model.definition_digest)
        if definition.task not in OUTPUTS or definition.label not in {label.name for label in schema.labels}:
            return None
        stored = self._registry.get_evidence(model.name)
        if place.until and place.seen != stored.revision:
            place.seen, place.until = stored.revision, self._clock() + _YIELD_SECONDS
            return None
        watched = Watched(definition, schema, keyed)
        place.watching, place.digest = Watching(model.name, watched, self._log, stored), digest
        place.until, place.seen = 0.0, -1
        return place.watching


@lru_cache(maxsize=1000)
def _schema(text: str) -> Schema:
    return Schema.from_json(text)
