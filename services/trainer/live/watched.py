"""What is measured of a model whose labels find their predictions, as its definition and its stream say."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from common.definition.metrics import stored_name
from common.definition.model import Definition
from common.definition.rollout import Canary, Judge, Live
from common.definition.triggers import Drift
from common.eventlog.topics import examples_topic, labels_topic
from common.late_labels import LateLabels
from common.quality import MEASURED_AS, OUTPUTS
from common.schema import PADDING, Feature, Schema


@dataclass(frozen=True)
class Watched:
    """What is to be measured of a model."""

    definition: Definition
    schema: Schema
    labels_by: LateLabels

    @property
    def topic(self) -> str:
        """Of the labels."""
        stream = self.definition.stream
        return labels_topic(stream) if self.schema.late_labels else examples_topic(stream)

    @property
    def messages(self) -> Schema:
        """Of what brings the labels."""
        return self.schema.of_late_labels(self.definition.stream) if self.schema.late_labels else self.schema

    @property
    def evaluated_as(self) -> str:
        """The metric of an evaluation that triggers: quality compares with."""
        assert self.quality is not None
        heads = [head.name for head in self.definition.heads]
        return stored_name(heads, heads[0], MEASURED_AS[self.quality.metric])

    @property
    def quality(self) -> Judge | None:
        return self.definition.triggers.quality

    @property
    def scores(self) -> Drift | None:
        drift = self.definition.triggers.drift
        return drift if drift and drift.scores else None

    @property
    def task(self) -> str:
        return self.definition.task

    @property
    def output(self) -> str:
        heads = self.definition.heads
        return (f"{heads[0].name}/" if len(heads) > 1 else "") + OUTPUTS[self.task]

    @property
    def window(self) -> int:
        return (self.definition.live or Live()).window_examples

    @property
    def slices(self) -> str | None:
        return self.definition.live.slices if self.definition.live else None

    @property
    def judge(self) -> Judge | None:
        return self.definition.rollout.judge if self.definition.rollout else None

    @property
    def canary(self) -> Canary | None:
        return self.definition.rollout.canary if self.definition.rollout else None

    @cached_property
    def _label(self) -> Feature:
        return self.schema.feature(self.definition.label)

    def labelled(self, event: Mapping[str, Any]) -> tuple[str, float] | None:
        """The key of a decoded event and its label, a word by its place in the vocabulary; None without both."""
        key, label = (event.get(name) for name in (self.labels_by.key, self._label.name))
        if key is None or label is None or not len(key) or not len(label):
            return None
        number = self._number(label[0])
        return None if number is None else (_text(key[0]), number)

    def _number(self, label: Any) -> float | None:
        if self._label.dtype == "string":
            words = self._label.vocabulary
            return float(words.index(_text(label))) if _text(label) in words else None
        is_missing = label != label or (self._label.may_be_missing and label == PADDING[self._label.dtype])
        return None if is_missing else float(label)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
