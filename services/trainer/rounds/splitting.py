"""By which rule a round holds out events. The plan names it, so that a version made by an older rule can be rebuilt.

position   where an event is in the log: the same share of all events
group      the value of a feature (`evaluation: {split_by}`): a user's or a session's events stay together
equal      the features: equal events stay together (`evaluation: {keep_equal_together}`)
content    the event's bytes; of plans that name no rule (before November 2026), where none is of a group
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.definition.evaluation import Evaluation
from common.eventlog.tfrecord import cut, frame
from common.examples.codec import ExampleCodec
from common.registry.catalog import JsonMap
from common.schema import Schema
from services.trainer.data.dataset import Block
from services.trainer.data.holdout import Keys, group_keys, holdout_mask
from services.trainer.features.parsing import Raw

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Split:
    """Attributes:
    by: the feature of a group.
    filling: makes of an event of another system's topic the bytes that it had under the rule of content.
    """

    rule: str
    by: str
    seed: int
    holdout_fraction: float
    calibration_fraction: float
    filling: ExampleCodec | None = None

    @classmethod
    def of(cls, configuration: JsonMap, evaluation: Evaluation, schema: Schema, *, seed: int) -> "Split":
        """
        Args:
            configuration: of the round's plan.
            seed: the definition's, which is the same in every round.
        """
        planned: Mapping[str, Any] = configuration.get("evaluation", {})
        by = str(planned.get("split_by", planned.get("holdout_by", "")))
        rule = str(planned.get("split", "group" if by else "content"))
        filling = ExampleCodec(schema) if rule == "content" and schema.source else None
        return cls(rule, by, seed, evaluation.holdout_fraction, evaluation.calibration_fraction, filling)

    def masks(self, block: Block, kept: Sequence[int], raw: Raw, equal: Keys) -> tuple[Mask, Mask]:
        """Which of the block's examples `kept` are held out, and which of these heads are calibrated by.

        Args:
            raw: their features.
            equal: as equal_keys gives them.
        """
        keys = self._keys(block, kept, raw, equal)
        held_out = holdout_mask(keys, seed=self.seed, fraction=self.holdout_fraction)
        return held_out, held_out & holdout_mask(keys, seed=~self.seed, fraction=self.calibration_fraction)

    @property
    def is_by_place(self) -> bool:
        """Whether examples need not be parsed for it."""
        return self.rule == "position"

    def judging(self, block: Block, kept: Sequence[int], raw: Raw, equal: Keys) -> list[int]:
        """Which of these examples are held out and calibrate nothing: they judge later rounds as well."""
        held_out, calibrating = self.masks(block, kept, raw, equal)
        return [kept[row] for row in np.flatnonzero(held_out & ~calibrating).tolist()]

    def _keys(self, block: Block, kept: Sequence[int], raw: Raw, equal: Keys) -> Keys:
        if self.rule == "group":
            return group_keys(raw[self.by].numpy())
        if self.rule == "equal":
            return equal
        if self.rule == "position":
            return block.keys[kept]
        crcs = block.crcs[kept]
        if self.filling:
            crcs = cut(frame([self.filling.with_defaults(block.examples[row]) for row in kept]))[1]
        return crcs.astype(np.uint64)
