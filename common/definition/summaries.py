"""What a round keeps for TensorBoard beside its curves (section `training`, key `summaries`).

    summaries: {histograms: 4, worst: 8}

Nothing of it changes a weight, so it is no part of a round's configuration.
"""

from dataclasses import dataclass

from common.definition.fields import Fields

_MOST_WORST = 64


@dataclass(frozen=True)
class Summaries:
    """Attributes:
    histograms: after every so many blocks, of weights, gradients and what each layer gives; 0: none.
    worst: held-out examples with the largest losses, as texts, and as images where a feature is one; 0: none.
    statistics: counts, quantiles, distinct values and frequent words of every field of the trained examples.
    """

    histograms: int = 0
    worst: int = 0
    statistics: bool = True


def parse_summaries(section: object) -> Summaries:
    """Raises InvalidInput: which key, what was expected."""
    fields = Fields("summaries", section)
    summaries = Summaries(
        histograms=fields.integer("histograms", 0, minimum=0, maximum=1_000_000),
        worst=fields.integer("worst", 0, minimum=0, maximum=_MOST_WORST),
        statistics=fields.flag("statistics", True),
    )
    fields.finish()
    return summaries
