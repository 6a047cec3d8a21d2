"""Replays a stream under a policy: which version predicts each event, and what it has learned until then."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from common.definition.triggers import Triggers
from examples.freshness.learner import Floats, Learner
from services.trainer.plan.triggers import Fire, Situation, decide


@dataclass(frozen=True)
class Replayed:
    """Attributes:
    scores: of the events after the first, each by the version that was live when it came.
    versions: epoch seconds at which each was made.
    fired: how many by each trigger.
    """

    scores: Floats
    versions: list[float]
    cpu_seconds: float
    fired: Mapping[str, int] = field(default_factory=dict)


def replayed(
    learner: Learner, triggers: Triggers | None, times: Floats, known_at: Floats, *, first: int, tick_seconds: float
) -> Replayed:
    """Every tick the trainer's own rule decides by the labels that are known; a round learns them all.

    A version predicts from the tick at which it is made: the second that a round takes is left out.

    Args:
        triggers: None: nothing is learned after the first events.
        times: of the events, ascending.
        known_at: when their labels are known; a label is learned by the first round after that.
    """
    learner.begin()
    scores, versions, fired = np.zeros(len(times) - first), list[float](), dict[str, int]()
    by_label = first + np.argsort(known_at[first:], kind="stable")
    labels = known_at[by_label]
    done, learned, planned_at = first, 0, float(times[first])
    for now in np.arange(times[first], times[-1] + tick_seconds, tick_seconds) if triggers else ():
        known = int(np.searchsorted(labels, now, side="right"))
        situation = Situation(float(now), known - learned, planned_at, has_planned=True)
        decision = decide(triggers, situation) if triggers else None
        if not isinstance(decision, Fire):
            continue
        come = int(np.searchsorted(times, now, side="right"))
        if come > done:
            scores[done - first : come - first] = learner.probabilities(np.arange(done, come))
        learner.learn(np.sort(by_label[learned:known]))
        done, learned, planned_at = max(done, come), known, float(now)
        versions.append(planned_at)
        fired[decision.trigger] = fired.get(decision.trigger, 0) + 1
    scores[done - first :] = learner.probabilities(np.arange(done, len(times)))
    return Replayed(scores, versions, learner.cpu_seconds, fired)
