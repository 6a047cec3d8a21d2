"""A runner's versions: those of a program, each with variables of its own.

A version's variables go into a spare copy of the program's, in a thread of their own, large ones piece by piece; the
versions that answer go on meanwhile. The thread has the priority of theirs: with a lower, it would keep Python's lock
while it waits for a core, and they with it. The spare copy answers the version's warm-up requests. From then on
the manager may have the version answer a queue, between two batches. The version let go last becomes a spare copy, so
that going back to it costs nothing until other versions come. Where there are many, most share a copy (places.py).

A crash in here ends the runner, and with it every version that it holds: the manager has them loaded again.
"""

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.process.logs import logging_as_here
from common.process.memory import give_back_free_memory
from common.process.pace import Pace
from common.process.pressure import CorePressure, YieldingRate
from common.process.scheduling import LoadPriority
from services.serving.batching.input_contract import InputContract
from services.serving.batching.merge import Batcher
from services.serving.engines.platforms.loading import LoadedModel, TakesStates
from services.serving.engines.state_reader import SMALL_BYTES
from services.serving.engines.warm_up import dependent_signatures, warm_up
from services.serving.options.model_options import ModelOptions
from services.serving.runner.places import Parked, Place, SharedSession
from services.serving.wire.channel import ChannelClosed, Message
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed

logger = logging.getLogger(__name__)
_DEPENDENT = "rows of {} depend on each other (output {}): each request is a call of its own"
_STATE_FOLDER = "variables"
_FASTEST_BYTES_PER_SECOND, _SLOWEST_BYTES_PER_SECOND, _MOST_TAKE_SECONDS = 1e9, 1e8, 10.0
"""A second's 100 MB take a twentieth of a core. Large states are not slower than these seconds."""
_OWN_SESSIONS = 3
"""Versions of a program with a session each; the others share a session."""
_Files = tuple[tuple[str, int, int, int], ...]
Send = Callable[[Message], None]
"""Sends a message to the manager; raises ChannelClosed."""


@dataclass(frozen=True)
class Held:
    """A version that has answered its warm-up requests."""

    version: int
    place: Place
    batcher: Batcher
    notes: tuple[str, ...]
    files: _Files


class States:
    """`load` and `drop` return at once; their results go to the manager: {"event": "ready", "version", ...}
    or {"event": "failed", "version", "code", "message"}, and {"event": "dropped", "version"}."""

    def __init__(
        self,
        first: Held,
        *,
        origin: LoadedModel,
        contract: InputContract,
        options: ModelOptions,
        priority: LoadPriority,
        send: Send,
    ) -> None:
        """origin: the program as it was loaded; `first` may be a copy of it."""
        self._origin = origin
        self._contract = contract
        self._options = options
        self._priority = priority
        self._send = send
        self._held = {first.version: first}
        self._spares: list[TakesStates] = []
        """The copy let go last at the end."""
        self._let_go: Held | None = None
        """The version whose variables the last spare copy has."""
        self._shared: SharedSession | None = None
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_stopped = False
        self.batchers: dict[int, Batcher] = {first.version: first.batcher}
        """By version; read by other threads."""

    def start(self) -> None:
        threading.Thread(target=logging_as_here(self._run), name="states", daemon=True).start()

    def stop(self) -> None:
        """Gives the memory of every version back: no queue is read for any. Returns before that is done."""
        self._orders.put(self._let_all_go)

    def load(self, version: int, directory: Path) -> None:
        """Has the variables of a version of this program taken from its folder."""
        self._orders.put(lambda: self._load(version, directory))

    def drop(self, version: int) -> None:
        """Lets go of a version that no queue is read for any more."""
        self._orders.put(lambda: self._drop(version))

    def reports(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The work of each version."""
        for version, batcher in tuple(self.batchers.items()):
            yield version, batcher.report()

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._orders.get()()
                if self._orders.empty() and not self._is_stopped:
                    self._make_ahead()
        except ChannelClosed:
            logger.info("the manager is gone")

    def _load(self, version: int, directory: Path) -> None:
        started = time.monotonic()
        try:
            held = self._taken(version, directory)
        except RequestFailed as error:
            self._send({"event": "failed", "version": version, "code": error.code, "message": error.message})
            return
        except Exception as error:  # the answering versions must not end with it
            logger.exception("a version's variables could not be taken")
            message = f"cannot load {directory.name}: {type(error).__name__}: {error}"
            self._send({"event": "failed", "version": version, "code": Code.INTERNAL, "message": message})
            return
        self._held[version] = held
        self.batchers[version] = held.batcher
        self._send(
            {"event": "ready", "version": version, "loaded": "state"}
            | described(held, priority=self._priority, since=started)
        )

    def _taken(self, version: int, directory: Path) -> Held:
        before = self._let_go
        if before is not None and (before.version, before.files) == (version, files_of_state(directory)):
            self._spares.pop()
            self._let_go = None
            return before
        if not self._spares:
            self._spares.append(self._room(directory) or copy_of(self._origin))
        spare = self._spares[0]
        if len(self._spares) == 1:
            self._let_go = None
        spare.take(directory, pace_of(directory))
        held = held_of(spare, version=version, directory=directory, options=self._options, contract=self._contract)
        self._spares.remove(spare)
        return held

    def _make_ahead(self) -> None:
        """A spare copy for the next version, where versions come and few have been made."""
        own = [held for held in self._held.values() if isinstance(held.place.model, TakesStates)]
        if self._spares or not 1 < len(own) <= _OWN_SESSIONS or not all(map(_is_small, own)):
            return
        try:
            self._spares.append(copy_of(self._origin))
        except Exception as error:  # the next version makes its own, and reports a failure
            logger.warning("no spare copy of a program", extra={"reason": f"{type(error).__name__}: {error}"})

    def _room(self, directory: Path) -> TakesStates | None:
        """Where enough versions have sessions of their own, the copy of the version with the fewest requests: it joins
        the shared session. None: there are few, or it cannot."""
        own = [held for held in self._held.values() if isinstance(held.place.model, TakesStates)]
        if len(own) < _OWN_SESSIONS:
            return None
        least = min(own, key=lambda held: int(held.batcher.report()["requests"]))
        model = least.place.model
        assert isinstance(model, TakesStates)
        values = model.values()
        if values is None:
            return None
        if self._shared is None:
            shared = copy_of(self._origin)
            shared.take(directory)  # fills its tables
            self._shared = SharedSession(shared)
        is_free = least.place.move(Parked(self._shared, values, model))
        return model if is_free else None

    def _drop(self, version: int) -> None:
        """Its copy becomes a spare; a copy without room gives its memory back."""
        held = self._held.pop(version, None)
        if held is not None:
            del self.batchers[version]
            surplus = self._leave_shared(held.place.model) if isinstance(held.place.model, Parked) else None
            if isinstance(held.place.model, TakesStates):
                self._spares.append(held.place.model)
                self._let_go = held
                kept = 2 if _is_small(held) else 1
                surplus = self._spares.pop(0) if len(self._spares) > kept else None
            if surplus is not None:
                surplus.close()
                give_back_free_memory()
        self._send({"event": "dropped", "version": version})

    def _let_all_go(self) -> None:
        self._is_stopped = True
        parked = [held.place.model for held in self._held.values() if isinstance(held.place.model, Parked)]
        own = [held.place.model for held in self._held.values() if isinstance(held.place.model, TakesStates)]
        for copy in parked:
            copy.shared.forget(copy)
        for model in [*own, *self._spares, *([self._shared.model] if self._shared else [])]:
            model.close()
        self._held.clear()
        self._spares.clear()
        self.batchers.clear()
        self._let_go = self._shared = None
        give_back_free_memory()

    def _leave_shared(self, parked: Parked) -> TakesStates | None:
        """The copy that this model's versions share, where this was the last of them in it."""
        others = [held.place.model for held in self._held.values() if isinstance(held.place.model, Parked)]
        parked.shared.forget(parked)
        if self._shared is None or any(other.shared is self._shared for other in others):
            return None
        shared, self._shared = self._shared, None
        return shared.model


def copy_of(origin: LoadedModel) -> TakesStates:
    """Another session over a program that takes states, without values yet."""
    assert isinstance(origin, TakesStates)
    made = origin.beside()
    made.signatures = origin.signatures
    return made


def pace_of(directory: Path) -> Pace | None:
    """How fast a version's variables are taken beside versions that answer. None: they are few, and taken at once."""
    size_bytes = _size_of(files_of_state(directory))
    if size_bytes <= SMALL_BYTES:
        return None
    least = max(_SLOWEST_BYTES_PER_SECOND, size_bytes / _MOST_TAKE_SECONDS)
    return Pace(YieldingRate(max(_FASTEST_BYTES_PER_SECOND, least), least, share=_pressure().share))


@functools.cache
def _pressure() -> CorePressure:
    """Of this process: a new reading would begin with no pressure, and a version at full speed."""
    return CorePressure()


def _is_small(held: Held) -> bool:
    """Of such versions two spare copies are kept, since a version may come while the one before it is being swapped in,
    and a copy is made ahead of the next version, since that takes half a second or more."""
    return _size_of(held.files) <= SMALL_BYTES


def _size_of(files: _Files) -> int:
    return sum(size for _, _, size, _ in files)


def held_of(
    model: LoadedModel,
    *,
    version: int,
    directory: Path,
    options: ModelOptions,
    contract: InputContract,
) -> Held:
    """Has a model that is loaded answer the version's warm-up requests. Raises RequestFailed: the version's own
    requests cannot be read, or a request fails."""
    notes = warm_up(model, directory, options)
    dependent = dependent_signatures(model, directory, options)
    place = Place(model)
    batcher = Batcher(place, version=version, options=options.batching, contract=contract, alone=dependent)
    notes += [_DEPENDENT.format(name, output) for name, output in dependent.items()]
    return Held(version, place, batcher, tuple(notes), files_of_state(directory))


def described(held: Held, *, priority: LoadPriority, since: float) -> dict[str, Any]:
    """The message to the manager about a version that is ready. since: monotonic seconds."""
    model = held.place.model
    return {
        "signatures": {key: asdict(signature) for key, signature in held.batcher.signatures(model.signatures).items()},
        "engine": model.kind,
        "engine_reasons": dict(model.reasons),
        "load_priority": priority,
        "load_seconds": time.monotonic() - since,
        "notes": list(held.notes),
    }


def files_of_state(directory: Path) -> _Files:
    """Which files a version's variables are in. A version never changes; files that are put in the place of damaged
    ones, or by an operator, are others."""
    found = [(path.name, path.stat()) for path in sorted((directory / _STATE_FOLDER).glob("*"))]
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in found)
