"""Gradients against finite differences (`training.check_gradients`): what TensorFlow differentiates, and what the loss
does when a variable is moved.

Each trainable variable is moved along its gradient and along random directions, by several lengths, both ways; where
no length brings the two within the tolerance they differ. A stopped or overridden gradient differs: a round warns of it
and goes on.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.families.model import BuiltModel
from services.trainer.families.port import TrainingSet

_MOST_ROWS, _RANDOM_DIRECTIONS = 64, 3
_LENGTHS = (3e-2, 1e-2, 3e-3)
"""Of a move, over the variable's norm where that is above 1."""
_ROUNDING = 8 * float(np.finfo(np.float32).eps)
"""Of a loss, over its size where that is above 1."""
Vector = NDArray[np.float64]


def check_gradients(model: BuiltModel, examples: TrainingSet, *, tolerance: float, seed: int) -> dict[str, Any]:
    """JSON-ready: how many variables and examples, the largest difference of all directions over the larger of the two
    slopes, and by path of a variable that differs the two slopes in its worst direction.

    Moving statistics and generators of random numbers are as before when it returns.
    """
    examples = examples.first(_MOST_ROWS)
    loss, gradients = _compiled(model)

    def evaluated() -> float:
        with model.unmoved():
            return float(loss(*examples.parts))

    facts = {"tolerance": tolerance, "examples": examples.count}
    if not _is_finite(evaluated):
        return {**facts, "variables": 0, "largest_difference": 0.0, "differing": {}}
    random = np.random.default_rng(seed)
    variables = model.network.trainable_variables
    with model.unmoved():
        analytic = [gradient.numpy().astype(np.float64) for gradient in gradients(*examples.parts)]
    found = {
        variable.path: max(_slopes(variable, gradient, evaluated, random), key=_difference)
        for variable, gradient in zip(variables, analytic, strict=True)
    }
    return {
        **facts, "variables": len(variables),
        "largest_difference": round(max(map(_difference, found.values())), 6),
        "differing": {
            path: {"analytic": slopes[0], "numeric": slopes[1]}
            for path, slopes in found.items()
            if _difference(slopes) > tolerance
        },
    }  # fmt: skip


def warnings_of(course: Mapping[str, Any]) -> dict[str, str]:
    """Of a round's course, where gradients were checked in it."""
    facts = course.get("gradients")
    if facts and not facts["variables"]:
        return {"gradients": f"not checked: the first {facts['examples']} examples have no finite loss together"}
    differing = facts["differing"] if facts else {}
    slopes = (
        f"{path} {difference['analytic']:.3g} for {difference['numeric']:.3g}" for path, difference in differing.items()
    )
    listed = "; ".join(slopes)
    return {"gradients": f"the slope of the loss is not what its gradient says: {listed}"} if listed else {}


def _is_finite(loss: Callable[[], float]) -> bool:
    """False where a layer refuses an example as well: the steps set it aside."""
    try:
        return bool(np.isfinite(loss()))
    except tf.errors.InvalidArgumentError:
        return False


def _compiled(model: BuiltModel) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The loss, and its gradients."""

    def gradients(*batch: Any) -> list[tf.Tensor]:
        variables = model.network.trainable_variables
        found = zip(model.differentiated(batch, variables)[2], variables, strict=True)
        return [
            tf.zeros_like(variable.value) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in found
        ]

    specs = model.batch_specs()
    return model.compiled(lambda *batch: model.loss(*batch), *specs), model.compiled(gradients, *specs)


def _slopes(
    variable: keras.Variable, gradient: Vector, loss: Callable[[], float], random: np.random.Generator
) -> Iterator[tuple[float, float, float]]:
    """For each direction the slope by the gradient, by the loss, and what rounding may make of the latter."""
    at = variable.numpy()
    scale = max(1.0, float(np.linalg.norm(at)))
    directions = [gradient, *(random.normal(size=at.shape) for _ in range(_RANDOM_DIRECTIONS))]
    for direction in directions:
        size = float(np.linalg.norm(direction))
        if not size:
            continue
        unit = direction / size
        tried = []
        for length in (share * scale for share in _LENGTHS):
            ends = []
            for sign in (1.0, -1.0):
                variable.assign((at + sign * length * unit).astype(at.dtype))
                ends.append(loss())
            rounding = _ROUNDING * max(1.0, abs(ends[0])) / length
            numeric = float(np.nan_to_num((ends[0] - ends[1]) / (2 * length)))
            tried.append((float(np.sum(gradient * unit)), numeric, rounding))
        variable.assign(at)
        yield min(tried, key=_difference)


def _difference(slopes: tuple[float, float, float]) -> float:
    """Beyond rounding, over the larger of the two."""
    analytic, numeric, rounding = slopes
    return max(0.0, abs(analytic - numeric) - rounding) / max(abs(analytic), abs(numeric), rounding)
