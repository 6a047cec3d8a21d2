"""Lets only those calls through to an engine that it answers as TensorFlow does."""

import math
from collections.abc import Callable

import numpy as np

from services.serving.engines.candidate import Call, EngineRefused, Outputs
from services.serving.wire.prediction import Arrays, fits, numpy_type
from services.serving.wire.replica_state import Signature

GUARDED_KINDS = ("not finite", "negative")
"""Kinds of values that are recognised fast enough to send the calls that hold them to TensorFlow."""


class GuardedCall:
    """An engine's signature behind checks of shape and values. Thread-safe."""

    def __init__(
        self, signature: Signature, call: Call, guards: tuple[str, ...], rows: tuple[int, float] = (0, math.inf)
    ) -> None:
        """rows: batches from this size to that size go through."""
        self.guards = guards
        self._rows = rows
        self._call = call
        self._shapes = [(name, spec.shape) for name, spec in signature.inputs.items()]
        self._outputs = tuple(signature.outputs)
        kinds = {name: numpy_type(name, spec).kind for name, spec in signature.inputs.items()}
        self._checks: list[tuple[str, Callable[[np.ndarray], bool]]] = []
        if "not finite" in guards:
            self._checks += [(name, _is_finite) for name, kind in kinds.items() if kind == "f"]
        if "negative" in guards:
            self._checks += [
                (name, lambda array: bool(array.min() >= 0)) for name, kind in kinds.items() if kind == "i"
            ]

    def run(self, inputs: Arrays, outputs: tuple[str, ...] = ()) -> Outputs:
        """Runs it; empty `outputs` means all. Raises EngineRefused: TensorFlow should answer instead."""
        for name, shape in self._shapes:
            if not _fits(shape, inputs[name].shape):
                raise EngineRefused(f"{name} has another shape than in the signature, or no rows")
        shape = inputs[self._shapes[0][0]].shape if self._shapes else ()
        if shape and not self._rows[0] <= shape[0] <= self._rows[1]:
            raise EngineRefused("TensorFlow is faster with this many rows")
        for name, is_fine in self._checks:
            if not is_fine(inputs[name]):
                raise EngineRefused(f"{name} holds values on which the engines differ")
        return self._call(inputs, outputs or self._outputs)


def _fits(expected: tuple[int, ...] | None, shape: tuple[int, ...]) -> bool:
    """A shape that is not known must be as the probes' were."""
    return 0 not in shape and (len(shape) == 1 if expected is None else fits(expected, shape))


def _is_finite(array: np.ndarray) -> bool:
    """May say False for finite numbers whose squares are not; never True for others. One pass, no temporary array."""
    flat = array.ravel()
    return math.isfinite(np.vdot(flat, flat))
