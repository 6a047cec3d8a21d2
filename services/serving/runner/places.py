"""A version's calls go to a session of its own, or to a session that several versions of a program share.

A session costs the memory of the compiled graph, 10 MB for a model with many features. Of the versions in a shared
session there are the values of their variables and nothing else. Those of the requested version are put in before its
call, which takes microseconds whatever their size: values and variables are the same memory.
"""

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from services.serving.engines.platforms.loading import LoadedModel, TakesStates
from services.serving.wire.prediction import Arrays
from services.serving.wire.replica_state import Signature

_MOVE_SECONDS = 30.0


class Place:
    """The model that a version's batches are run with. It may be exchanged between two calls. Thread-safe."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.signatures: dict[str, Signature] = model.signatures
        self.callable_signatures = model.callable_signatures
        self._calls = 0
        self._changed = threading.Condition()

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        with self._changed:
            model = self.model
            self._calls += 1
        try:
            return model.run(signature, inputs, output_filter)
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def move(self, model: LoadedModel) -> bool:
        """Has later calls made with another model. False: earlier calls still run with the one before."""
        with self._changed:
            self.model = model
            return self._changed.wait_for(lambda: not self._calls, _MOVE_SECONDS)


class SharedSession:
    """Calls take turns."""

    def __init__(self, model: TakesStates) -> None:
        self.model = model
        self._turn = threading.Lock()
        self._holder: Parked | None = None

    def run(
        self, parked: "Parked", signature: str, inputs: Arrays, output_filter: tuple[str, ...]
    ) -> dict[str, np.ndarray]:
        with self._turn:
            if self._holder is not parked:
                self._holder = None
                self.model.put(parked.values)
                self._holder = parked
            return self.model.run(signature, inputs, output_filter)

    def forget(self, parked: "Parked") -> None:
        """Its values are not kept any more."""
        with self._turn:
            if self._holder is parked:
                self._holder = None


class Parked:
    """A version in a shared session. It leaves when nobody calls it any more."""

    def __init__(self, shared: SharedSession, values: Sequence[np.ndarray], like: LoadedModel) -> None:
        self.shared = shared
        self.values = values
        self.kind = f"{like.kind}, shared with other versions"
        self.reasons: Mapping[str, str] = like.reasons
        self.signatures = like.signatures
        self._callable = like.callable_signatures()

    def callable_signatures(self) -> tuple[str, ...]:
        return self._callable

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        return self.shared.run(self, signature, inputs, output_filter)
