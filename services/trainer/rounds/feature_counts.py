"""What a round found in its features: values without an id, values that no statistics take; said with the version."""

from collections import Counter
from collections.abc import Mapping

from services.trainer.rounds.blocks import PreparedBlock


class FeatureCounts:
    """Adds up the blocks of one pass."""

    def __init__(self, *, warn_share: float, statistics_warnings: Mapping[str, str]) -> None:
        """`statistics_warnings`: as statistics.warnings_of says them."""
        self._warn_share, self._warnings = warn_share, dict(statistics_warnings)
        self._outside, self._present = Counter[str](), Counter[str]()

    def add(self, block: PreparedBlock) -> None:
        self._outside.update(block.outside)
        self._present.update(block.present)

    def metrics(self) -> dict[str, dict[str, float]]:
        """`without_id` and `unknown_share`, by feature."""
        shares = {name: count / max(self._present[name], 1) for name, count in self._outside.items()}
        return {"without_id": dict(self._outside), "unknown_share": shares}

    def warnings(self) -> dict[str, str]:
        """Sentences, by what they are about."""
        warnings = dict(self._warnings)
        for name, share in self.metrics()["unknown_share"].items():
            if share > self._warn_share:
                warnings[f"values of {name}"] = (
                    f"{share:.1%} of the values of {name} have no id of their own ({self._outside[name]} of "
                    f"{self._present[name]}); more words or a wider range would give them one"
                )
        return warnings
