"""How a model is trained, as its definition says it (section `training`).

{batch_size: 256, passes: 1, optimizer: {name: adam, learning_rate: 0.001, clip_norm: 1.0}}
learning_rate: {schedule: exponential, initial: 0.01, decay_steps: 1000, decay_rate: 0.9}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.definition.fields import Fields, is_number


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer of Keras under its class's name in keras.optimizers, and which of its arguments may be given."""

    keras_class: str
    numbers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        return (*self.numbers, *self.flags)


OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "sgd": OptimizerKind("SGD", ("momentum",), ("nesterov",)),
    "adam": OptimizerKind("Adam", ("beta_1", "beta_2", "epsilon"), ("amsgrad",)),
    "adamw": OptimizerKind("AdamW", ("beta_1", "beta_2", "epsilon", "weight_decay")),
    "adagrad": OptimizerKind("Adagrad", ("initial_accumulator_value", "epsilon")),
    "rmsprop": OptimizerKind("RMSprop", ("rho", "momentum", "epsilon")),
    "ftrl": OptimizerKind(
        "Ftrl",
        (
            "learning_rate_power",
            "initial_accumulator_value",
            "l1_regularization_strength",
            "l2_regularization_strength",
        ),
    ),
}
"""The only list of optimizers: what is not here is refused with the definition, what is here the trainer makes."""
ON_NOT_FINITE = ("fail", "skip_batch", "set_aside")


@dataclass(frozen=True)
class LearningRate:
    """The rate at global step s (which goes on from round to round).

    constant:     initial
    exponential:  initial * decay_rate ^ (s / decay_steps)
    inverse_time: initial / (1 + decay_rate * s / decay_steps)
    cosine:       from initial to initial * floor over decay_steps along half a cosine, then constant
    """

    initial: float = 0.001
    schedule: str = "constant"
    decay_steps: int = 0
    decay_rate: float = 0.0
    floor: float = 0.0


@dataclass(frozen=True)
class Optimizer:
    """`clip_norm` scales the gradients down where their global norm is above it."""

    name: str = "adam"
    learning_rate: LearningRate = LearningRate()
    options: Mapping[str, float | bool] = field(default_factory=dict)
    clip_norm: float | None = None


@dataclass(frozen=True)
class Training:
    """Attributes:
    passes: how often a round goes over its own range, each time in another order.
    on_not_finite: what a round does where a loss or a gradient is NaN or infinite, or a layer refuses an example:
        fail; skip_batch (all of its examples are unusable); set_aside (only the examples at fault are).
    """

    batch_size: int = 256
    passes: int = 1
    optimizer: Optimizer = Optimizer()
    on_not_finite: str = "set_aside"


def parse_training(section: object) -> Training:
    """Raises InvalidInput: which key, what was expected."""
    fields = Fields("training", section)
    training = Training(
        batch_size=fields.integer("batch_size", Training.batch_size, maximum=1_000_000),
        passes=fields.integer("passes", Training.passes, maximum=1000),
        optimizer=_optimizer(fields.take("optimizer", {})),
        on_not_finite=fields.choice("on_not_finite", ON_NOT_FINITE, Training.on_not_finite),
    )
    fields.finish()
    return training


def _optimizer(section: object) -> Optimizer:
    fields = Fields("optimizer", section)
    name = fields.choice("name", tuple(OPTIMIZERS), Optimizer.name)
    options: dict[str, float | bool] = {}
    for option in OPTIMIZERS[name].options:
        if fields.has(option):
            is_flag = option in OPTIMIZERS[name].flags
            options[option] = fields.flag(option) if is_flag else fields.number(option)
    optimizer = Optimizer(
        name=name,
        learning_rate=_learning_rate(fields.take("learning_rate", LearningRate.initial)),
        options=options,
        clip_norm=fields.optional_number("clip_norm", None, minimum=1e-12),
    )
    fields.finish()
    return optimizer


def _learning_rate(section: object) -> LearningRate:
    if is_number(section):
        return LearningRate(
            initial=Fields("optimizer", {"learning_rate": section}).number("learning_rate", minimum=0.0)
        )
    fields = Fields("learning_rate", section)
    schedule = fields.choice("schedule", ("exponential", "inverse_time", "cosine"))
    rate = LearningRate(
        initial=fields.number("initial", minimum=0.0),
        schedule=schedule,
        decay_steps=fields.integer("decay_steps"),
        decay_rate=fields.number("decay_rate", minimum=0.0) if schedule != "cosine" else 0.0,
        floor=fields.number("floor", 0.0, minimum=0.0, below=1.0) if schedule == "cosine" else 0.0,
    )
    fields.finish()
    return rate
