"""The interface of an engine, and inputs made of a signature alone."""

from typing import Protocol

import numpy as np

from services.serving.wire.prediction import Arrays, numpy_type
from services.serving.wire.replica_state import Signature, TensorSpec


class Model(Protocol):
    """The interface of an engine."""

    signatures: dict[str, Signature]

    def callable_signatures(self) -> tuple[str, ...]:
        return tuple(self.signatures)

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]: ...


def warm_up_inputs(signature: Signature, batch_size: int) -> dict[str, np.ndarray]:
    """Zeros and empty strings that fit a signature; sizes that are not fixed are `batch_size` first, then 1. Raises
    RequestFailed: an input has a type that the queue cannot carry."""
    return {name: _zeros(name, spec, batch_size) for name, spec in signature.inputs.items()}


def _zeros(name: str, spec: TensorSpec, batch_size: int) -> np.ndarray:
    dtype = numpy_type(name, spec)
    sizes = spec.shape if spec.shape is not None else (-1,)
    shape = tuple(size if size >= 0 else (batch_size if axis == 0 else 1) for axis, size in enumerate(sizes))
    if dtype == np.dtype(object):
        return np.full(shape, b"", object)
    return np.zeros(shape, dtype)


def is_mergeable(signature: Signature) -> bool:
    """True when requests may share a call: every tensor has rows, as many as come."""
    specs = (*signature.inputs.values(), *signature.outputs.values())
    return bool(signature.inputs) and all(spec.shape is None or spec.shape[:1] == (-1,) for spec in specs)
