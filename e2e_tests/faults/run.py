"""One run: a platform under load, fault after fault, then everything is read out and judged."""

import itertools
import json
import math
import os
import platform as host
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from e2e_tests.faults.checker import judge
from e2e_tests.faults.early_end import EarlyEnd
from e2e_tests.faults.history import (
    TIME_LIMIT,
    AccountSeen,
    AliasMove,
    CanaryMove,
    EndedEarly,
    Fault,
    Prediction,
    Rebuild,
    Recorder,
    Recovery,
    Run,
    StageDecided,
    VersionRecord,
    of_kind,
    read_history,
)
from e2e_tests.faults.injection import Card, Injector, deal, logs_of, overlap
from e2e_tests.faults.load import GrpcAsker, Labeller, Operator, Rates, RestAsker, Sender, Successes
from e2e_tests.faults.stream import MODEL, ROUND_EVENTS, apply
from e2e_tests.faults.table import Judged
from e2e_tests.faults.truth import expected_answers
from e2e_tests.faults.watch import Watcher, watch_the_clock
from e2e_tests.waiting import until
from headrace import Client, Conflict, HeadraceError, Unavailable

_POLL_SECONDS = 0.1
_ROUNDS = 1000
"""As many as the registry tells at once."""
_BEGIN_SECONDS = 240.0
_JOIN_SECONDS = 300.0
_SETTLE_SECONDS = 180.0
_REBUILD_SECONDS = 180.0
_ACCOUNT_SECONDS = 60.0
_LABEL_SECONDS = 5.0


@dataclass(frozen=True)
class Options:
    """Attributes:
    only: names of faults, "what: target"; empty for the whole deck.
    pause_seconds: the least and the most that a pause, a cut or a full disk lasts.
    gap_seconds: the least and the most between a recovery and the next fault.
    recovery_seconds: what a recovery may take.
    overlap: the share of the strikes that hit two targets at once.
    at_most_seconds: after this long nothing more is struck; at least one fault is.
    trainers: each computes a part of every round; the model has as many shards.
    round_events: waiting events that start a round.
    has_table: the model has 32 MB, of which a round changes a part.
    has_canary: versions come to production in stages, and the operator takes a canary away now and then.
    """

    mode: str
    kills: int
    seed: int
    folder: Path
    only: tuple[str, ...] = ()
    pause_seconds: tuple[float, float] = (5.0, 30.0)
    gap_seconds: tuple[float, float] = (0.5, 3.0)
    recovery_seconds: float = 180.0
    overlap: float = 0.0
    at_most_seconds: float = math.inf
    trainers: int = 1
    round_events: int = ROUND_EVENTS
    has_canary: bool = False
    has_table: bool = False
    rates: Rates = field(default_factory=Rates)


class FaultRun:
    def __init__(self, options: Options, injector: Injector, progress: Progress, early_end: EarlyEnd) -> None:
        self._options, self._injector, self._progress, self._early_end = options, injector, progress, early_end
        self._history = Recorder(options.folder / "history.jsonl")
        self._successes = Successes()
        self._chance = random.Random(options.seed)
        addresses = injector.platform.addresses
        with injector.platform.client() as client:
            if client.token:
                os.environ["HEADRACE_TOKEN"] = client.token  # for every client of this process
        self._watcher = Watcher(addresses, self._history, self._successes, sees_canary=options.has_canary)
        url = addresses.predictions or addresses.serving[0]
        grpc_port = injector.platform.grpc_port("serving-0")
        requests, questions, rates, seed = itertools.count(), itertools.count(1), options.rates, options.seed
        self._operator = Operator(addresses, self._history, seed, has_canary=options.has_canary)
        shared = (self._history, self._successes)
        labels = injector.platform.client(timeout_seconds=_LABEL_SECONDS)
        self._labeller = Labeller(labels, url, self._history, seed)
        self._senders = [
            Sender(addresses.ingest, *shared, requests, rates, seed + number) for number in range(rates.senders)
        ]
        self._askers = [
            GrpcAsker(grpc_port, *shared, questions, rates, seed + number)
            if number % 3 == 2
            else RestAsker(url, *shared, questions, rates, seed + number)
            for number in range(rates.askers)
        ]

    def run(self) -> Judged:
        """Raises AssertionError when it cannot begin, or does not settle in the end."""
        options = self._options
        machine = f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB, {host.system()}"
        self._history.add(Run(time.time(), options.mode, options.seed, machine, str(options.rates)))
        with self._client() as client:
            apply(
                client, options.folder / "definition", shards=options.trainers, round_events=options.round_events,
                has_canary=options.has_canary, has_table=options.has_table,
            )  # fmt: skip
        clock = partial(watch_the_clock, self._history)
        with self._going_on([clock, self._watcher.run, *(sender.run for sender in self._senders)]):
            until(
                lambda: self._successes.first_after("learned", 0.0),
                "a first version was learned",
                timeout_seconds=_BEGIN_SECONDS,
            )
            until(self._is_served, "it is served", timeout_seconds=_BEGIN_SECONDS)
            with self._going_on([*(asker.run for asker in self._askers), self._operator.run, self._labeller.run]):
                self.strike_all()
        self._settle()
        self._label_the_rest()
        self._read_out()
        self._history.close()
        history = read_history(self._history.path)
        return Judged(history, judge(history))

    def _client(self, timeout_seconds: float = 30.0) -> Client:
        return self._injector.platform.client(timeout_seconds=timeout_seconds)

    def _is_served(self) -> bool:
        with self._client() as client:
            client.predict(MODEL, instances=[{"a": 0.5, "b": 0.5}])
            return True

    @contextmanager
    def _going_on(self, what: Sequence[Callable[[threading.Event], None]]) -> Iterator[None]:
        """Runs each beside the block."""
        stop = threading.Event()
        threads = [threading.Thread(target=one, args=(stop,), daemon=True) for one in what]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(_JOIN_SECONDS)
        assert not any(thread.is_alive() for thread in threads), "a sender or an asker hangs"

    def strike_all(self) -> None:
        """Fault after fault, until all are done or the run is to end early."""
        options = self._options
        task = self._progress.add_task("faults", total=options.kills)
        cards, number = deal(self._deck(), options.kills, self._chance), 1
        end = time.monotonic() + options.at_most_seconds
        for struck in overlap(cards, options.overlap, self._chance):
            threading.Event().wait(self._chance.uniform(*options.gap_seconds))
            why = self._early_end.signal_name or (TIME_LIMIT if number > 1 and time.monotonic() > end else "")
            if why:
                self._history.add(EndedEarly(time.time(), why, options.kills + 1 - number))
                return
            self._progress.update(task, description=" + ".join(f"{what}: {target}" for what, target in struck))
            self._strike(number, struck)
            self._progress.advance(task, len(struck))
            number += len(struck)

    def _deck(self) -> list[Card]:
        """Raises AssertionError for a fault that is not in the deck."""
        deck = {f"{what}: {target}": (what, target) for what, target in self._injector.deck()}
        unknown = [name for name in self._options.only if name not in deck]
        assert not unknown, f"there is no fault {unknown[0]!r} in this mode; there are {', '.join(sorted(deck))}"
        return [deck[name] for name in self._options.only or deck]

    def _strike(self, first_number: int, cards: Sequence[Card]) -> None:
        """Strikes with all cards at once. Each is a fault of its own; they are recovered from together, counted from
        the moment when the last of them is lifted."""
        lasting_seconds = [self._chance.uniform(*self._options.pause_seconds) for _ in cards]
        numbers = range(first_number, first_number + len(cards))
        with ThreadPoolExecutor(len(cards)) as pool:
            faults = list(pool.map(self._strike_one, numbers, cards, lasting_seconds))
        self._history.add(*faults)
        lifted_at = max(fault.until for fault in faults)
        kinds = ("acknowledged", "answered over rest", "answered over grpc", "learned")
        end = time.time() + self._options.recovery_seconds
        while True:
            found = [self._successes.first_after(kind, lifted_at) for kind in kinds]
            if None not in found or time.time() > end:
                break
            time.sleep(_POLL_SECONDS)
        seconds = [None if moment is None else moment - lifted_at for moment in found]
        answered = None if None in seconds[1:3] else max(one for one in seconds[1:3] if one is not None)
        for fault in faults:
            recovery = Recovery(time.time(), fault.number, seconds[0], answered, seconds[3])
            self._history.add(recovery)
            taken = "NOT within the bound" if recovery.seconds is None else f"{recovery.seconds:.1f} s"
            self._progress.console.print(
                f"{fault.number:4d}  {fault.what:12s} {fault.target:20s} lasted {fault.until - fault.at:5.1f} s, "
                f"recovered after {taken}",
                highlight=False,
            )

    def _strike_one(self, number: int, card: Card, lasting_seconds: float) -> Fault:
        at = time.time()
        try:
            lifted_at = self._injector.strike(card, lasting_seconds)
        except (HeadraceError, AssertionError) as error:  # what was struck did not come back by itself: judged below
            lifted_at = time.time()
            self._progress.console.print(f"{number:4d}  {card[0]} of {card[1]}: {error}", style="red", highlight=False)
        return Fault(at, lifted_at, number, *card)

    def _settle(self) -> None:
        """Waits until everything is up, and the rest of the events is learned."""
        self._injector.platform.wait_until_ready(timeout_seconds=_SETTLE_SECONDS)
        with self._client() as client:
            until(lambda: not _open_round(client), "no round is open", timeout_seconds=_SETTLE_SECONDS)
            with suppress(Conflict):  # nothing was left, or a trigger was quicker
                client.train(MODEL, reason="the rest")
            until(lambda: not _open_round(client), "the last round ended", timeout_seconds=_SETTLE_SECONDS)

    def _label_the_rest(self) -> None:
        """Waits until labels that come when all is over are counted, or for so long; that is judged later."""
        before = self._watcher.evidence()
        self._history.add(before)
        keys = until(lambda: self._labeller.label(is_after=True), "labels are acknowledged")
        with suppress(AssertionError):
            until(
                lambda: self._watcher.evidence().labelled >= before.labelled + keys,
                "the labels are counted",
                timeout_seconds=_SETTLE_SECONDS,
            )
        self._history.add(self._watcher.evidence())

    def _read_out(self) -> None:
        """Everything that the judge needs and only shows when all is over."""
        history, done = self._history, self._progress.add_task("reading out", total=None)
        with self._client() as client:
            until(lambda: self._look_again(), "the registry shows every version")
            plans = {item.version: item.plan for item in client.rounds(MODEL, limit=_ROUNDS)}
            records = [_record(version, plans[version.version]) for version in client.versions(MODEL)]
            history.add(*records)
            for change in client.alias_history(MODEL):
                if change.alias == "canary":
                    history.add(CanaryMove(change.at, change.from_version, change.to_version))
                if change.alias == "production":
                    history.add(AliasMove(change.at, change.from_version, change.to_version, change.by, change.reason))
            history.add(*_decided(client))
            records_of_log = list(self._injector.log_records())
            history.add(*records_of_log, self._last_account(sum(len(record.events) for record in records_of_log)))
            answered = list(of_kind(read_history(history.path), Prediction))
            self._progress.update(done, description="asking each SavedModel")
            history.add(*expected_answers(answered, self._watcher))
        self._progress.update(done, total=len(records), description="rebuilding")
        with self._client(timeout_seconds=_REBUILD_SECONDS) as client:
            for record in records:
                history.add(_rebuild(client, record.version))
                self._progress.advance(done)
        self._watcher.close()

    def _last_account(self, event_count: int) -> AccountSeen:
        """The account once a trainer has reported on all of the log; else as it is after that long, to be judged."""
        with suppress(Unavailable):
            until(
                lambda: self._watcher.account().total == event_count,
                "the account covers the log",
                timeout_seconds=_ACCOUNT_SECONDS,
            )
        return self._watcher.account(is_last=True)

    def _look_again(self) -> bool:
        """Every version once more, to its last byte."""
        self._watcher.look()
        with self._client() as client:
            for version in client.versions(MODEL):
                self._watcher.look_at(version.version)
        return True

    def keep_logs(self) -> None:
        logs_of(self._injector.platform, self._options.folder / "logs")


def _open_round(client: Client) -> bool:
    return any(item.state in ("planned", "running") for item in client.rounds(MODEL, limit=1))


def _decided(client: Client) -> Iterator[StageDecided]:
    """By judges, about canaries."""
    for entry in map(json.loads, client.audit_lines()):
        if entry["action"] == "judge" and "stage" in entry:
            yield StageDecided(entry["at"], entry["version"], entry["stage"], entry["decision"])


def _record(version: Any, plan: Any) -> VersionRecord:
    """Of common/registry/catalog.py's Version and RoundPlan, as the client builds them."""
    left_out = plan.configuration.get("skipped", ())
    return VersionRecord(
        version=version.version, parent=version.parent_version,
        ranges=[(item.partition, item.from_offset, item.to_offset) for item in version.ranges],
        end={str(partition): offset for partition, offset in version.end_position.items()},
        trained=version.events_trained, held_out=version.events_held_out, unusable=version.events_unusable,
        weights_digest=version.weights_digest, status=str(version.status), created_at=version.created_at,
        left_out=[(item["partition"], item["from_offset"], item["to_offset"]) for item in left_out],
    )  # fmt: skip


def _rebuild(client: Client, version: int) -> Rebuild:
    try:
        found = client.rebuild(MODEL, version, wait_seconds=_REBUILD_SECONDS)
    except HeadraceError as error:
        return Rebuild(version, "", error.message)
    return Rebuild(version, found.rebuilt_digest, "; ".join(found.missing))


def progress_bar() -> Progress:
    return Progress(TextColumn("{task.description:34s}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
