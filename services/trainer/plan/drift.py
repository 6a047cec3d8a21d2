"""How far the events that wait have moved away from those that the head has learned from (triggers.on_drift).

Compared are the features that the head reads: the inputs of its signature. Event time, labels and fields that no
feature reads move without a model being the worse for it; triggers.drift_psi adds such fields, and takes others out.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.definition.inputs import INPUTS_PATH, parse_inputs
from common.eventlog.base import EventLog
from common.eventlog.tfrecord import cut_sound
from common.registry.catalog import OffsetRange
from common.registry.client import RegistryClient
from common.schema import Schema
from common.statistics.distances import Bounds, compare
from common.statistics.examples import of_examples
from common.statistics.sketches import to_document

_STATISTICS, _INPUTS = "statistics/round.json", f"saved_model/{INPUTS_PATH}"
_MOST_EXAMPLES = 5_000
_AGAIN_SECONDS = 30.0
_NAMED = 3


@dataclass(frozen=True)
class _Found:
    version: int
    bounds: Bounds
    at: float
    reason: str


@dataclass(frozen=True)
class _Learned:
    """Attributes:
    statistics: of the head's round; {} where it has none.
    read: the stream's fields that the head's answers depend on.
    """

    statistics: Mapping[str, Any]
    read: frozenset[str]


class Drifts:
    """Not thread-safe. Looks at most every 30 s at the same model while its head stays."""

    def __init__(self, registry: RegistryClient, log: EventLog, clock: Callable[[], float]) -> None:
        self._registry, self._log, self._clock = registry, log, clock
        self._found: dict[str, _Found] = {}
        self._learned: dict[tuple[str, int], _Learned] = {}

    def reason(
        self, model: str, head: int, topic: str, ranges: Sequence[OffsetRange], *, count: int,
        bounds: Bounds,
    ) -> str:  # fmt: skip
        """Which fields of the events in the ranges have drifted largely (distances.py), a sentence; "" where none has,
        and where the head has no statistics.

        Args:
            count: examples in the ranges; of many, some 5,000 are looked at, evenly.
            bounds: triggers.drift_psi.

        Raises:
            Unavailable: the log or the registry is away. DataLoss: their data are damaged.
        """
        known = self._found.get(model)
        if known and (known.version, known.bounds) == (head, bounds) and self._clock() < known.at + _AGAIN_SECONDS:
            return known.reason
        learned = self._learned_by(model, head)
        if not learned.statistics:
            found = ""
        else:
            version = self._registry.get_version(model, head)
            stream = self._registry.get_stream(version.stream, schema_version=version.schema_version)
            seen = of_examples(self.sample(topic, ranges, count), Schema.from_json(stream.schema_json))
            found = _drifted(learned, to_document(seen), bounds, head)
        self._found[model] = _Found(head, bounds, self._clock(), found)
        return found

    def read_by(self, model: str, version: int) -> frozenset[str]:
        """The stream's fields that the version's answers depend on. Raises Unavailable, DataLoss."""
        return self._learned_by(model, version).read

    def _learned_by(self, model: str, version: int) -> _Learned:
        key = (model, version)
        if key not in self._learned:
            entries = [file for file in self._registry.get_version(*key).files if file.path in (_STATISTICS, _INPUTS)]
            with tempfile.TemporaryDirectory() as folder:
                self._registry.download(entries, Path(folder))
                documents = {file.path: json.loads((Path(folder) / file.path).read_text()) for file in entries}
            signatures = parse_inputs(documents.get(_INPUTS, {})).values()
            read = frozenset(feature.name for inputs in signatures for feature in inputs.features)
            learned = _Learned(documents.get(_STATISTICS, {}), read)
            others = {kept: other for kept, other in self._learned.items() if kept[0] != model}
            self._learned = others | {key: learned}
        return self._learned[key]

    def sample(self, topic: str, ranges: Sequence[OffsetRange], count: int) -> Iterator[bytes]:
        """Of `count` examples in the ranges some 5,000 at most, evenly; damaged records are passed over."""
        step, place = count // _MOST_EXAMPLES + 1, 0
        for item in ranges:
            for record in self._log.read(topic, item.partition, item.from_offset, item.to_offset):
                if record.fault:
                    continue
                examples = [*cut_sound(record.value)[0].values()]
                yield from examples[-place % step :: step]
                place += len(examples)


def _drifted(learned: _Learned, seen: Mapping[str, Any], bounds: Bounds, head: int) -> str:
    compared = {*learned.read, *bounds} - {name for name, bound in bounds.items() if bound is None}
    fields = compare(learned.statistics, seen, large=bounds)
    large = {name: field["psi"] for name, field in fields.items() if name in compared and field.get("drift") == "large"}
    if not large:
        return ""
    worst = sorted(large, key=lambda name: -large[name])
    named = ", ".join(f"{name} (PSI {large[name]:.2f})" for name in worst[:_NAMED])
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    return f"the new events have drifted from those that version {head} learned from: {named}{more}"
