"""One model's live quality: reads predictions and labels from the registry's position on, and hands in the result.

After a crash the records since the last hand-in are read again; the registry takes each step once.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from common.errors import InvalidInput, NotFound
from common.eventlog.base import EventLog, Record
from common.eventlog.tfrecord import cut_sound
from common.eventlog.topics import predictions_topic
from common.examples.codec import ExampleCodec
from common.registry.catalog import PREDECESSOR, PRODUCTION, JsonMap, Model
from common.registry.client import RegistryClient
from common.registry.live import Evidence
from common.statistics.requests import array_of
from protos.prediction_log_pb2 import PredictionLog
from services.trainer import metrics
from services.trainer.live.canary import Trial
from services.trainer.live.evidence import INCONCLUSIVE, WORSE, Comparison, Decline, Track, losses_of_rows, rule_of
from services.trainer.live.guards import answered_of, parts_of
from services.trainer.live.join import Answer, Entry, Join
from services.trainer.live.scores import Scores, scores_of
from services.trainer.live.watched import Watched

MOST_RECORDS = 500
"""Of each topic's partition, at a time."""
_KEPT_TRACKS, _KEPT_VERSIONS = 8, 16
Place = tuple[str, int]
"""(topic, partition)."""
_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")
_Of = TypeVar("_Of", Comparison, Decline, Scores)


class _Used(dict[_Key, _Kept]):
    """In the order in which they were used last: production may be an old version."""

    def __init__(self, most: int, known: Mapping[_Key, _Kept]) -> None:
        super().__init__(known)
        self._most = most

    @classmethod
    def of(cls, known: "Iterable[_Of]") -> "_Used[int, _Of]":
        return _Used(_KEPT_VERSIONS, {judge.version: judge for judge in known})

    def used(
        self, key: _Key, begin: Callable[[], _Kept], *, goes_on: Callable[[_Kept], bool] = lambda judge: True
    ) -> _Kept:
        """What is known of the key, where that goes on, or a new beginning."""
        known = self.pop(key, None)
        self[key] = begin() if known is None or not goes_on(known) else known
        return self[key]

    def forget_oldest(self) -> None:
        while len(self) > self._most:
            self.pop(next(iter(self)))


class Watching:
    """Not thread-safe. Made from what the registry has stored; after an error another is made."""

    def __init__(self, model: str, watched: Watched, log: EventLog, stored: Evidence) -> None:
        self._model, self._log = model, log
        self.watched = watched
        self._topics = (predictions_topic(model), watched.topic)
        self._codec = ExampleCodec(watched.messages)
        self._join = Join(watched.task, watched.labels_by.wait_seconds)
        self._read: deque[tuple[float, Place, int]] = deque()
        """Of records that the window may still need: time, place and offset."""
        state = stored.state
        self.revision = stored.revision
        self._positions: dict[Place, int] = _places(state.get("positions", {}))
        of_task = state.get("tracks", ()) if state.get("task") == watched.task else ()
        has_slices = watched.slices is not None and state.get("slices") == watched.slices
        tracks = [Track.from_mapping(track, has_slices=has_slices) for track in of_task]
        self._tracks = _Used(_KEPT_TRACKS, {(track.version, track.alias): track for track in tracks})
        self._comparisons = _Used.of(map(Comparison.from_mapping, state.get("comparisons", ())))
        self._declines = _Used.of(map(Decline.from_mapping, state.get("declines", ())))
        self._scores = _Used.of(Scores(**scores) for scores in state.get("scored", ()))
        self._scored_now: Scores | None = None
        """Of production, while records are read for the first time."""
        canary = state.get("canary", {})
        self._trial = Trial.from_mapping(canary, watched.canary) if canary and watched.canary else None
        self._slices = watched.canary.slices if watched.canary else None
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
        contests = [contest for contest in (pair, trial) if contest is not None]
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
        known = self._comparisons.used(
            live, lambda: Comparison.begin(live, against, judge),
            goes_on=lambda known: known.against == against and known.rule == rule_of(judge),
        )  # fmt: skip
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
        return trial.judged(rollout.judge)

    def _decline(self, model: Model, registry: RegistryClient) -> Decline | None:
        """Of production, where triggers: quality asks for it."""
        judge, live = self.watched.quality, model.aliases.get(PRODUCTION, 0)
        if judge is None or not live:
            return None
        return self._declines.used(
            live, lambda: Decline.begin(registry.get_version(model.name, live), self.watched.evaluated_as, judge),
            goes_on=lambda known: known.test.rule == rule_of(judge),
        )  # fmt: skip

    def _scores_of(self, model: Model, registry: RegistryClient) -> Scores | None:
        """Of production, where triggers: drift: scores asks for it."""
        drift, live = self.watched.scores, model.aliases.get(PRODUCTION, 0)
        if drift is None or not live:
            return None
        head = self.watched.definition.heads[0].name
        return self._scores.used(
            live, lambda: Scores.begin(registry.get_version(model.name, live), head, drift),
            goes_on=lambda known: known.rule == Scores.rule_of(drift),
        )  # fmt: skip

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
        self._positions[place] = next((record.offset for record in scanned if record.headers.ingest_time >= since), end)
        return self._positions[place]

    def _first_prediction_at(self) -> float | None:
        topic = self._topics[0]
        starts, ends = _or_none(self._log.start_position, topic), _or_none(self._log.end_position, topic)
        firsts = (
            next(iter(self._log.scan(topic, partition, at, ends[partition])), None) for partition, at in starts.items()
        )
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

        return heapq.merge(*map(records, sorted(ends)), key=lambda record: record[0].headers.ingest_time)

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
            track = self._tracks.used(key, partial(Track, *key, since=at))
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
        if found := self.watched.labelled(self._codec.decode(value)):
            key, label = found
            yield from self._join.label(key, at, label)

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
            track.shown(self.watched.task, slices) for (of, _), track in sorted(self._tracks.items()) if of == version
        ]
        if self.watched.quality and version in self._declines:
            tracks = [{**track, "quality": self._declines[version].shown()} for track in tracks]
        judge = {"judge": pair.shown()} if pair is not None and pair.version == version else {}
        rollout = self.watched.definition.rollout
        if rollout and rollout.canary and trial is not None and trial.version == version:
            judge["canary"] = trial.shown(rollout.judge)
        return {"tracks": tracks, **judge}

    def _state(self) -> dict[str, Any]:
        for kept in (self._tracks, self._comparisons, self._declines, self._scores):
            kept.forget_oldest()
        window = dict(self._positions)
        for _, place, offset in self._read:
            window[place] = min(window.get(place, offset), offset)
        return {
            "task": self.watched.task,
            "slices": self.watched.slices,
            "positions": _by_topic(self._positions),
            "window": _by_topic(window),
            "counts": dict(self._join.counts),
            "tracks": [track.to_mapping() for track in self._tracks.values()],
            "comparisons": [comparison.to_mapping() for comparison in self._comparisons.values()],
            "quality": {str(decline.version): decline.shown() for decline in self._declines.values()},
            "canary": self._trial.to_mapping() if self._trial is not None else {},
            "scores": {str(score.version): score.shown() for score in self._scores.values()},
            "scored": [vars(score) for score in self._scores.values()],
            "declines": [decline.to_mapping() for decline in self._declines.values()],
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


def _or_none(positions: Any, topic: str) -> dict[int, int]:
    """{} for a topic that is not there yet."""
    try:
        found: dict[int, int] = positions(topic)
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
