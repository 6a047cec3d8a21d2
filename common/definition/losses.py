"""Losses by their names in Keras: which task each teaches, what it takes, and which options it has.

The class of the same name in keras.losses computes it, one value per example; a test holds this table to Keras's own
signatures. Keras has no quantile loss: that formula is ours (services/trainer/families/losses.py names its source).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from common.definition.fields import Fields
from common.errors import InvalidInput
from common.suggestions import did_you_mean

Task = Literal["binary", "multiclass", "multilabel", "regression", "vector_regression", "count", "quantiles"]
TASKS: tuple[Task, ...] = (
    "binary", "multiclass", "multilabel", "regression", "vector_regression", "count", "quantiles",
)  # fmt: skip
_YES_NO: tuple[Task, ...] = ("binary", "multilabel")
_CLASSES: tuple[Task, ...] = ("binary", "multiclass", "multilabel")
_NUMBERS: tuple[Task, ...] = ("regression", "vector_regression")


@dataclass(frozen=True)
class LossKind:
    """Attributes:
    keras_class: in keras.losses; empty: own code.
    tasks: that it can teach.
    takes: of what the network gives: the logits or scores as they are; probabilities; or the predictions.
    numbers: options that are numbers, each with the least it may be.
    flags: options that are true or false.
    can_smooth: a cross-entropy, whose labels `label_smoothing` may soften.
    """

    keras_class: str
    tasks: tuple[Task, ...]
    takes: Literal["logits", "scores", "probabilities", "predictions"]
    numbers: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    can_smooth: bool = False


LOSSES: Mapping[str, LossKind] = {
    "binary_crossentropy": LossKind("BinaryCrossentropy", _YES_NO, "logits", can_smooth=True),
    "binary_focal_crossentropy": LossKind(
        "BinaryFocalCrossentropy", _YES_NO, "logits", {"gamma": 0.0, "alpha": 0.0}, ("apply_class_balancing",),
        can_smooth=True,
    ),
    "sparse_categorical_crossentropy": LossKind(
        "SparseCategoricalCrossentropy", ("multiclass",), "logits", can_smooth=True
    ),
    "categorical_crossentropy": LossKind("CategoricalCrossentropy", ("multiclass",), "logits", can_smooth=True),
    "categorical_focal_crossentropy": LossKind(
        "CategoricalFocalCrossentropy", ("multiclass",), "logits", {"gamma": 0.0, "alpha": 0.0}, can_smooth=True
    ),
    "hinge": LossKind("Hinge", _YES_NO, "scores"),
    "squared_hinge": LossKind("SquaredHinge", _YES_NO, "scores"),
    "categorical_hinge": LossKind("CategoricalHinge", ("multiclass",), "scores"),
    "kl_divergence": LossKind("KLDivergence", ("multiclass",), "probabilities"),
    "dice": LossKind("Dice", ("multiclass", "multilabel"), "probabilities"),
    "tversky": LossKind(
        "Tversky", ("multiclass", "multilabel"), "probabilities", {"alpha": 0.0, "beta": 0.0}
    ),
    "mean_squared_error": LossKind("MeanSquaredError", (*_NUMBERS, *_CLASSES), "probabilities"),
    "mean_absolute_error": LossKind("MeanAbsoluteError", (*_NUMBERS, *_CLASSES), "probabilities"),
    "mean_absolute_percentage_error": LossKind("MeanAbsolutePercentageError", _NUMBERS, "predictions"),
    "mean_squared_logarithmic_error": LossKind("MeanSquaredLogarithmicError", (*_NUMBERS, "count"), "predictions"),
    "huber": LossKind("Huber", _NUMBERS, "predictions", {"delta": 1e-12}),
    "log_cosh": LossKind("LogCosh", _NUMBERS, "predictions"),
    "cosine_similarity": LossKind("CosineSimilarity", ("vector_regression",), "predictions"),
    "poisson": LossKind("Poisson", ("count",), "predictions"),
    "quantile": LossKind("", ("quantiles", "regression"), "predictions", {"level": 0.0}),
}  # fmt: skip
DEFAULT_LOSSES: Mapping[Task, str] = {
    "binary": "binary_crossentropy",
    "multiclass": "sparse_categorical_crossentropy",
    "multilabel": "binary_crossentropy",
    "regression": "mean_squared_error",
    "vector_regression": "mean_squared_error",
    "count": "poisson",
    "quantiles": "quantile",
}
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "crossentropy": ("binary_crossentropy", "sparse_categorical_crossentropy"),
    "cross_entropy": ("binary_crossentropy", "sparse_categorical_crossentropy"),
    "focal": ("binary_focal_crossentropy", "categorical_focal_crossentropy"),
    "mse": ("mean_squared_error",),
    "mae": ("mean_absolute_error",),
    "mape": ("mean_absolute_percentage_error",),
    "msle": ("mean_squared_logarithmic_error",),
    "logcosh": ("log_cosh",),
    "pinball": ("quantile",),
}
"""Short names; of several the one that teaches the task."""


@dataclass(frozen=True)
class Loss:
    """A name of LOSSES, and the options that were given."""

    name: str
    options: Mapping[str, float | bool] = field(default_factory=dict)

    @property
    def kind(self) -> LossKind:
        return LOSSES[self.name]


def read_loss(section: object, task: Task, where: str) -> Loss:
    """`focal`, or `{name: focal, gamma: 2}`.

    Raises:
        InvalidInput: no such loss, one that cannot teach the task, or an option that it has not.
    """
    fields = Fields(f"{where}: loss", {"name": section} if isinstance(section, str) else section)
    name = _known(fields.text("name"), task, where)
    kind = LOSSES[name]
    options: dict[str, float | bool] = {
        option: fields.number(option, minimum=least) for option, least in kind.numbers.items() if fields.has(option)
    }
    options |= {option: fields.flag(option) for option in kind.flags if fields.has(option)}
    fields.finish()
    loss = Loss(name, options)
    _check_level(loss, task, where)
    return loss


def _known(name: str, task: Task, where: str) -> str:
    fitting = [known for known, kind in LOSSES.items() if task in kind.tasks]
    for meant in _ALIASES.get(name, (name,)):
        if meant in fitting:
            return meant
    expected = f"a {task} head has one of {', '.join(fitting)}"
    if name in LOSSES or name in _ALIASES:
        raise InvalidInput(f"{where}: loss {name} cannot teach a {task} head; {expected}")
    raise InvalidInput(f"{where}: there is no loss {name!r}; {expected}{did_you_mean([name], [*LOSSES, *_ALIASES])}")


def _check_level(loss: Loss, task: Task, where: str) -> None:
    if loss.name != "quantile":
        return
    level = loss.options.get("level")
    if task == "quantiles" and level is not None:
        raise InvalidInput(f"{where}: loss level belongs to a regression; a quantiles head lists its levels")
    if task == "regression" and (level is None or not 0.0 < level < 1.0):
        raise InvalidInput(f"{where}: loss quantile needs level, a number above 0 and below 1, got {level!r}")
