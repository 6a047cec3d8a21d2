"""How far the events that wait have moved away from those that the head has learned from (triggers.on_drift)."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.eventlog.base import EventLog
from common.eventlog.tfrecord import cut
from common.registry.catalog import OffsetRange
from common.registry.client import RegistryClient
from common.schema import Schema
from common.statistics.distances import compare
from common.statistics.examples import of_examples
from common.statistics.sketches import to_document

_STATISTICS = "statistics/round.json"
_MOST_EXAMPLES = 5_000
_AGAIN_SECONDS = 30.0
_NAMED = 3


@dataclass(frozen=True)
class _Found:
    version: int
    at: float
    reason: str


class Drifts:
    """Not thread-safe. Looks at most every 30 s at the same model while its head stays."""

    def __init__(self, registry: RegistryClient, log: EventLog, clock: Callable[[], float]) -> None:
        self._registry, self._log, self._clock = registry, log, clock
        self._found: dict[str, _Found] = {}
        self._learned: dict[tuple[str, int], Mapping[str, Any] | None] = {}

    def reason(self, model: str, head: int, topic: str, ranges: Sequence[OffsetRange], *, count: int) -> str:
        """Which fields of the events in the ranges have drifted largely (distances.py), a sentence; "" where none has,
        and where the head has no statistics.

        Args:
            count: examples in the ranges; of many, some 5,000 are looked at, evenly.

        Raises:
            Unavailable: the log or the registry is away. DataLoss: what they hold is damaged.
        """
        known = self._found.get(model)
        if known is not None and known.version == head and self._clock() < known.at + _AGAIN_SECONDS:
            return known.reason
        found = self._compared(model, head, topic, ranges, count)
        self._found[model] = _Found(head, self._clock(), found)
        return found

    def _compared(self, model: str, head: int, topic: str, ranges: Sequence[OffsetRange], count: int) -> str:
        version = self._registry.get_version(model, head)
        learned = self._statistics_of(model, head)
        if learned is None:
            return ""
        stream = self._registry.get_stream(version.stream, schema_version=version.schema_version)
        seen = of_examples(self._sample(topic, ranges, count), Schema.from_json(stream.schema_json))
        fields = compare(learned, to_document(seen))
        large = {name: one["psi"] for name, one in fields.items() if one.get("drift") == "large"}
        if not large:
            return ""
        worst = sorted(large, key=lambda name: -large[name])
        named = ", ".join(f"{name} (PSI {large[name]:.2f})" for name in worst[:_NAMED])
        more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
        return f"the new events have drifted from those that version {head} learned from: {named}{more}"

    def _statistics_of(self, model: str, version: int) -> Mapping[str, Any] | None:
        key = (model, version)
        if key not in self._learned:
            entries = [file for file in self._registry.get_version(*key).files if file.path == _STATISTICS]
            told = None
            if entries:
                with tempfile.TemporaryDirectory() as folder:
                    self._registry.download(entries, Path(folder))
                    told = json.loads((Path(folder) / _STATISTICS).read_text())
            self._learned = {kept: one for kept, one in self._learned.items() if kept[0] != model} | {key: told}
        return self._learned[key]

    def _sample(self, topic: str, ranges: Sequence[OffsetRange], count: int) -> Iterator[bytes]:
        step, place = count // _MOST_EXAMPLES + 1, 0
        for item in ranges:
            for record in self._log.read(topic, item.partition, item.from_offset, item.to_offset):
                if record.fault:
                    continue
                examples, _ = cut(record.value)
                yield from examples[-place % step :: step]
                place += len(examples)
