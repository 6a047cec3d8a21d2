"""Labels find the predictions of their key: in the order of the log, within a window of the log's own time.

Either may come first. The state is a function of the log alone, so a trainer that starts again has it after reading
the window once more. The window is bounded; past its bound the oldest keys are dropped.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from common.quality import row_of

MOST_KEYS = 200_000
MOST_VALUES = 5_000_000
COUNTS = ("labelled", "late", "never", "unmatched", "duplicate_predictions", "duplicate_labels", "unusable", "dropped")
"""Of predictions: with a label in time, with a label that came later than the wait (up to twice the wait), without one.
Of labels: without a prediction. Then duplicates, which change nothing; records without an output or class of the head;
and keys dropped because the window was full."""


@dataclass(slots=True)
class Answer:
    """A version's prediction for a key. `row` as quality.row_of makes it, once the label is there."""

    version: int
    alias: str
    output: NDArray[np.float32]
    row: tuple[float, float] | None = None
    part: str = ""
    """Of the examples: the value of the input by which a canary is judged; "" where it is not known."""
    value: str = ""
    """Of the input that slices live quality; "" where it is not known."""


@dataclass(slots=True)
class Entry:
    """The predictions and the label of a key. Its window is closed once the wait is over."""

    at: float
    answers: dict[int, Answer] = field(default_factory=dict)
    label: float | None = None
    is_closed: bool = False

    @property
    def value(self) -> str:
        """Of the input that slices live quality, from the answer that was logged with inputs: shadows are not."""
        return next((answer.value for answer in self.answers.values() if answer.value), "")


class Join:
    """Not thread-safe. `task` of the head that is measured; times are epoch seconds of the log."""

    def __init__(self, task: str, wait_seconds: float, *, most_keys: int = MOST_KEYS) -> None:
        self._task, self._wait, self._most_keys = task, wait_seconds, most_keys
        self.counts: Counter[str] = Counter()
        self.now = 0.0
        self._entries: dict[str, Entry] = {}
        self._open: deque[str] = deque()
        self._values = 0

    @property
    def waiting(self) -> int:
        """Predictions whose label may still come in time."""
        return sum(1 for key in self._open if (entry := self._entries[key]).answers and entry.label is None)

    @property
    def horizon(self) -> float:
        """Records from before this time are no longer needed."""
        return self.now - 2 * self._wait

    def answers(self, key: str) -> Mapping[int, Answer]:
        """Known under the key, by version."""
        entry = self._entries.get(key)
        return entry.answers if entry is not None else {}

    def predict(self, key: str, at: float, answer: Answer) -> Iterator[tuple[Entry, Answer]]:
        """The prediction, if its label is there already."""
        entry = self._entry(key, at)
        if answer.version in entry.answers:
            self.counts["duplicate_predictions"] += 1
            return
        entry.answers[answer.version] = answer
        self._values += answer.output.size
        if entry.label is not None:
            yield from self._score(entry, answer)

    def label(self, key: str, at: float, label: float) -> Iterator[tuple[Entry, Answer]]:
        """The predictions of each version under the key, which now have their label."""
        entry = self._entry(key, at)
        if entry.label is not None:
            self.counts["duplicate_labels"] += 1
            return
        entry.label = label
        if entry.is_closed:
            self.counts["late"] += 1
            self.counts["never"] -= bool(entry.answers)
            return
        for answer in entry.answers.values():
            yield from self._score(entry, answer)

    def _score(self, entry: Entry, answer: Answer) -> Iterator[tuple[Entry, Answer]]:
        if entry.is_closed:
            self.counts["late"] += 1
            return
        assert entry.label is not None
        try:
            answer.row = row_of(self._task, answer.output, entry.label)
        except ValueError:
            self.counts["unusable"] += 1
            return
        self.counts["labelled"] += 1
        yield entry, answer

    def _entry(self, key: str, at: float) -> Entry:
        self._advance(at)
        entry = self._entries.get(key)
        if entry is None:
            while len(self._entries) >= self._most_keys or self._values > MOST_VALUES:
                self._remove_oldest()
            entry = self._entries[key] = Entry(self.now)
            self._open.append(key)
        return entry

    def _advance(self, at: float) -> None:
        self.now = max(self.now, at)
        while self._open and self._entries[self._open[0]].at < self.now - self._wait:
            self._close(self._entries[self._open.popleft()])
        while self._entries and next(iter(self._entries.values())).at < self.horizon:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        oldest = self._entries.pop(next(iter(self._entries)))
        if not oldest.is_closed:
            self._open.popleft()
            self.counts["dropped"] += oldest.label is None or not oldest.answers
        self._values -= sum(answer.output.size for answer in oldest.answers.values())

    def _close(self, entry: Entry) -> None:
        entry.is_closed = True
        if entry.label is None:
            self.counts["never"] += bool(entry.answers)
        elif not entry.answers:
            self.counts["unmatched"] += 1
