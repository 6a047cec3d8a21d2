"""A canary's losses against production's on the same examples, through the stages of its rollout.

Evidence against the canary is of all stages; evidence that it is no worse than the margin begins anew at each, since a
stage is there to be judged by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.definition.rollout import Canary, Judge
from common.quality import Array
from common.registry.catalog import CANARY, PRODUCTION, JsonMap
from common.registry.live import ADVANCE, BACK, HOLD, PASSED, PROMOTE
from services.trainer.live.betting import Capital
from services.trainer.live.evidence import INCONCLUSIVE, WORSE, Comparison, differences_of, rule_of
from services.trainer.live.guards import Answered, Guards, distance
from services.trainer.live.join import Answer


@dataclass
class Trial:
    """
    Attributes:
        pair: against the canary.
        favour: of this stage: against "it is worse by the margin at least".
        stage: from 0, as the registry has it.
        before: how many samples earlier stages had.
        decision: the newest, as the registry takes it; "" before the first.
        broken: the guard that it does not keep to; "": none.
    """

    pair: Comparison
    favour: Capital
    stage: int
    rule: Canary
    guards: Guards
    before: int = 0
    decision: str = ""
    broken: str = ""

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
    def begin(cls, version: int, against: int, judge: Judge, rule: Canary, *, stage: int = 0) -> "Trial":
        return cls(Comparison.begin(version, against, judge), _favour(judge), stage, rule, Guards(dict(rule.limits)))

    def is_of(self, against: int, judge: Judge) -> bool:
        """Another production, or another rule, begins another trial."""
        is_same = self.guards.limits == self.rule.limits and self.pair.rule == rule_of(judge)
        return is_same and self.against == against

    def at_stage(self, stage: int, judge: Judge) -> None:
        """The registry has it at this stage."""
        if stage != self.stage:
            self.stage, self.before, self.favour = stage, self.samples, _favour(judge)

    def add(self, judge: Judge, losses: Array, others: Array, *, at: float) -> None:
        """Takes the losses of canary and production on more examples, shape [n] each."""
        taken = self.pair.add(self._shared(judge), losses, others, at=at)
        self.favour.add(-differences_of(judge, losses, others)[:taken])

    def _shared(self, judge: Judge) -> Judge:
        """The judge's alpha is for all tests of the canary together."""
        return replace(judge, alpha=judge.alpha / self.rule.tests, max_samples=None)

    def see(self, alias: str, version: int, answered: Answered | None) -> None:
        """A keyed request of this alias was answered. `answered` is None of production's shadows, which had another
        load. An error may have no version."""
        if alias == CANARY and version in (0, self.version) and answered is not None:
            self.guards.of_canary(answered)
        elif alias == PRODUCTION and version in (0, self.against) and answered is not None:
            self.guards.of_production(answered)

    def see_answer(self, task: str, judge: Judge, answer: Answer, known: Mapping[int, Answer]) -> None:
        """`known`: the answers of other versions under its key."""
        other = known.get({self.version: self.against, self.against: self.version}.get(answer.version, 0))
        if other is not None:
            self.guards.of_both(judge, [distance(task, judge, answer.output, other.output)])

    def decide(self, judge: Judge, *, seconds: float) -> str:
        """What the evidence suffices for; "": for nothing yet.

        Args:
            seconds: since the first stage began.
        """
        self.broken = self.guards.broken(self._shared(judge).alpha)
        self.decision = self._decision(judge, self.rule, seconds)
        return self.decision

    def _decision(self, judge: Judge, rule: Canary, seconds: float) -> str:
        if self.pair.verdict == WORSE or self.broken:
            return BACK
        here = self.samples - self.before
        is_no_worse = here >= judge.min_samples and self.favour.e_value >= 1 / self._shared(judge).alpha
        if is_no_worse or (rule.stage_samples is not None and here >= rule.stage_samples):
            return ADVANCE if self.stage + 1 < len(rule.shares) else PROMOTE
        is_full = rule.max_samples is not None and self.samples >= rule.max_samples
        is_over = rule.max_seconds is not None and seconds >= rule.max_seconds
        return rule.then if is_full or is_over else ""

    def judged(self, judge: Judge) -> JsonMap:
        """The newest decision, for the registry; {} where there is none."""
        if not self.decision:
            return {}
        return {"version": self.version, "stage": self.stage, "decision": self.decision, "reason": self.reason(judge)}

    def reason(self, judge: Judge) -> str:
        pair, samples = self.pair, self.samples
        broken = next((guard for guard in self.guards.shown(self._shared(judge).alpha) if guard["broken"]), None)
        if broken:
            return (
                f"canary version {self.version} at stage {self.stage + 1} does not keep to the guard "
                f"{broken['guard']}: {broken['value']:.4g} on {broken['samples']} answers beside version "
                f"{self.against}'s, e-value {broken['e_value']:.4g} of {broken['of']:g}: {self.decision}"
            )
        difference = f"{judge.metric} {pair.total / samples:+.4g}" if samples else f"{judge.metric} not compared yet"
        return (
            f"canary version {self.version} at stage {self.stage + 1}: {difference} against version {self.against} on "
            f"the same {samples} labelled predictions, {samples - self.before} at this stage, margin {judge.margin:g}: "
            f"e-value {pair.capital.e_value:.4g} for worse, {self.favour.e_value:.4g} for no worse, of "
            f"{1 / self._shared(judge).alpha:g}: {self.decision or 'undecided'}"
        )

    def shown(self, judge: Judge) -> dict[str, Any]:
        """The limit of `e_value` is 1 / alpha, where alpha is the judge's divided by the number of tests."""
        is_worse = bool(self.pair.verdict or self.broken)
        verdicts = {BACK: WORSE if is_worse else INCONCLUSIVE, PROMOTE: PASSED, HOLD: INCONCLUSIVE}
        shared = self._shared(judge)
        return {
            **self.pair.shown(), "alpha": shared.alpha, "guards": self.guards.shown(shared.alpha),
            "stage": self.stage, "shares": list(self.rule.shares), "by": self.rule.by,
            "stage_samples": self.samples - self.before, "no_worse_e_value": self.favour.e_value,
            "decision": self.decision, "verdict": verdicts.get(self.decision, ""),
        }  # fmt: skip

    def to_mapping(self) -> dict[str, Any]:
        return {"pair": self.pair.to_mapping(), "favour": self.favour.to_mapping(), "stage": self.stage,
                "before": self.before, "guards": self.guards.to_mapping()}  # fmt: skip

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], rule: Canary) -> "Trial":
        pair, favour = Comparison.from_mapping(mapping["pair"]), Capital.from_mapping(mapping["favour"])
        return cls(pair, favour, mapping["stage"], rule, Guards.from_mapping(mapping["guards"]), mapping["before"])


def _favour(judge: Judge) -> Capital:
    return Capital(-judge.margin / judge.scale)
