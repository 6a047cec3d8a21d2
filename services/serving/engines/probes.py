"""Inputs to compare two engines on: the version's requests, and made-up inputs, ugly ones too."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from common.counted import counted
from services.serving.engines.warm_up import repeated
from services.serving.wire.prediction import Prediction, numpy_type
from services.serving.wire.replica_state import Signature, TensorSpec

Kind = Literal["plain", "not finite", "negative", "huge"]
_INNER_SIZES = (1, 5, 32)
"""Tried for dimensions after the first that are not fixed."""
_FEW_ROWS = 3
_MOST_RECORDED = 32
_SEED = 20
_HUGE = 2**40


@dataclass(frozen=True)
class Probe:
    """`label` describes it."""

    kind: Kind
    label: str
    inputs: dict[str, np.ndarray]


def make_probes(signature: Signature, recorded: Sequence[Prediction], sizes: Sequence[int]) -> Iterator[Probe]:
    """Plain inputs first, at every batch size; then values that a converter may treat differently. Raises
    RequestFailed: an input has a type that the queue cannot carry."""
    rng = np.random.default_rng(_SEED)
    has_rows = all(spec.shape is None or spec.shape[:1] == (-1,) for spec in signature.inputs.values())
    sizes = sorted({*sizes, _FEW_ROWS}) if has_rows else [1]
    for number, prediction in enumerate(recorded[:_MOST_RECORDED]):
        yield Probe("plain", f"recorded request {number}", dict(prediction.inputs))
        if has_rows and prediction.rows > 0:
            for size in sizes:
                yield Probe("plain", f"recorded request {number} as {counted(size, 'row')}", repeated(prediction, size))
    has_inner = any(size < 0 for spec in signature.inputs.values() for size in (spec.shape or ())[1:])
    inner_sizes = _INNER_SIZES if has_inner else _INNER_SIZES[:1]
    for inner in inner_sizes:
        for size in sizes:
            yield Probe("plain", f"zeros, {_words(size, inner)}", _made_up(signature, size, inner, None))
            yield Probe("plain", f"random values, {_words(size, inner)}", _made_up(signature, size, inner, rng))
    rows = _FEW_ROWS if has_rows else 1
    bases = [dict(prediction.inputs) for prediction in recorded[:1]]
    bases += [_made_up(signature, rows, inner, rng) for inner in inner_sizes]
    for base in bases:
        yield from _ugly(base)


def _ugly(base: dict[str, np.ndarray]) -> Iterator[Probe]:
    for name, array in base.items():
        if not array.size:
            continue
        values: tuple[tuple[Kind, float], ...] = ()
        if array.dtype.kind == "f":
            values = (("not finite", np.nan), ("not finite", np.inf), ("not finite", -np.inf), ("plain", -1e4))
        if array.dtype.kind == "i":
            values = (("negative", -1), ("huge", min(_HUGE, int(np.iinfo(array.dtype).max))))
        for kind, value in values:
            planted = array.copy()
            planted.flat[0] = planted.flat[-1] = value
            yield Probe(kind, f"{value:g} in {name}", base | {name: planted})


def _made_up(signature: Signature, rows: int, inner: int, rng: np.random.Generator | None) -> dict[str, np.ndarray]:
    """Zeros without `rng`; with it small numbers that most models take: normal ones, 0 and 1, true and false."""
    return {
        name: _array(numpy_type(name, spec), _shape(spec, rows, inner), rng) for name, spec in signature.inputs.items()
    }


def _array(dtype: "np.dtype[np.generic]", shape: tuple[int, ...], rng: np.random.Generator | None) -> np.ndarray:
    if rng is None:
        return np.zeros(shape, dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _shape(spec: TensorSpec, rows: int, inner: int) -> tuple[int, ...]:
    sizes = spec.shape if spec.shape is not None else (-1,)
    return tuple(size if size >= 0 else (rows if axis == 0 else inner) for axis, size in enumerate(sizes))


def _words(rows: int, inner: int) -> str:
    return f"{counted(rows, 'row')}" if inner == 1 else f"{counted(rows, 'row')} of {inner}"
