"""One model's live quality: reads predictions and labels from the registry's position on, and hands in the result.

After a crash the records since the last hand-in are read again; the registry takes each step once.
"""

import heapq
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from common.definition.metrics import stored_name
from common.definition.model import Definition
from common.definition.rollout import Judge, Live
from common.definition.triggers import Drift
from common.errors import InvalidInput, NotFound
from common.eventlog.base import EventLog, Record
from common.eventlog.tfrecord import cut_sound
from common.eventlog.topics import examples_topic, labels_topic, predictions_topic
from common.examples.codec import ExampleCodec
from common.late_labels import LateLabels
from common.quality import MEASURED_AS, OUTPUTS
from common.registry.catalog import PREDECESSOR, PRODUCTION, JsonMap, Model
from common.registry.client import RegistryClient
from common.registry.live import Evidence
from common.schema import PADDING, Schema
from common.statistics.requests import array_of
from protos.prediction_log_pb2 import PredictionLog
from services.trainer import metrics
from services.trainer.live.canary import Trial
from services.trainer.live.evidence import INCONCLUSIVE, WORSE, Comparison, Decline, Track, losses_of_rows, rule_of
from services.trainer.live.guards import answered_of, parts_of
from services.trainer.live.join import Answer, Entry, Join
from services.trainer.live.scores import Scores, scores_of

MOST_RECORDS = 500
"""Of each topic's partition, at a time."""
_KEPT_TRACKS, _KEPT_COMPARISONS = 8, 16
"""Those that were used last: production may be an old version."""
Place = tuple[str, int]
"""(topic, partition)."""


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


class Watching:
    """Not thread-safe. Made from what the registry has stored; after an error another is made."""

    def __init__(self, model: str, watched: Watched, log: EventLog, stored: Evidence) -> None:
        self._model, self._log = model, log
        self.watched = watched
        self._topics = (predictions_topic(model), watched.topic)
        self._codec = ExampleCodec(watched.messages)
        self._label = watched.schema.feature(watched.definition.label)
        self._join = Join(watched.task, watched.labels_by.wait_seconds)
        self._read: deque[tuple[float, Place, int]] = deque()
        """Of records that the window may still need: time, place and offset."""
        state = stored.state
        self.revision = stored.revision
        self._positions: dict[Place, int] = _places(state.get("positions", {}))
        of_task = state.get("tracks", ()) if state.get("task") == watched.task else ()
        has_slices = watched.slices is not None and state.get("slices") == watched.slices
        tracks = [Track.from_mapping(one, has_slices=has_slices) for one in of_task]
        self._tracks = {(one.version, one.alias): one for one in tracks}
        self._comparisons = {one.version: one for one in map(Comparison.from_mapping, state.get("comparisons", ()))}
        self._declines = {one.version: one for one in map(Decline.from_mapping, state.get("declines", ()))}
        self._scores = {one.version: one for one in (Scores(**told) for told in state.get("scored", ()))}
        self._scored_now: Scores | None = None
        """Of production, while records are read for the first time."""
        canary = state.get("canary", {})
        staged = watched.definition.rollout.canary if watched.definition.rollout else None
        self._trial = Trial.from_mapping(canary, staged) if canary and staged else None
        self._slices = staged.slices if staged else None
        self._guarded: Trial | None = None
        """The trial whose guards look at the records that are being read."""
        self._changed: set[int] = set()
        self._read_window_again(_places(state.get("window", {})), state.get("counts", {}))

    def _read_window_again(self, window: Mapping[Place, int], counts: Mapping[str, int]) -> None:
        """Restores the join's state without counting its records twice."""
        for record, place in self._merged(self._kept(window, self._positions), self._positions):
            for _ in self._scored(record, place):
                pass
        self._join.counts.clear()
        self._join.counts.update(counts)

    def turn(self, model: Model, registry: RegistryClient) -> bool:
        """Reads new records, at most some hundred, and hands the result in. Whether there is more to read.

        Raises:
            Conflict: another trainer has handed in more. Unavailable, DataLoss: of the log or the registry.
        """
        ends = {
            (topic, partition): end
            for topic in self._topics
            for partition, end in _or_none(self._log.end_position, topic).items()
        }
        starts = {place: self._start_of(place, end) for place, end in ends.items()}
        starts = self._kept(starts, ends) if starts != ends else starts
        limits = {place: min(end, starts[place] + MOST_RECORDS) for place, end in ends.items()}
        pair, trial, decline = self._pair(model), self._trial_of(model), self._decline(model, registry)
        contests = [one for one in (pair, trial) if one is not None]
        is_new, self._guarded, self._scored_now = False, trial, self._scores_of(model, registry)
        for record, place in self._merged(starts, limits):
            is_new = True
            self._take(record, place, contests, decline)
            self._positions[place] = record.offset + 1
        self._positions |= {place: limits[place] for place in limits.keys() & self._positions.keys()}
        canary = self._decided(trial, model)
        if is_new or canary:
            self._hand_in(registry, pair, trial, canary)
            metrics.LIVE_STEPS.labels(self._model).inc()
        return limits != ends

    def _pair(self, model: Model) -> Comparison | None:
        """Of production with its predecessor, where a judge compares them and has not decided."""
        judge = self.watched.judge
        live, against = model.aliases.get(PRODUCTION, 0), model.aliases.get(PREDECESSOR, 0)
        if judge is None or not live or not against:
            return None
        known = self._comparisons.pop(live, None)
        if known is None or known.against != against or known.rule != rule_of(judge):
            known = Comparison.begin(live, against, judge)
        self._comparisons[live] = known
        return None if known.verdict else known

    def _trial_of(self, model: Model) -> Trial | None:
        """Of the canary with production, while it is being judged."""
        rollout, canary, live = self.watched.definition.rollout, model.canary, model.aliases.get(PRODUCTION, 0)
        if rollout is None or rollout.canary is None or not canary or canary["verdict"]:
            return None
        version, stage = canary["version"], canary["stage"]
        trial = self._trial
        if trial is None or trial.version != version or not trial.is_of(live, rollout.judge):
            trial = self._trial = Trial.begin(version, live, rollout.judge, rollout.canary, stage=stage)
        trial.at_stage(stage, rollout.judge)
        return trial

    def _decided(self, trial: Trial | None, model: Model) -> JsonMap:
        """What the evidence suffices for; {}: the canary stays where it is."""
        rollout = self.watched.definition.rollout
        if trial is None or rollout is None or rollout.canary is None:
            return {}
        if trial.decide(rollout.judge, seconds=time.time() - model.canary["since"]):
            self._changed.add(trial.version)
        return trial.told(rollout.judge)

    def _decline(self, model: Model, registry: RegistryClient) -> Decline | None:
        """Of production, where triggers: quality asks for it."""
        judge, live = self.watched.quality, model.aliases.get(PRODUCTION, 0)
        if judge is None or not live:
            return None
        known = self._declines.pop(live, None)
        if known is None or known.test.rule != rule_of(judge):
            version = registry.get_version(model.name, live)
            known = Decline.begin(version, self.watched.evaluated_as, judge)
        self._declines[live] = known
        return known

    def _scores_of(self, model: Model, registry: RegistryClient) -> Scores | None:
        """Of production, where triggers: drift: scores asks for it."""
        drift, live = self.watched.scores, model.aliases.get(PRODUCTION, 0)
        if drift is None or not live:
            return None
        known = self._scores.pop(live, None)
        if known is None or known.rule != Scores.rule_of(drift):
            version = registry.get_version(model.name, live)
            known = Scores.begin(version, self.watched.definition.heads[0].name, drift)
        self._scores[live] = known
        return known

    def _start_of(self, place: Place, end: int) -> int:
        """Labels are read from the topic's start on, and events from the first that may belong to a prediction."""
        if place in self._positions:
            return self._positions[place]
        if self.watched.schema.late_labels or place[0] == self._topics[0]:
            return 0
        first = self._first_prediction_at()
        if first is None:
            return end
        start, since = self._log.start_position(place[0])[place[1]], first - self.watched.labels_by.wait_seconds
        scanned = self._log.scan(*place, start, end)
        self._positions[place] = next((one.offset for one in scanned if one.headers.ingest_time >= since), end)
        return self._positions[place]

    def _first_prediction_at(self) -> float | None:
        topic = self._topics[0]
        starts, ends = _or_none(self._log.start_position, topic), _or_none(self._log.end_position, topic)
        firsts = (next(iter(self._log.scan(topic, one, at, ends[one])), None) for one, at in starts.items())
        return min((found.headers.ingest_time for found in firsts if found), default=None)

    def _kept(self, starts: Mapping[Place, int], places: Iterable[Place]) -> dict[Place, int]:
        """The same places to begin at, none before the log's first record."""
        begins = {topic: _or_none(self._log.start_position, topic) for topic in self._topics}
        return {place: max(starts.get(place, 0), begins[place[0]].get(place[1], 0)) for place in places}

    def _merged(self, starts: Mapping[Place, int], ends: Mapping[Place, int]) -> Iterator[tuple[Record, Place]]:
        """By the time at which the log took them."""

        def records(place: Place) -> Iterator[tuple[Record, Place]]:
            if starts[place] < ends[place]:
                yield from ((record, place) for record in self._log.read(*place, starts[place], ends[place]))

        return heapq.merge(*map(records, sorted(ends)), key=lambda one: one[0].headers.ingest_time)

    def _take(
        self, record: Record, place: Place, contests: Sequence[Comparison | Trial], decline: Decline | None
    ) -> None:
        scored: dict[tuple[int, str], list[tuple[tuple[float, float], str]]] = {}
        pairs: list[list[tuple[tuple[float, float], tuple[float, float], str]]] = [[] for _ in contests]
        for entry, answer in self._scored(record, place):
            assert answer.row is not None
            scored.setdefault((answer.version, answer.alias), []).append((answer.row, entry.value))
            for contest, found in zip(contests, pairs, strict=True):
                if both := _both(entry, answer, contest):
                    found.append(both)
        at, task = record.headers.ingest_time, self.watched.task
        for key, found_of in scored.items():
            rows, values = zip(*found_of, strict=True)
            track = self._tracks.pop(key) if key in self._tracks else Track(*key, since=at)
            self._tracks[key] = track
            track.add(task, np.asarray(rows, np.float64), self.watched.window, values)
            self._changed.add(key[0])
            if decline is not None and self.watched.quality and key[0] == decline.version:
                decline.add(self.watched.quality, losses_of_rows(task, self.watched.quality, rows), at=at)
        judge = self.watched.judge
        for contest, found in zip(contests, pairs, strict=True):
            if judge is None or not found:
                continue
            own, other, parts = zip(*found, strict=True)
            losses, others = losses_of_rows(task, judge, own), losses_of_rows(task, judge, other)
            contest.add(judge, losses, others, at=at)
            if isinstance(contest, Trial):
                contest.guards.of_slices(judge, parts, losses, others)
            self._changed.add(contest.version)

    def _scored(self, record: Record, place: Place) -> Iterator[tuple[Entry, Answer]]:
        """What has its label by this record."""
        at = record.headers.ingest_time
        self._read.append((at, place, record.offset))
        while self._read and self._read[0][0] < self._join.horizon:
            self._read.popleft()
        take = self._predictions if place[0] == self._topics[0] else self._labels
        for value in cut_sound(record.value)[0].values():
            try:
                yield from take(value, at)
            except (DecodeError, InvalidInput, ValueError):
                self._join.counts["unusable"] += 1

    def _predictions(self, value: bytes, at: float) -> Iterator[tuple[Entry, Answer]]:
        logged = PredictionLog.FromString(value)
        keys, trial = list(logged.prediction_keys), self._guarded
        if trial is not None and keys:
            trial.see(logged.alias, logged.log_metadata.model_spec.version.value, answered_of(logged))
            self._changed.add(trial.version)
        if not keys or logged.error_code:
            return
        proto = logged.predict_log.response.outputs.get(self.watched.output)
        output = array_of(proto) if proto is not None else None
        if output is None or output.dtype.kind not in "fiub" or output.shape[:1] != (len(keys),):
            self._join.counts["unusable"] += len(keys)
            return
        version = logged.log_metadata.model_spec.version.value
        scores = self._scored_now
        if scores is not None and not logged.is_shadow and (version, logged.alias) == (scores.version, PRODUCTION):
            scores.add(scores_of(self.watched.task, output))
        parts, values = (parts_of(logged, name, len(keys)) for name in (self._slices, self.watched.slices))
        for key, row, part, given in zip(keys, output.astype(np.float32), parts, values, strict=True):
            answer, known = Answer(version, logged.alias, row, part=part, value=given), self._join.answers(key)
            if trial is not None and self.watched.judge is not None and version not in known:
                trial.see_answer(self.watched.task, self.watched.judge, answer, known)
            yield from self._join.predict(key, at, answer)

    def _labels(self, value: bytes, at: float) -> Iterator[tuple[Entry, Answer]]:
        decoded = self._codec.decode(value)
        key, label = (decoded.get(name) for name in (self.watched.labels_by.key, self._label.name))
        if key is None or label is None or not len(key) or not len(label):
            return
        number = self._number(label[0])
        if number is not None:
            yield from self._join.label(_text(key[0]), at, number)

    def _number(self, label: Any) -> float | None:
        """A word by its place in the vocabulary; None where the label is missing."""
        if self._label.dtype == "string":
            words = self._label.vocabulary
            return float(words.index(_text(label))) if _text(label) in words else None
        is_missing = label != label or (self._label.may_be_missing and label == PADDING[self._label.dtype])
        return None if is_missing else float(label)

    def _hand_in(self, registry: RegistryClient, pair: Comparison | None, trial: Trial | None, canary: JsonMap) -> None:
        goes_back = pair is not None and pair.verdict and self._goes_back(pair)
        evidence = Evidence(
            revision=self.revision,
            state=self._state(),
            counts={**self._join.counts, "waiting": self._join.waiting},
            versions={version: self._document(version, pair, trial) for version in sorted(self._changed)},
            back_from=pair.version if pair is not None and goes_back else 0,
            reason=pair.reason(self.watched.judge) if pair is not None and goes_back and self.watched.judge else "",
            canary=canary,
        )
        self.revision = registry.put_evidence(self._model, evidence)
        self._changed.clear()

    def _goes_back(self, pair: Comparison) -> bool:
        rollout = self.watched.definition.rollout
        if rollout is None or not rollout.goes_back:
            return False
        return pair.verdict == WORSE or (pair.verdict == INCONCLUSIVE and rollout.judge.then == "back")

    def _document(self, version: int, pair: Comparison | None, trial: Trial | None) -> dict[str, Any]:
        slices = self.watched.slices
        tracks = [
            one.shown(self.watched.task, slices) for (of, _), one in sorted(self._tracks.items()) if of == version
        ]
        if self.watched.quality and version in self._declines:
            tracks = [{**one, "quality": self._declines[version].shown()} for one in tracks]
        judge = {"judge": pair.shown()} if pair is not None and pair.version == version else {}
        rollout = self.watched.definition.rollout
        if rollout and rollout.canary and trial is not None and trial.version == version:
            judge["canary"] = trial.shown(rollout.judge)
        return {"tracks": tracks, **judge}

    def _state(self) -> dict[str, Any]:
        _keep_newest(self._tracks, _KEPT_TRACKS)
        _keep_newest(self._comparisons, _KEPT_COMPARISONS)
        _keep_newest(self._declines, _KEPT_COMPARISONS)
        _keep_newest(self._scores, _KEPT_COMPARISONS)
        window = dict(self._positions)
        for _, place, offset in self._read:
            window[place] = min(window.get(place, offset), offset)
        return {
            "task": self.watched.task,
            "slices": self.watched.slices,
            "positions": _by_topic(self._positions),
            "window": _by_topic(window),
            "counts": dict(self._join.counts),
            "tracks": [one.to_mapping() for one in self._tracks.values()],
            "comparisons": [one.to_mapping() for one in self._comparisons.values()],
            "quality": {str(one.version): one.shown() for one in self._declines.values()},
            "canary": self._trial.to_mapping() if self._trial is not None else {},
            "scores": {str(one.version): one.shown() for one in self._scores.values()},
            "scored": [vars(one) for one in self._scores.values()],
            "declines": [one.to_mapping() for one in self._declines.values()],
        }


def _both(
    entry: Entry, answer: Answer, pair: Comparison | Trial
) -> tuple[tuple[float, float], tuple[float, float], str] | None:
    """The rows of both versions and the part of the examples, once the second of them has its label."""
    if answer.version not in (pair.version, pair.against):
        return None
    live, other = entry.answers.get(pair.version), entry.answers.get(pair.against)
    if live is None or other is None or live.row is None or other.row is None:
        return None
    return live.row, other.row, live.part or other.part


def _keep_newest(kept: dict[Any, Any], most: int) -> None:
    while len(kept) > most:
        kept.pop(next(iter(kept)))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _or_none(ask: Any, topic: str) -> dict[int, int]:
    """{} for a topic that is not there yet."""
    try:
        found: dict[int, int] = ask(topic)
    except NotFound:
        return {}
    return found


def _places(mapping: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    return {(topic, int(number)): offset for topic, offsets in mapping.items() for number, offset in offsets.items()}


def _by_topic(places: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in places.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return found
