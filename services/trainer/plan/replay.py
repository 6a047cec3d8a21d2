"""Runs a policy of triggers over the log as it was: when it would have fired, what its versions would have cost, and
how old events would have been when a version had learned them, and how far its versions would have been behind.

Time goes from record to record, by their ingest times, and to the times that a trigger waits for; `decide` of
triggers.py decides as it does for the planner. A round takes as long as the model's rounds of as many examples took,
and nothing fires while it runs. Every version is taken to pass its gate. Facts of versions that never
were are not replayed but listed: their live quality, and on_drift.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import accumulate, islice
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.definition.triggers import Drift, Triggers, parse_triggers
from common.errors import Conflict, InvalidInput
from common.eventlog.base import EventLog
from common.eventlog.topics import examples_topic
from common.registry.catalog import PRODUCTION, OffsetRange, Version
from common.registry.client import RegistryClient
from common.schema import Schema
from common.statistics.shift import Values, find_shift, values_of
from services.trainer.plan.chain import ModelState
from services.trainer.plan.drift import Drifts
from services.trainer.plan.gain import examples_behind, gain_of
from services.trainer.plan.planner import Planner
from services.trainer.plan.shifts import compared_features
from services.trainer.plan.tracked import LogBounds
from services.trainer.plan.triggers import Alarm, Fire, Situation, decide

MAX_RECORDS = 1_000_000
_MOST_WINDOWS, _MOST_PLANS, _SHOWN_PLANS = 1_000, 100_000, 100
_LEAST_SECONDS = 0.1
"""Between two looks, as the planner's."""


@dataclass(frozen=True)
class Cost:
    """Of a round from plan to version: `fixed_seconds` and `example_seconds` for each example, fitted by least squares
    to `rounds` of the model."""

    fixed_seconds: float = 0.0
    example_seconds: float = 0.0
    rounds: int = 0

    def of(self, examples: int) -> float:
        return self.fixed_seconds + self.example_seconds * examples


@dataclass(frozen=True)
class Records:
    """In a round's order. `times`: of ingest, epoch seconds; `examples`: in each."""

    times: NDArray[np.float64]
    partitions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    examples: NDArray[np.int64]

    def ranges(self, begin: int, end: int) -> list[OffsetRange]:
        found: dict[int, list[int]] = {}
        for partition, offset in zip(
            self.partitions[begin:end].tolist(), self.offsets[begin:end].tolist(), strict=True
        ):
            found.setdefault(partition, []).append(offset)
        return [OffsetRange(partition, min(at), max(at) + 1) for partition, at in sorted(found.items())]


@dataclass(frozen=True)
class World:
    """The common part of every policy.

    Attributes:
        begin: of the record from which the policy decides; earlier records have been learned.
        until: epoch seconds at which the replay ends.
        upstream: (epoch seconds, version) of each move of the upstream's production, the oldest first.
        wait_seconds: that an event waits for its labels, and is in no round.
        shift_of: of two stretches of records, the learned and the new: the shift, "" for none.
    """

    records: Records
    begin: int
    until: float
    cost: Cost
    upstream: Sequence[tuple[float, int]] = ()
    wait_seconds: float = 0.0
    shift_of: Callable[[Drift, tuple[int, int], tuple[int, int], int], str] | None = None


@dataclass
class Outcome:
    """Of a policy over the log.

    Attributes:
        versions: that it would have made, of `examples`; `waiting` were in no round at the end.
        trainer_seconds: of their rounds, and `busy_share` of the time.
        freshness_seconds: from an event's ingest to its version: mean, p50, p95.
        behind_examples: as gain.examples_behind has it.
        fired: versions by trigger.
        plans: the first hundred, each with its time, examples, trigger and why.
    """

    versions: int = 0
    examples: int = 0
    waiting: int = 0
    trainer_seconds: float = 0.0
    busy_share: float = 0.0
    freshness_seconds: dict[str, float] = field(default_factory=dict)
    behind_examples: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    plans: list[dict[str, Any]] = field(default_factory=list)


def replay(triggers: Triggers, world: World) -> Outcome:
    """Raises InvalidInput where it would take too long."""
    return _Run(triggers, world).outcome()


class _Run:
    def __init__(self, triggers: Triggers, world: World) -> None:
        self._triggers, self._world, self._records = triggers, world, world.records
        self._counts = np.concatenate([[0], np.cumsum(world.records.examples)])
        self._learned_from, self._learned_to = 0, world.begin
        times = world.records.times
        self._now = self._planned_at = float(times[world.begin]) if world.begin < len(times) else world.until
        self._plans = 0
        self._upstream_before = self._upstream(self._now) if world.begin else 0
        self._windows: dict[tuple[int, int], Alarm] = {}
        self._done = Outcome()
        self._ages: list[NDArray[np.float64]] = []
        self._live: list[tuple[float, int]] = []
        """When each version is there, and how many of the replayed examples it and its ancestors have learned."""

    def outcome(self) -> Outcome:
        began, at = self._now, float(self._now)
        while at <= self._world.until:
            self._now = at
            decision = decide(self._triggers, self._situation())
            if isinstance(decision, Fire):
                at = max(self._plan(decision), at + _LEAST_SECONDS)
            else:
                at = max(min(self._next_changes(decision.until)), at + _LEAST_SECONDS)
        done = self._done
        done.waiting = int(self._counts[-1] - self._counts[self._learned_to])
        done.busy_share = done.trainer_seconds / max(self._world.until - began, 1e-9)
        replayed = slice(self._world.begin, None)
        done.behind_examples = examples_behind(
            self._records.times[replayed], self._records.examples[replayed], self._live
        )
        if self._ages:
            learned = slice(self._world.begin, self._learned_to)
            ages, weights = np.concatenate(self._ages), self._records.examples[learned]
            median, highest = np.quantile(ages, [0.5, 0.95], weights=weights, method="inverted_cdf").tolist()
            mean = float(np.average(ages, weights=weights))
            done.freshness_seconds = {"mean": mean, "p50": median, "p95": highest}
        return done

    def _arrived(self) -> int:
        """Records that are in the log by now, and do not wait for labels."""
        return int(bisect_right(self._records.times, self._now - self._world.wait_seconds))

    def _next_changes(self, until: float | None) -> Iterator[float]:
        """When the decision may change."""
        yield np.inf
        if (arrived := self._arrived()) < len(self._records.times):
            yield float(self._records.times[arrived]) + self._world.wait_seconds
        if until is not None:
            yield until
        moves = self._world.upstream
        if (following := bisect_right(moves, self._now, key=itemgetter(0))) < len(moves):
            yield moves[following][0]

    def _situation(self) -> Situation:
        fresh = int(self._counts[self._arrived()] - self._counts[self._learned_to])
        return Situation(
            now=self._now,
            fresh_examples=fresh,
            last_planned_at=self._planned_at,
            has_planned=self._plans > 0,
            is_first=not self._learned_to,
            upstream=self._upstream(self._now),
            upstream_before=self._upstream_before,
            shift=self._shift(fresh),
        )

    def _upstream(self, at: float) -> int:
        moves = self._world.upstream
        place = bisect_right(moves, at, key=itemgetter(0))
        return moves[place - 1][1] if place else 0

    def _shift(self, fresh: int) -> Alarm:
        drift = self._triggers.drift
        number = fresh // drift.window_examples if drift and self._learned_to else 0
        if drift is None or not number or self._world.shift_of is None:
            return Alarm(sentence="there is no whole window to compare")
        key = (self._learned_to, number)
        if key not in self._windows:
            if len(self._windows) >= _MOST_WINDOWS:
                raise InvalidInput(
                    f"the policy compares more than {_MOST_WINDOWS} windows of events; replay fewer days"
                )
            base = self._counts[self._learned_to]
            begin, end = (
                int(bisect_left(self._counts, base + count * drift.window_examples)) for count in (number - 1, number)
            )
            fault = self._world.shift_of(drift, (self._learned_from, self._learned_to), (begin, end), number)
            self._windows[key] = Alarm(1, number if fault else 0, fault or "the newest window has not shifted")
        return self._windows[key]

    def _plan(self, fired: Fire) -> float:
        """Takes the events into a round; when its version is there."""
        begin, limit = self._learned_to, self._counts[self._learned_to] + self._triggers.max_round_examples
        end = max(min(self._arrived(), int(bisect_right(self._counts, limit)) - 1), begin + 1)
        count, done = int(self._counts[end] - self._counts[begin]), self._done
        seconds = self._world.cost.of(count)
        done.versions += 1
        done.examples += count
        done.trainer_seconds += seconds
        done.fired[fired.trigger] += 1
        if len(done.plans) < _SHOWN_PLANS:
            why = "; ".join(fired.fired.values())
            done.plans.append({"at": self._now, "examples": count, "trigger": fired.trigger, "why": why})
        if done.versions > _MOST_PLANS:
            raise InvalidInput(f"the policy makes more than {_MOST_PLANS} versions; replay fewer days")
        self._ages.append(self._now + seconds - self._records.times[begin:end])
        self._live.append((self._now + seconds, int(self._counts[end] - self._counts[self._world.begin])))
        self._learned_from, self._learned_to, self._planned_at = begin, end, self._now
        self._upstream_before, self._plans = self._upstream(self._now), self._plans + 1
        return self._now + seconds


class Replays:
    """May be called from any thread."""

    def __init__(self, registry: RegistryClient, log: EventLog, planner: Planner, clock: Callable[[], float]) -> None:
        self._registry, self._log, self._planner, self._clock = registry, log, planner, clock

    def compare(self, model: str, section: object, *, since: float = 0.0) -> dict[str, Any]:
        """The policy in force, and the policy of a section `triggers` unless it is None, from `since` (epoch seconds)
        on.

        Returns:
            {"from", "to", "records", "examples", "cost", "gain", "as_it_was", "policies": [{"name", "not_replayed", and
            the fields of Outcome}]}

        Raises:
            InvalidInput: the section is no triggers section, or the log is too long to be replayed.
            NotFound: no such model. Conflict: its log is damaged, or holds nothing since then.
        """
        state, bounds = self._planner.known(model)
        stream = self._registry.get_stream(state.model.stream)
        policies = {"in force": state.definition.triggers}
        if section is not None:
            policies["proposed"] = parse_triggers(section, model=model)
            policies["proposed"].check_schema(Schema.from_json(stream.schema_json), place="the policy")
        for triggers in policies.values():
            if triggers.needs_all and triggers.quality:
                raise InvalidInput("triggers: quality cannot be replayed, and combine: all waits for it; leave it out")
        records = self._records(state, bounds)
        begin = int(bisect_left(records.times, since))
        if begin == len(records.times):
            raise Conflict(f"stream {state.model.stream} has no events {'since then' if since else 'yet'} to replay")
        versions, now = self._registry.list_versions(model), self._clock()
        rounds = self._rounds(model, versions)
        cost, outcomes = _cost_of(rounds), []
        for name, triggers in policies.items():
            world = World(
                records, begin, now, cost, self._moves(triggers.upstream),
                state.late_labels.wait_seconds if state.late_labels else 0.0,
                self._shift_of(state, triggers, records, stream.schema_json),
            )  # fmt: skip
            outcome = asdict(replay(triggers, world))
            outcomes.append({"name": name, "not_replayed": _not_replayed(triggers), **outcome})
        began = float(records.times[begin])
        return {
            "model": model,
            "from": began,
            "to": now,
            "records": len(records.times) - begin,
            "examples": int(records.examples[begin:].sum()),
            "cost": asdict(cost),
            "gain": asdict(gain_of(state.definition.gate, versions)),
            "as_it_was": _as_it_was(rounds, began, records.times[begin:], records.examples[begin:]),
            "policies": outcomes,
        }

    def _records(self, state: ModelState, bounds: LogBounds) -> Records:
        topic = examples_topic(state.model.stream)
        if not any(bounds.end.values()):
            raise Conflict(f"stream {state.model.stream} has no events yet to replay")

        def read(partition: int, start: int) -> Iterator[tuple[float, int, int, int]]:
            for info in self._log.scan(topic, partition, start, bounds.end[partition]):
                count = info.headers.example_count
                count -= len(state.forgotten.rows_of(partition, info.offset, count))
                yield info.headers.ingest_time, partition, info.offset, count

        readers = [read(partition, start) for partition, start in sorted(bounds.start.items())]
        rows = [*islice(heapq.merge(*readers), MAX_RECORDS + 1)]
        if len(rows) > MAX_RECORDS:
            raise InvalidInput(f"the log keeps more than {MAX_RECORDS:,} records, which a replay does not hold")
        columns = np.array(rows, [("time", np.float64), ("partition", int), ("offset", int), ("examples", int)])
        # A clock that was set back does not take records out of a partition's order.
        rising = np.maximum.accumulate(columns["time"])
        return Records(rising, columns["partition"], columns["offset"], columns["examples"])

    def _rounds(self, model: str, versions: Sequence[Version]) -> list[tuple[float, int, float, str]]:
        """(planned at, examples, seconds from plan to version, trigger) of the newest thousand that made a version."""
        made = {version.version: version.created_at for version in versions}
        return [
            (done.planned_at, done.plan.example_count, made[done.version] - done.planned_at, done.plan.trigger)
            for done in self._registry.list_rounds(model, limit=len(made) or 1)
            if done.version in made and done.plan.example_count
        ]

    def _moves(self, upstream: str) -> list[tuple[float, int]]:
        moves = self._registry.alias_history(upstream) if upstream else []
        return [(move.at, move.to_version) for move in moves if move.alias == PRODUCTION]

    def _shift_of(
        self, state: ModelState, triggers: Triggers, records: Records, schema_json: str
    ) -> Callable[[Drift, tuple[int, int], tuple[int, int], int], str] | None:
        if triggers.drift is None:
            return None
        if not state.head:
            raise Conflict(f"drift compares fields that a version of {state.model.name} reads, and there is none")
        drifts = Drifts(self._registry, self._log, self._clock)
        schema, topic = Schema.from_json(schema_json), examples_topic(state.model.stream)
        names = compared_features(drifts.read_by(state.model.name, state.head), schema, triggers.drift)
        if not names:
            raise Conflict(f"version {state.head} of {state.model.name} reads nothing that drift compares")

        def values(stretch: tuple[int, int]) -> Mapping[str, Values]:
            count = int(records.examples[slice(*stretch)].sum())
            return values_of([*drifts.sample(topic, records.ranges(*stretch), count)], schema, names)

        kept = lru_cache(1)(values)

        def shift_of(drift: Drift, learned: tuple[int, int], window: tuple[int, int], number: int) -> str:
            found = find_shift(kept(learned), values(window), alpha=drift.alpha, seed=number)
            return ", ".join(f"{move.feature} {move.distance:.3g} above {move.threshold:.3g}" for move in found.shifted)

        return shift_of


def _cost_of(rounds: Sequence[tuple[float, int, float, str]]) -> Cost:
    """Nothing below 0: more examples never take less time."""
    if not rounds:
        return Cost()
    examples, seconds = (np.array(column, np.float64) for column in list(zip(*rounds, strict=True))[1:3])
    if np.ptp(examples) == 0:
        return Cost(float(np.median(seconds)), 0.0, len(rounds))
    slope, fixed = np.polyfit(examples, seconds, 1)
    if fixed < 0 or slope < 0:
        slope, fixed = (0.0, float(seconds.mean())) if slope < 0 else (float(seconds.sum() / examples.sum()), 0.0)
    return Cost(float(fixed), float(slope), len(rounds))


def _as_it_was(
    rounds: Sequence[tuple[float, int, float, str]], began: float, times: NDArray[np.float64],
    examples: NDArray[np.int64],
) -> dict[str, Any]:  # fmt: skip
    done = sorted(round_ for round_ in rounds if round_[0] >= began)
    learned = accumulate(round_[1] for round_ in done)
    live = [(planned_at + seconds, count) for (planned_at, _, seconds, _), count in zip(done, learned, strict=True)]
    return {
        "behind_examples": examples_behind(times, examples, live),
        "versions": len(done),
        "examples": sum(round_[1] for round_ in done),
        "trainer_seconds": sum(round_[2] for round_ in done),
        "fired": Counter(round_[3] for round_ in done),
    }


def _not_replayed(triggers: Triggers) -> list[str]:
    scores = triggers.drift is not None and triggers.drift.scores
    is_set_by_name = {
        "quality": triggers.quality is not None,
        "drift: scores": scores,
        "on_drift": triggers.on_drift != "ignore",
    }
    return [name for name, is_set in is_set_by_name.items() if is_set]
