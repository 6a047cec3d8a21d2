"""A search over keys of model.yaml: Optuna proposes values, a round with them answers with a metric of held-out events.

    training.optimizer.learning_rate: {low: 0.0001, high: 0.1, log: true}
    training.batch_size: {low: 64, high: 512, step: 64}       # whole numbers, as both ends are
    parameters.hidden_units: [[32], [64, 32]]                 # one of these

Sections that choose the events, or how they are judged, stay as they are: trials are compared on equal events.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from common.definition.fields import Fields
from common.definition.metrics import Direction
from common.definition.model import DEFINITION_FILE, parse_definition
from common.errors import HeadraceError, InvalidInput
from common.strict_yaml import read_yaml

Sampler = Literal["tpe", "random"]
Files = Mapping[str, bytes]
_SECTIONS = ("training", "parameters", "features")
_MOST_TRIALS = 10_000


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    step: float | None = None
    log: bool = False
    is_whole: bool = False


Space = Mapping[str, Range | Sequence[Any]]
"""By dotted key of model.yaml."""


@dataclass(frozen=True)
class Trial:
    """Attributes:
    value: of the metric; None where the round failed.
    problem: why.
    """

    number: int
    values: Mapping[str, Any]
    value: float | None
    problem: str = ""


def parse_space(document: object) -> Space:
    """Raises InvalidInput: which key, what was expected."""
    if not isinstance(document, Mapping) or not document:
        raise InvalidInput("a search space must be a mapping of keys of model.yaml to ranges or lists")
    space: dict[str, Range | Sequence[Any]] = {}
    for key, value in document.items():
        if str(key).partition(".")[0] not in _SECTIONS or "." not in str(key):
            raise InvalidInput(f"search: {key} must be a key below {', '.join(_SECTIONS)}, with dots between names")
        if isinstance(value, list) and len(value) < 2:
            raise InvalidInput(f"search: {key} needs two values or more to choose from, got {value!r}")
        space[str(key)] = value if isinstance(value, list) else _range(str(key), value)
    return space


def _range(key: str, section: object) -> Range:
    fields = Fields(f"search: {key}", section)
    low, high = fields.number("low"), fields.number("high")
    step, log = fields.optional_number("step", None, minimum=1e-12), fields.flag("log", False)
    fields.finish()
    found = Range(low, high, step, log, is_whole=_is_whole(section))
    if not low < high or (found.log and low <= 0):
        raise InvalidInput(f"search: {key} must go from low up to high, above 0 with log; got {low:g} and {high:g}")
    if found.log and found.step:
        raise InvalidInput(f"search: {key} has steps of one size or the log scale; keep one of them")
    if found.is_whole and step and not step.is_integer():
        raise InvalidInput(f"search: {key} is of whole numbers, and step {step:g} is not")
    return found


def _is_whole(section: object) -> bool:
    ends = [section.get("low"), section.get("high")] if isinstance(section, Mapping) else []
    return all(isinstance(end, int) and not isinstance(end, bool) for end in ends)


def with_values(files: Files, values: Mapping[str, Any]) -> dict[str, bytes]:
    """The definition with other values. Raises InvalidInput: it is refused so, or a key's parent is no mapping."""
    import yaml

    mapping = copy.deepcopy(read_yaml(files[DEFINITION_FILE], DEFINITION_FILE))
    for key, value in values.items():
        *parents, name = key.split(".")
        section: Any = mapping
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise InvalidInput(f"search: {key}: {parent} of {DEFINITION_FILE} is no mapping, but {section!r}")
        section[name] = value
    changed = {**files, DEFINITION_FILE: yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True).encode()}
    parse_definition(changed)
    return changed


def search(
    files: Files,
    space: Space,
    measure: Callable[[Files], float],
    *,
    trials: int,
    direction: Direction,
    sampler: Sampler = "tpe",
    seed: int = 0,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """All trials, in order; equal arguments and measurements give equal trials.

    Args:
        measure: trains a definition; raises InvalidInput where it cannot.

    Raises:
        InvalidInput: Optuna is not installed, a key is none of model.yaml's, or no trial succeeded.
    """
    try:
        import optuna
    except ImportError as error:
        raise InvalidInput("a search needs Optuna: pip install headrace[search]") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    goal = optuna.study.StudyDirection.MAXIMIZE if direction == "higher" else optuna.study.StudyDirection.MINIMIZE
    study = optuna.create_study(direction=goal, sampler=samplers[sampler](seed=seed))
    with_values(files, {key: _first(choice) for key, choice in space.items()})
    found: list[Trial] = []
    for number in range(min(trials, _MOST_TRIALS)):
        suggested = study.ask()
        values = {key: _suggested(suggested, key, choice) for key, choice in space.items()}
        try:
            value = measure(with_values(files, values))
            study.tell(suggested, value)
            trial = Trial(number, values, value)
        except HeadraceError as error:
            study.tell(suggested, state=optuna.trial.TrialState.FAIL)
            trial = Trial(number, values, None, error.message)
        found.append(trial)
        on_trial(trial)
    if not any(done.value is not None for done in found):
        raise InvalidInput(f"no trial succeeded; the first: {found[0].problem}")
    return found


def _first(choice: Range | Sequence[Any]) -> Any:
    if not isinstance(choice, Range):
        return choice[0]
    return int(choice.low) if choice.is_whole else choice.low


def _suggested(trial: Any, key: str, choices: Range | Sequence[Any]) -> Any:
    """Optuna chooses among texts and numbers only."""
    if not isinstance(choices, Range):
        return json.loads(trial.suggest_categorical(key, [json.dumps(choice) for choice in choices]))
    if choices.is_whole:
        return trial.suggest_int(key, int(choices.low), int(choices.high), step=int(choices.step or 1), log=choices.log)
    return trial.suggest_float(key, choices.low, choices.high, step=choices.step, log=choices.log)
