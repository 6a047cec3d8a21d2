"""What is watched of a live version, and when production goes back by itself.

live: {window_examples: 2000}
rollout:
  judge: {metric: error_rate, margin: 0.02, alpha: 0.01, min_samples: 100, max_samples: 20000, then: hold}
  back: automatic
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from common.definition.fields import Fields
from common.definition.heads import Head
from common.errors import InvalidInput
from common.quality import LOSSES, OUTPUTS
from common.schema import Schema

Then = Literal["hold", "back"]
_MOST_WINDOW = 20_000


@dataclass(frozen=True)
class Live:
    """window_examples: over how many of the newest labelled predictions the live metrics are measured."""

    window_examples: int = 2_000


@dataclass(frozen=True)
class Judge:
    """Whether production answers worse than its predecessor, on the same examples, by an anytime-valid test.

    Attributes:
        metric: whose losses are compared: error_rate, brier_score (binary) or mae.
        margin: how much worse is still taken, in the metric's unit.
        alpha: the chance that a version that is no worse is ever called worse, from 0 to 0.5.
        bound: of mae, the absolute error from which on errors count alike; 0 for the others, whose losses end at 1.
        min_samples: compared before anything is decided.
        max_samples: after which nothing more is compared; None: for as long as the version is in production.
        then: what becomes of a version that was not found worse by max_samples: `hold` leaves it, `back` takes it back.
    """

    metric: str
    margin: float = 0.0
    alpha: float = 0.01
    bound: float = 0.0
    min_samples: int = 100
    max_samples: int | None = None
    then: Then = "hold"

    @property
    def scale(self) -> float:
        """The largest loss."""
        return self.bound or 1.0


@dataclass(frozen=True)
class Rollout:
    """goes_back: whether production goes back by itself when the judge finds it worse."""

    judge: Judge
    goes_back: bool = True


def parse_live(section: object) -> Live | None:
    if section is None:
        return None
    fields = Fields("live", section)
    live = Live(fields.integer("window_examples", Live.window_examples, minimum=10, maximum=_MOST_WINDOW))
    fields.finish()
    return live


def parse_rollout(section: object) -> Rollout | None:
    """Raises InvalidInput."""
    if section is None:
        return None
    fields = Fields("rollout", section)
    judge = _judge(fields.take("judge"))
    goes_back = fields.choice("back", ("automatic", "manual"), "automatic") == "automatic"
    fields.finish()
    if judge.then == "back" and not goes_back:
        raise InvalidInput("rollout: judge: then: back does not go with back: manual")
    return Rollout(judge, goes_back)


def _judge(section: object) -> Judge:
    fields = Fields("rollout: judge", section)
    metric = fields.choice("metric", tuple(LOSSES))
    judge = Judge(
        metric=metric,
        margin=fields.number("margin", Judge.margin, minimum=0.0),
        alpha=fields.number("alpha", Judge.alpha, minimum=1e-9, below=0.5),
        bound=fields.number("bound", Judge.bound, minimum=0.0),
        min_samples=fields.integer("min_samples", Judge.min_samples),
        max_samples=fields.optional_integer("max_samples", Judge.max_samples),
        then="back" if fields.choice("then", ("hold", "back"), "hold") == "back" else "hold",
    )
    fields.finish()
    if (metric == "mae") != (judge.bound > 0):
        raise InvalidInput(
            "rollout: judge: bound is the absolute error from which on errors count alike; metric mae needs it, above "
            "0, and the others take none"
        )
    if judge.margin >= judge.scale:
        raise InvalidInput(f"rollout: judge: margin {judge.margin:g} is not below the largest loss, {judge.scale:g}")
    if judge.max_samples is not None and judge.max_samples < judge.min_samples:
        raise InvalidInput("rollout: judge: max_samples is below min_samples")
    if judge.then == "back" and judge.max_samples is None:
        raise InvalidInput("rollout: judge: then: back needs max_samples, after which production goes back")
    return judge


def check_watched(
    live: Live | None, rollout: Rollout | None, heads: Sequence[Head], schema: Schema, *, place: str
) -> None:
    """Raises InvalidInput where live quality cannot be known: labels come with events, or the first head has no number
    that a metric measures."""
    if live is None and rollout is None:
        return
    section = "rollout" if rollout else "live"
    if schema.late_labels is None:
        raise InvalidInput(f"{place}: {section} needs labels by a key: late_labels in stream.yaml")
    head = heads[0]
    if head.task not in OUTPUTS or head.label not in {label.name for label in schema.labels}:
        raise InvalidInput(
            f"{place}: {section} watches a first head of task {', '.join(OUTPUTS)} that learns a label; {head.name} is "
            f"{head.task}"
        )
    if rollout and head.task not in LOSSES[rollout.judge.metric]:
        raise InvalidInput(
            f"{place}: rollout: judge: metric {rollout.judge.metric} is of {', '.join(LOSSES[rollout.judge.metric])}; "
            f"head {head.name} is {head.task}"
        )
