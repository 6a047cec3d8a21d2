"""A canary's losses against production's on the same examples, through the stages of its rollout.

Evidence against the canary is of all stages; evidence that it is no worse than the margin begins anew at each, since a
stage is there to be judged by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.definition.rollout import Canary, Judge
from common.quality import Array
from common.registry.catalog import JsonMap
from services.trainer.live.betting import Capital
from services.trainer.live.evidence import INCONCLUSIVE, WORSE, Comparison, differences_of, rule_of

ADVANCE, PROMOTE, BACK, HOLD = "advance", "promote", "back", "hold"
PASSED = "passed"


@dataclass
class Trial:
    """
    Attributes:
        pair: against the canary.
        favour: of this stage: against "it is worse by the margin at least".
        stage: from 0, as the registry has it.
        before: how many samples earlier stages had.
        decision: the newest, as the registry takes it; "" before the first.
    """

    pair: Comparison
    favour: Capital
    stage: int
    before: int = 0
    decision: str = ""

    @property
    def version(self) -> int:
        return self.pair.version

    @property
    def against(self) -> int:
        return self.pair.against

    @property
    def samples(self) -> int:
        return self.pair.capital.samples

    @classmethod
    def begin(cls, version: int, against: int, judge: Judge, *, stage: int) -> "Trial":
        return cls(Comparison.begin(version, against, judge), _favour(judge), stage)

    def is_of(self, against: int, judge: Judge) -> bool:
        """Another production, or another rule, begins another trial."""
        return self.against == against and self.pair.rule == rule_of(judge)

    def at_stage(self, stage: int, judge: Judge) -> None:
        """The registry has it at this stage."""
        if stage != self.stage:
            self.stage, self.before, self.favour = stage, self.samples, _favour(judge)

    def add(self, judge: Judge, losses: Array, others: Array, *, at: float) -> None:
        """Takes the losses of canary and production on more examples, shape [n] each."""
        if self.pair.verdict:
            return
        self.pair.add(replace(judge, max_samples=None), losses, others, at=at)
        self.favour.add(-differences_of(judge, losses, others))

    def decide(self, judge: Judge, rule: Canary, *, seconds: float) -> str:
        """What the evidence suffices for; "": for nothing yet.

        Args:
            seconds: since the first stage began.
        """
        self.decision = self._decision(judge, rule, seconds)
        return self.decision

    def _decision(self, judge: Judge, rule: Canary, seconds: float) -> str:
        if self.pair.verdict == WORSE:
            return BACK
        here = self.samples - self.before
        is_no_worse = here >= judge.min_samples and self.favour.e_value >= 1 / judge.alpha
        if is_no_worse or (rule.stage_samples is not None and here >= rule.stage_samples):
            return ADVANCE if self.stage + 1 < len(rule.shares) else PROMOTE
        is_full = rule.max_samples is not None and self.samples >= rule.max_samples
        is_over = rule.max_seconds is not None and seconds >= rule.max_seconds
        return rule.then if is_full or is_over else ""

    def told(self, judge: Judge) -> JsonMap:
        """The newest decision, for the registry; {} where there is none."""
        if not self.decision:
            return {}
        return {"version": self.version, "stage": self.stage, "decision": self.decision, "reason": self.reason(judge)}

    def reason(self, judge: Judge) -> str:
        pair, samples = self.pair, self.samples
        difference = f"{judge.metric} {pair.total / samples:+.4g}" if samples else f"{judge.metric} not compared yet"
        return (
            f"canary version {self.version} at stage {self.stage + 1}: {difference} against version {self.against} on "
            f"the same {samples} labelled predictions, {samples - self.before} at this stage, margin {judge.margin:g}: "
            f"e-value {pair.capital.e_value:.4g} for worse, {self.favour.e_value:.4g} for no worse, of "
            f"{1 / judge.alpha:g}: {self.decision or 'undecided'}"
        )

    def shown(self, rule: Canary) -> dict[str, Any]:
        """Of an inconclusive canary and one that passed the decision is the verdict, too."""
        verdicts = {BACK: WORSE if self.pair.verdict else INCONCLUSIVE, PROMOTE: PASSED, HOLD: INCONCLUSIVE}
        return {
            **self.pair.shown(),
            "stage": self.stage, "shares": list(rule.shares), "by": rule.by,
            "stage_samples": self.samples - self.before, "no_worse_e_value": self.favour.e_value,
            "decision": self.decision, "verdict": verdicts.get(self.decision, ""),
        }  # fmt: skip

    def to_mapping(self) -> dict[str, Any]:
        return {"pair": self.pair.to_mapping(), "favour": self.favour.to_mapping(), "stage": self.stage,
                "before": self.before, "decision": self.decision}  # fmt: skip

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Trial":
        own = {"pair": Comparison.from_mapping(mapping["pair"]), "favour": Capital.from_mapping(mapping["favour"])}
        return cls(**{**mapping, **own})


def _favour(judge: Judge) -> Capital:
    return Capital(-judge.margin / judge.scale)
