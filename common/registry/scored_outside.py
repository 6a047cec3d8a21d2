"""What a version's environment says of the metrics that were taken outside of its author's code, in sentences.

scored_outside: {"metrics": {"candidate": {name: value}, "parent": {...}},   or "reason": why there are none
                 "unscored": {what the gate judges by and the round's process alone has measured: why},
                 "required": true where the gate rejects a version for them}
"""

from collections.abc import Iterator, Mapping
from typing import Any

from common.definition.gate import Gate

SCORED_OUTSIDE = "scored_outside"


def unscored_in_words(environment: Mapping[str, Any]) -> list[str]:
    """A sentence for each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in environment.get(SCORED_OUTSIDE, {}).get("unscored", {}).items():
        by_reason.setdefault(str(why), []).append(str(name))
    return [
        f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} the word of the round's process: {why}"
        for why, names in by_reason.items()
    ]


def is_required(environment: Mapping[str, Any]) -> bool:
    return bool(environment.get(SCORED_OUTSIDE, {}).get("required"))


def in_words(environment: Mapping[str, Any], gate: Gate) -> Iterator[str]:
    """Sentences for people; none of a version that was not scored outside."""
    scored: Mapping[str, Any] = environment.get(SCORED_OUTSIDE, {})
    if reason := scored.get("reason"):
        yield f"by the round's process alone: {reason}"
    judging = {rule.metric for rule in gate.all_rules}
    measured: Mapping[str, float] = scored.get("metrics", {}).get("candidate", {})
    if measured:
        values = (f"{name} {value:.6g}{' (the gate)' * (name in judging)}" for name, value in measured.items())
        yield f"outside of its code, too: {', '.join(values)}"
    if not reason:
        yield from unscored_in_words(environment)
