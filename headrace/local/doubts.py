"""What a person should know of a round that passed: events that it could not use, and what its data lacks."""

from collections.abc import Iterator, Mapping
from typing import Any

from common.counted import counted
from common.definition.model import Definition


def doubts(definition: Definition, done: Mapping[str, Any]) -> Iterator[str]:
    """Sentences. `done` is what `check.check_round` returns."""
    unusable, evaluation = done["unusable"], definition.evaluation
    share = unusable / max(1, done["trained"] + done["held_out"] + unusable)
    if unusable:
        reasons = "; ".join(f"{count:,}: {reason}" for reason, count in done["reasons"].items())
        yield f"{counted(unusable, 'event')} cannot be used by the model: {reasons}"
    if share > evaluation.max_unusable:
        yield (
            f"{share:.1%} of the events cannot be used, and a version with more than {evaluation.max_unusable:.1%} is "
            f"rejected (evaluation.max_unusable in model.yaml)"
        )
    yield from done["warnings"]
    for metric in dict.fromkeys(rule.metric for rule in definition.gate.asked if not rule.slice):
        if done["held_out"] and done["metrics"].get(metric) is None:
            why = done["undefined"].get(metric)
            yield (
                f"the gate asks for {metric}, which "
                f"{f'is not defined: {why}' if why else 'is not measured on the held-out events'}"
            )
