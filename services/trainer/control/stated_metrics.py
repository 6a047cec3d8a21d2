"""A round's statements about its version, compared with measurements outside of its author's code
(services/trainer/rounds/own_export.py) before control registers the version."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from common.definition.metrics import DEFAULTS, stored_name
from common.definition.model import Definition
from common.registry.catalog import RoundPlan, VersionDraft
from services.trainer.protocol.messages import Figures

_TOLERANCES: Mapping[str, float] = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 0.03}
"""Relative and absolute, by the precision of the definition's layers."""
_FLIPPED, _MOST_ROOM = 2, 0.02
"""Of calibration, whose bins have edges: examples that the last bit of an answer may move, and its most difference."""
_SIDES = ("candidate", "parent")
_WHERE, _COUNT, _JUDGING = " where ", "count of ", "examples that judge"


def reason_against(definition: Definition, setting: str) -> str:
    """Why a version of it is not scored outside; empty where it is."""
    if setting == "none" or (setting == "modules" and definition.module is None):
        return f"TRAINER_SCORE_OUTSIDE is {setting}"
    if definition.operations:
        return "its export runs operations of its author's"
    tasks = [head.task for head in definition.heads if head.task == "retrieval"]
    return "the outputs of a head of task retrieval are not in its export" if tasks else ""


def unscored(definition: Definition, plan: RoundPlan, found: Figures | None, *, reason: str) -> dict[str, str]:
    """Metrics of the gate that only the round's process has measured, by name, with the reason.

    Args:
        found: figures measured outside; None: none, for this `reason`.
    """
    gate, ours, why = definition.gate, _measured_by_us(definition), dict[str, str]()
    for rule in gate.all_rules:
        if found is None:
            why[rule.metric] = reason
        elif rule.metric not in ours:
            why[rule.metric] = "the definition's own code measures it"
        elif rule.max_regression is not None and found.against != plan.parent_version:
            why[f"{rule.metric} of the parent"] = f"the files of version {plan.parent_version} are removed"
    limits = {"max_p99_ms": gate.max_p99_ms, "max_skew": gate.max_skew}
    if definition.module is not None:
        why |= {name: "no other process measures it" for name, most in limits.items() if most is not None}
    return why


def fault_of(draft: VersionDraft, found: Figures, definition: Definition) -> str:
    """The first statement of the round that does not hold, as a sentence; empty where all do."""
    if draft.events_held_out != found.held_out:
        return _sentence("held-out events", draft.events_held_out, found.held_out)
    measured = _judged_by(found.metrics, found.evaluation, by_interval=definition.gate.confidence is not None)
    stated = _judged_by(draft.metrics, draft.evaluation, by_interval=definition.gate.confidence is not None)
    least = _TOLERANCES[definition.training.mixed_precision]
    for path, value in measured.items():
        statement, room = stated.get(path), _room(path, measured, held_out=found.held_out)
        if statement is None or not math.isclose(statement, value, rel_tol=least, abs_tol=max(least, room)):
            return _sentence(path, statement, value)
    ours = _measured_by_us(definition)
    for path in stated.keys() - measured.keys():
        side, _, name = path.partition(" ")
        is_own = side in _SIDES and name.partition(_WHERE)[0] not in ours
        if not is_own and not (side == "parent" and not found.against):
            return _sentence(path, stated[path], None)
    return ""


def _room(path: str, measured: Mapping[str, float], *, held_out: int) -> float:
    name, _, where = path.partition(_WHERE)
    if "calibration" not in name:
        return 0.0
    count = measured[f"{_COUNT}{where}"] if where else measured.get(_JUDGING, held_out)
    return min(_MOST_ROOM, _FLIPPED / max(1.0, count))


def _measured_by_us(definition: Definition) -> set[str]:
    """Of a version's metrics; the definition's own code measures the others."""
    heads, by_head = [head.name for head in definition.heads], definition.evaluation.metrics
    return {
        stored_name(heads, head.name, name)
        for head in definition.heads
        for name in [metric.name for metric in by_head.get(head.name, ())] or DEFAULTS[head.task]
    }


def _judged_by(metrics: Mapping[str, Any], evaluation: Mapping[str, Any], *, by_interval: bool) -> dict[str, float]:
    """The finite numbers that a gate may look at, by their place."""
    found = {f"{side} {name}": value for side in _SIDES for name, value in _numbers(metrics.get(side, {}))}
    slices = evaluation.get("slices", ())
    found["number of slices"] = len(slices)
    for part in slices:
        where = str(part.get("where"))
        found[f"{_COUNT}{where}"] = float(part.get("count", 0))
        for side in _SIDES:
            found |= {f"{side} {name}{_WHERE}{where}": value for name, value in _numbers(part["metrics"].get(side, {}))}
        if by_interval:
            found |= {f"interval {name}{_WHERE}{where}": value for name, value in _numbers(part.get("intervals", {}))}
    if by_interval:
        found |= {f"interval {name}": value for name, value in _numbers(evaluation.get("intervals", {}))}
    examples = evaluation.get("window", {}).get("examples")
    return found | ({} if examples is None else {_JUDGING: float(examples)})


def _numbers(tree: Any, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(tree, Mapping):
        for name, branch in tree.items():
            yield from _numbers(branch, f"{place}.{name}" if place else str(name))
    elif isinstance(tree, list | tuple):
        for number, branch in enumerate(tree):
            yield from _numbers(branch, f"{place}.{number}")
    elif isinstance(tree, int | float) and math.isfinite(tree):
        yield place, float(tree)


def _sentence(path: str, stated: float | None, measured: float | None) -> str:
    stated_text, found = ("no number" if value is None else f"{value:.6g}" for value in (stated, measured))
    return f"the round states {stated_text} for {path}, and its export scored outside of its code gives {found}"
