"""Two versions asked for the labels of events that are not sent yet: the live version, and the first, trained once.

Test-then-train (Gama et al., "On evaluating stream learning algorithms", 2013), seen from outside: both versions answer
for the same events before the platform gets them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from common.errors import InvalidInput, NotFound
from common.quality import metrics_of

FIRST = "first"
"""The label of the version that stays as it is."""
_MOST_EVENTS = 250
"""Events of one batch."""
_STRETCHES = 5


class Predicts(Protocol):
    """headrace.Client, as far as this needs it."""

    def predict(self, model: str, *, instances: Sequence[Any], label: str | None = None) -> Any: ...

    def signatures(self, model: str) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Question:
    """What is compared: the model, its task (common/quality.py), the label's name, the metric shown."""

    model: str
    task: str
    label: str
    metric: str


@dataclass
class Foresight:
    """Answers of both versions and labels of the same events, in the order of the stream."""

    client: Predicts
    question: Question
    _numbers: list[int] = field(default_factory=list)
    _truth: list[float] = field(default_factory=list)
    _live: list[Any] = field(default_factory=list)
    _first: list[Any] = field(default_factory=list)
    _inputs: frozenset[str] = frozenset()

    def compare(self, events: Sequence[Mapping[str, Any]], number: int) -> None:
        """Has both versions predict an even sample of `events`, the first of which has this number in the stream;
        nothing while either is not served."""
        step = -(-len(events) // _MOST_EVENTS)
        chosen = events[::step]
        model, label = self.question.model, self.question.label
        try:
            if not self._inputs:
                self._inputs = frozenset(self.client.signatures(model)["serving_default"]["inputs"])
            instances = [{name: event[name] for name in self._inputs} for event in chosen]
            first = self.client.predict(model, instances=instances, label=FIRST)
            live = self.client.predict(model, instances=instances)
        except NotFound:
            return
        except InvalidInput as error:
            if f"label: {FIRST}" not in error.message:
                raise
            return  # The replica serves the live version and has not heard of the label yet.
        self._numbers += range(number, number + len(events), step)
        self._truth += [float(event[label]) for event in chosen]
        self._first += first
        self._live += live

    def stretches(self) -> list[dict[str, Any]]:
        """The asked events in equal parts: `from` and `to` (numbers in the stream), `asked`, and the metric of both;
        None where it is undefined."""
        size = -(-len(self._numbers) // _STRETCHES) or 1
        return [self._stretch(slice(start, start + size)) for start in range(0, len(self._numbers), size)]

    def _stretch(self, part: slice) -> dict[str, Any]:
        numbers, metric = self._numbers[part], self.question.metric
        return {
            "from": numbers[0], "to": numbers[-1], "asked": len(numbers),
            f"{metric}_live": self._metric(self._live[part], self._truth[part]),
            f"{metric}_{FIRST}": self._metric(self._first[part], self._truth[part]),
        }  # fmt: skip

    def _metric(self, answers: Sequence[Any], truth: Sequence[float]) -> float | None:
        value = metrics_of(self.question.task, answers, truth).get(self.question.metric)
        return None if value is None else round(value, 4)
