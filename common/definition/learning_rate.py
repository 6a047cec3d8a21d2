"""The learning rate by global step, as a definition says it: a number, or one of these.

{schedule: constant, initial: 0.01}
{schedule: exponential, initial: 0.01, decay_steps: 1000, decay_rate: 0.9}    also inverse_time and cosine, below
{schedule: cosine_decay_restarts, initial_learning_rate: 0.1, first_decay_steps: 1000}          Keras's, by its names
{schedule: sequence, parts: [{steps: 100, schedule: ..., ...}, {schedule: ..., ...}]}           one after the other
{..., warmup: {steps: 100, from: 0.0}}                                                 before any of them
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.definition.fields import Fields, is_number
from common.definition.keras_names import SCHEDULES, Value, read_options
from common.errors import InvalidInput

_OWN = ("constant", "exponential", "inverse_time", "cosine", "sequence")


@dataclass(frozen=True)
class Warmup:
    """Before the schedule begins: from `start` in a straight line, over `steps`, to the schedule's first rate."""

    steps: int
    start: float = 0.0


@dataclass(frozen=True)
class LearningRate:
    """The rate at global step s (which goes on from round to round).

    constant:     initial
    exponential:  initial * decay_rate ^ (s / decay_steps)
    inverse_time: initial / (1 + decay_rate * s / decay_steps)
    cosine:       from initial to initial * floor over decay_steps along half a cosine, then constant
    sequence:     its parts in turn, each from its own step 0; the last part has no end
    any other:    Keras's schedule of that name with `options`

    Attributes:
        steps: how many steps a part of a sequence lasts; 0 for the last part.
    """

    initial: float = 0.001
    schedule: str = "constant"
    decay_steps: int = 0
    decay_rate: float = 0.0
    floor: float = 0.0
    options: Mapping[str, Value] = field(default_factory=dict)
    parts: tuple["LearningRate", ...] = ()
    steps: int = 0
    warmup: Warmup | None = None


def parse_learning_rate(section: object) -> LearningRate:
    """Raises InvalidInput: which key, what was expected."""
    if is_number(section):
        return LearningRate(
            initial=Fields("optimizer", {"learning_rate": section}).number("learning_rate", minimum=0.0)
        )
    if not isinstance(section, Mapping):
        raise InvalidInput(f"learning_rate must be a number or a mapping with the key schedule, got {section!r}")
    fields = Fields("learning_rate", section)
    rate = _schedule(fields)
    if fields.has("warmup"):
        rate = replace(rate, warmup=_warmup(fields.take("warmup")))
    fields.finish()
    return rate


def _schedule(fields: Fields) -> LearningRate:
    schedule = fields.choice("schedule", (*_OWN, *SCHEDULES))
    if schedule == "sequence":
        return LearningRate(schedule=schedule, parts=_parts(fields.take("parts")))
    if schedule in SCHEDULES:
        options = read_options(fields, SCHEDULES[schedule])
        _check_keras(schedule, options)
        return LearningRate(schedule=schedule, options=options)
    initial = fields.number("initial", minimum=0.0)
    if schedule == "constant":
        return LearningRate(initial)
    return LearningRate(
        initial=initial,
        schedule=schedule,
        decay_steps=fields.integer("decay_steps"),
        decay_rate=fields.number("decay_rate", minimum=0.0) if schedule != "cosine" else 0.0,
        floor=fields.number("floor", 0.0, minimum=0.0, below=1.0) if schedule == "cosine" else 0.0,
    )


def _warmup(section: object) -> Warmup:
    fields = Fields("warmup", section)
    warmup = Warmup(fields.integer("steps"), fields.number("from", 0.0, minimum=0.0))
    fields.finish()
    return warmup


def _parts(section: object) -> tuple[LearningRate, ...]:
    if not isinstance(section, list | tuple) or len(section) < 2:
        raise InvalidInput(f"learning_rate: parts must be a list of two schedules or more, got {section!r}")
    parts = []
    for number, part in enumerate(section):
        is_last = number == len(section) - 1
        fields = Fields(f"learning_rate part {number}", part)
        steps = 0 if is_last else fields.integer("steps")
        if is_last and fields.has("steps"):
            raise InvalidInput("learning_rate: the last part has no steps; it goes on from where it begins")
        parts.append(replace(_schedule(fields), steps=steps))
        fields.finish()
    return tuple(parts)


def _check_keras(schedule: str, options: Mapping[str, Value]) -> None:
    """What Keras would refuse, or silently divide by, only when the round begins."""
    for key in ("decay_steps", "first_decay_steps"):
        steps = options.get(key, 1)
        if not isinstance(steps, int) or steps < 1:
            raise InvalidInput(f"learning_rate: {key} must be an integer from 1, got {steps!r}")
    for key in ("initial_learning_rate", "end_learning_rate", "warmup_target", "decay_rate"):
        rate = options.get(key, 0.0)
        if not is_number(rate) or float(str(rate)) < 0:
            raise InvalidInput(f"learning_rate: {key} must be a number from 0, got {rate!r}")
    if schedule != "piecewise_constant_decay":
        return
    boundaries, values = options["boundaries"], options["values"]
    assert isinstance(boundaries, tuple)
    assert isinstance(values, tuple)
    increasing = [int(str(step)) for step in boundaries]
    if len(values) != len(increasing) + 1 or increasing != sorted(set(increasing)):
        raise InvalidInput(
            f"learning_rate: boundaries must increase and values be one more than they, got {increasing} "
            f"and {list(values)}"
        )
