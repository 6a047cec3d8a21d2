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
    rows = min(examples.count, _MOST_ROWS)
    batch = [
        {name: values[:rows] for name, values in part.items()}
        for part in (examples.columns, examples.labels, examples.weights)
    ]
    compiled = _compiled(model)
    kept = [(variable, variable.numpy()) for variable in (*model.network.non_trainable_variables, model.seed_state)]

    def evaluated(*, gradients: bool = False) -> Any:
        found = compiled[gradients](*batch)
        for variable, value in kept:
            variable.assign(value)
        return [gradient.numpy() for gradient in found] if gradients else float(found)

    facts = {"tolerance": tolerance, "examples": rows}
    if not _is_finite(evaluated):
        return {**facts, "variables": 0, "largest_difference": 0.0, "differing": {}}
    random = np.random.default_rng(seed)
    variables = model.network.trainable_variables
    found = {
        variable.path: max(_slopes(variable, gradient.astype(np.float64), evaluated, random), key=_difference)
        for variable, gradient in zip(variables, evaluated(gradients=True), strict=True)
    }
    return {
        **facts, "variables": len(variables),
        "largest_difference": round(max(map(_difference, found.values())), 6),
        "differing": {
            path: {"analytic": analytic, "numeric": numeric}
            for path, (analytic, numeric, _) in found.items()
            if _difference((analytic, numeric, _)) > tolerance
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


def _compiled(model: BuiltModel) -> dict[bool, Callable[..., Any]]:
    """By whether it gives gradients, or the loss."""
    specs = (
        model.column_specs(),
        model.label_specs(),
        {head.name: tf.TensorSpec([None], tf.float32) for head in model.heads},
    )

    def loss(*batch: Any) -> tf.Tensor:
        return model.loss_and_added(*batch)[0]

    def gradients(*batch: Any) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            value = loss(*batch)
        variables = [variable.value for variable in model.network.trainable_variables]
        found = tape.gradient(value, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(gradient) for gradient in found]

    return {False: model.compiled(loss, *specs), True: model.compiled(gradients, *specs)}


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
