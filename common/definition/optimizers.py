"""The optimizers of a model (section `training`, keys `optimizer` and `optimizers`).

optimizer: {name: adam, learning_rate: 0.001, clip_norm: 1.0}

It is Keras's of that name with Keras's options (keras_names.py); the learning rate is learning_rate.py's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from common.definition.fields import Allowed, Fields, is_number
from common.definition.keras_names import OPTIMIZERS, Value, read_options
from common.definition.learning_rate import LearningRate, parse_learning_rate
from common.errors import InvalidInput

_CLIPS = ("clip_norm", "clip_average_norm", "clipnorm", "clipvalue", "global_clipnorm")
_BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("beta_1", "beta_2", "adam_beta_1", "adam_beta_2", "rho", "momentum", "ema_momentum"), (0.0, 1.0)),
    **dict.fromkeys(("weight_decay", "adam_weight_decay", "epsilon", "epsilon_1", "epsilon_2"), (0.0, float("inf"))),
    **dict.fromkeys(("initial_accumulator_value", "warmup_steps"), (0.0, float("inf"))),
    **dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor"), (1e-12, float("inf"))),
    **dict.fromkeys(("ema_overwrite_frequency", "ns_steps"), (1.0, float("inf"))),
    "clip_threshold": (1e-12, float("inf")),
    "gradient_accumulation_steps": (2.0, float("inf")),
    "learning_rate_power": (float("-inf"), 0.0),
}
"""From and to, both allowed: what Keras refuses only when the round begins, or takes and makes nonsense of."""


@dataclass(frozen=True)
class Optimizer:
    """Keras's of that name. `clip_norm` is Keras's global_clipnorm: it scales the gradients down where their global
    norm is above it. `clip_average_norm` does so with each gradient whose norm over its number of elements is above."""

    name: str = "adam"
    learning_rate: LearningRate = field(default_factory=LearningRate)
    options: Mapping[str, Value] = field(default_factory=dict)
    clip_norm: Annotated[float | None, Allowed(minimum=1e-12)] = None
    clip_average_norm: Annotated[float | None, Allowed(minimum=1e-12)] = None


def read_optimizers(section: object) -> dict[str, Optimizer]:
    if not isinstance(section, Mapping) or not all(isinstance(pattern, str) for pattern in section):
        raise InvalidInput(f"training: optimizers must be a mapping of pattern to optimizer, got {section!r}")
    return {pattern: read_optimizer(options, place=f"optimizers: {pattern}") for pattern, options in section.items()}


def read_optimizer(section: object, *, place: str = "optimizer") -> Optimizer:
    fields = Fields(place, section)
    name = fields.choice("name", tuple(OPTIMIZERS), Optimizer.name)
    options = read_options(fields, OPTIMIZERS[name])
    rate = parse_learning_rate(fields.take("learning_rate", LearningRate.initial))
    optimizer = fields.made(Optimizer, name=name, learning_rate=rate, options=options)
    fields.finish()
    _check_options(optimizer, place)
    return optimizer


def _check_options(optimizer: Optimizer, place: str) -> None:
    options = optimizer.options
    for key, value in options.items():
        low, high = _BOUNDS.get(key, (float("-inf"), float("inf")))
        if is_number(value) and not low <= float(str(value)) <= high:
            expected = f"from {low:g} to {high:g}" if high < float("inf") > -low else f"from {low:g}"
            expected = f"at most {high:g}" if low == float("-inf") else expected
            raise InvalidInput(f"{place}: {key} must be {expected}, got {value!r}")
    own = {"clip_norm": optimizer.clip_norm, "clip_average_norm": optimizer.clip_average_norm}
    clips = [key for key in _CLIPS if key in options or own.get(key) is not None]
    if len(clips) > 1:
        raise InvalidInput(f"{place}: {' and '.join(clips)} are given; gradients are clipped in one way, keep one")
    idle = sorted(key for key in options if key.startswith("ema_"))
    if idle and not options.get("use_ema"):
        raise InvalidInput(f"{place}: {', '.join(idle)} says nothing without use_ema: true")
    if options.get("nesterov") and optimizer.name == "sgd" and not options.get("momentum"):
        raise InvalidInput(f"{place}: nesterov says nothing without a momentum above 0")
