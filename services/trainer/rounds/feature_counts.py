"""What a round found in its features: values without an id, defaults that stand in for absent ones, values that no
statistics take, scales that do not go together; facts of the version."""

from collections import Counter

from common.definition.model import Definition
from services.trainer.features.scales import Scales
from services.trainer.features.statistics import Statistics, warnings_of
from services.trainer.features.words import row_counts
from services.trainer.rounds.prepared import PreparedBlock


class FeatureCounts:
    """Adds up the blocks of one pass."""

    def __init__(self, definition: Definition, before: Statistics, after: Statistics) -> None:
        """`before`, `after`: the statistics without and with this round."""
        self._warn_share, self._warnings = definition.evaluation.warn_unknown_share, warnings_of(before, after)
        self._scales, self._rows = Scales(definition.features, before, after), row_counts(after)
        self._outside, self._present = Counter[str](), Counter[str]()
        self._absent, self._examples = Counter[str](), 0

    def add(self, block: PreparedBlock) -> None:
        self._outside.update(block.outside)
        self._present.update(block.present)
        self._absent.update({name: int(rows.sum()) for name, rows in block.absent.items()})
        self._scales.add(block.trained_raw)
        self._examples += block.example_count

    def metrics(self) -> dict[str, dict[str, float]]:
        """`without_id` and `unknown_share`, by feature; by raw feature `defaults_filled`, the examples in which an
        optional one was absent, and `default_share`, their share of those that parse; and the counts of rows."""
        shares = {name: count / max(self._present[name], 1) for name, count in self._outside.items()}
        defaults = {name: count / max(self._examples, 1) for name, count in self._absent.items()}
        return {
            "without_id": dict(self._outside),
            "unknown_share": shares,
            "defaults_filled": dict(self._absent),
            "default_share": defaults,
            **self._rows,
        }

    def warnings(self) -> dict[str, str]:
        """Sentences, by what they are about."""
        warnings = self._warnings | self._scales.warnings()
        for name, share in self.metrics()["unknown_share"].items():
            if share > self._warn_share:
                warnings[f"values of {name}"] = (
                    f"{share:.1%} of the values of {name} are unknown: {self._outside[name]} of {self._present[name]}; "
                    "more words or a wider range would give them ids"
                )
        return warnings
