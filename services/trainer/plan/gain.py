"""The gain of a policy of triggers: how much better the gate's metric became for each example that the model's rounds
learned, and of how many examples the version that was live at an event would have known nothing.

The gain is a line through 0, so a policy is judged by how far its versions were behind, not by how often it trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.definition.gate import Gate
from common.registry.catalog import Version


@dataclass(frozen=True)
class Gain:
    """`example_gain`: of the metric, for each example that a version has learned beyond its parent; above 0 where it
    became better. Fitted by least squares to candidate against parent of `versions`, both on the same held-out events.
    """

    metric: str = ""
    example_gain: float = 0.0
    versions: int = 0


def gain_of(gate: Gate, versions: Sequence[Version]) -> Gain:
    """Of the gate's first rule; without versions where none was measured against a parent."""
    rule = next((rule for rule in gate.all_rules if not rule.slice), None)
    if rule is None:
        return Gain()
    pairs = [
        (version.events_trained, version.metrics["candidate"][rule.metric] - version.metrics["parent"][rule.metric])
        for version in versions
        if rule.metric in version.metrics.get("candidate", {}) and rule.metric in version.metrics.get("parent", {})
    ]
    if not pairs:
        return Gain(rule.metric)
    counts, changes = np.array(pairs, np.float64).T
    sign = 1.0 if rule.direction == "higher" else -1.0
    return Gain(rule.metric, sign * float(counts @ changes / max(counts @ counts, 1.0)), len(pairs))


def examples_behind(
    times: NDArray[np.float64], examples: NDArray[np.int64], live: Sequence[tuple[float, int]]
) -> float:
    """The mean, over the examples, of how many that came before were in no version that was live by then.

    Args:
        times, examples: of each record, in a round's order, shape [n].
        live: (epoch seconds, how many of these examples it and its ancestors had learned) of each version, by time.
    """
    before = np.concatenate([[0], np.cumsum(examples)[:-1]])
    learned = np.array([0, *(count for _, count in live)])
    known = learned[np.searchsorted([at for at, _ in live], times, side="right")]
    return float(np.average(np.maximum(before - known, 0), weights=examples))
