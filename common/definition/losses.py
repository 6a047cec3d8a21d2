"""Losses by their names in Keras: which task each teaches, and what it takes of what the network gives.

Names and options are those of keras_names.py, which is written from Keras's own signatures; this file adds what Keras
does not say. Keras has no quantile loss, no sampled softmax, none of the order of a group, and of pairs only the
circle loss: the others are ours (families/losses.py and retrieval.py name their sources).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from common.definition import keras_names
from common.definition.fields import Fields
from common.definition.keras_names import KerasName, Option, Value, read_options
from common.errors import InvalidInput
from common.suggestions import did_you_mean

Task = Literal[
    "binary", "multiclass", "multilabel", "regression", "vector_regression", "count", "quantiles", "ranking",
    "embedding", "retrieval",
]  # fmt: skip
TASKS: tuple[Task, ...] = (
    "binary", "multiclass", "multilabel", "regression", "vector_regression", "count", "quantiles",
    "ranking", "embedding",
)  # fmt: skip
"""What a head may say; retrieval is what the estimator two_tower does, and nothing else."""
COMPARING: tuple[Task, ...] = ("retrieval", "embedding", "ranking")
"""Whose losses compare the examples of a batch with each other."""
_YES_NO: tuple[Task, ...] = ("binary", "multilabel")
_CLASSES: tuple[Task, ...] = ("binary", "multiclass", "multilabel")
_NUMBERS: tuple[Task, ...] = ("regression", "vector_regression")
_GIVEN_ELSEWHERE = frozenset({"from_logits", "label_smoothing", "ignore_class", "axis"})
"""Options of Keras's that have one value here, or a key of the head."""
_LEAST: Mapping[str, float] = {"gamma": 0.0, "alpha": 0.0, "beta": 0.0, "delta": 1e-12, "q": 1e-12, "margin": 1e-12}


@dataclass(frozen=True)
class LossKind:
    """Attributes:
    tasks: that it can teach.
    takes: the logits or scores as the network gives them; probabilities; or predictions.
    can_smooth: a cross-entropy, whose labels `label_smoothing` may soften.
    """

    tasks: tuple[Task, ...]
    takes: Literal["logits", "scores", "probabilities", "predictions"]
    can_smooth: bool = False


LOSSES: Mapping[str, LossKind] = {
    "binary_crossentropy": LossKind(_YES_NO, "logits", can_smooth=True),
    "binary_focal_crossentropy": LossKind(_YES_NO, "logits", can_smooth=True),
    "sparse_categorical_crossentropy": LossKind(("multiclass",), "logits", can_smooth=True),
    "categorical_crossentropy": LossKind(("multiclass",), "logits", can_smooth=True),
    "categorical_focal_crossentropy": LossKind(("multiclass",), "logits", can_smooth=True),
    "categorical_generalized_cross_entropy": LossKind(("multiclass",), "probabilities"),
    "hinge": LossKind(_YES_NO, "scores"),
    "squared_hinge": LossKind(_YES_NO, "scores"),
    "categorical_hinge": LossKind(("multiclass",), "scores"),
    "kl_divergence": LossKind(("multiclass",), "probabilities"),
    "dice": LossKind(("multiclass", "multilabel"), "probabilities"),
    "tversky": LossKind(("multiclass", "multilabel"), "probabilities"),
    "mean_squared_error": LossKind((*_NUMBERS, *_CLASSES), "probabilities"),
    "mean_absolute_error": LossKind((*_NUMBERS, *_CLASSES), "probabilities"),
    "mean_absolute_percentage_error": LossKind(_NUMBERS, "predictions"),
    "mean_squared_logarithmic_error": LossKind((*_NUMBERS, "count"), "predictions"),
    "huber": LossKind(_NUMBERS, "predictions"),
    "log_cosh": LossKind(_NUMBERS, "predictions"),
    "cosine_similarity": LossKind(("vector_regression",), "predictions"),
    "poisson": LossKind(("count",), "predictions"),
    "quantile": LossKind(("quantiles", "regression"), "predictions"),
    "sampled_softmax": LossKind(("retrieval",), "scores"),
    "pairwise_logistic": LossKind(("ranking",), "predictions"),
    "pairwise_hinge": LossKind(("ranking",), "predictions"),
    "listwise_softmax": LossKind(("ranking",), "predictions"),
    "circle": LossKind(("embedding",), "probabilities"),
    "triplet": LossKind(("embedding",), "predictions"),
    "contrastive": LossKind(("embedding",), "predictions"),
}
MARGINS: Mapping[str, float] = {"triplet": 0.2, "contrastive": 1.0}
"""Of the losses of pairs, where none is given: distances of vectors of length 1 go from 0 to 2."""
_OWN: Mapping[str, KerasName] = {
    "quantile": KerasName("", {"level": Option("number")}),
    "sampled_softmax": KerasName("", {}),
    "pairwise_logistic": KerasName("", {}),
    "pairwise_hinge": KerasName("", {"margin": Option("number", 1.0)}),
    "listwise_softmax": KerasName("", {}),
    **{name: KerasName("", {"margin": Option("number", margin)}) for name, margin in MARGINS.items()},
}
DEFAULT_LOSSES: Mapping[Task, str] = {
    "binary": "binary_crossentropy",
    "multiclass": "sparse_categorical_crossentropy",
    "multilabel": "binary_crossentropy",
    "regression": "mean_squared_error",
    "vector_regression": "mean_squared_error",
    "count": "poisson",
    "quantiles": "quantile",
    "ranking": "pairwise_logistic",
    "retrieval": "sampled_softmax",
    "embedding": "triplet",
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
"""Short names; of several the loss that teaches the task."""


@dataclass(frozen=True)
class Loss:
    """A name of LOSSES, and the options that were given."""

    name: str
    options: Mapping[str, Value] = field(default_factory=dict)

    @property
    def kind(self) -> LossKind:
        return LOSSES[self.name]


def keras_class_of(loss: str) -> str:
    """In keras.losses; empty for one of our own."""
    return _named(loss).keras_name


def options_of(loss: str) -> tuple[str, ...]:
    """That a definition may give."""
    return tuple(option for option in _named(loss).options if option not in _GIVEN_ELSEWHERE)


def _named(loss: str) -> KerasName:
    return _OWN[loss] if loss in _OWN else keras_names.LOSSES[loss]


def read_loss(section: object, task: Task, where: str) -> Loss:
    """`focal`, or `{name: focal, gamma: 2}`. Raises InvalidInput: no such loss, the loss cannot teach the task, or it
    has no such option."""
    fields = Fields(f"{where}: loss", {"name": section} if isinstance(section, str) else section)
    name = _known(fields.text("name"), task, where)
    options = read_options(fields, _named(name), without=_GIVEN_ELSEWHERE)
    for option, value in options.items():
        if option in _LEAST and isinstance(value, float) and value < _LEAST[option]:
            raise InvalidInput(f"{where}: loss {option} must be a number from {_LEAST[option]:g}, got {value:g}")
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
    if task == "regression" and not (isinstance(level, float) and 0.0 < level < 1.0):
        raise InvalidInput(f"{where}: loss quantile needs level, a number above 0 and below 1, got {level!r}")
