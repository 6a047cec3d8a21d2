"""A run that is asked to end strikes no more, and is judged by what happened."""

import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.progress import Progress

from e2e_tests.faults.__main__ import exit_status
from e2e_tests.faults.checker import judge
from e2e_tests.faults.early_end import EarlyEnd
from e2e_tests.faults.history import TIME_LIMIT, EndedEarly, Fault, LogRecord, Recovery, of_kind, read_history
from e2e_tests.faults.injection import KILL, PAUSE, Card
from e2e_tests.faults.run import FaultRun, Options
from e2e_tests.faults.table import Judged, summary
from e2e_tests.faults.test_checker import sound
from e2e_tests.faults.violation import Violation
from headrace import Addresses, Client

pytestmark = pytest.mark.local_only

_NOWHERE = "http://127.0.0.1:9"


class SignallingInjector:
    """Does nothing, but at one strike SIGTERM comes. Nobody ever connects to its platform."""

    def __init__(self, *, at_strike: int) -> None:
        addresses = Addresses(registry=_NOWHERE, ingest=_NOWHERE, trainer=_NOWHERE, serving=(_NOWHERE,))
        self.platform: Any = SimpleNamespace(
            addresses=addresses, grpc_port=lambda name: 9, client=lambda **_: Client(addresses, token="")
        )
        self.strike_count = 0
        self._at_strike = at_strike

    def deck(self) -> list[Card]:
        return [(KILL, "redis"), (KILL, "ingest"), (PAUSE, "trainer")]

    def strike(self, card: Card, seconds: float) -> float:
        self.strike_count += 1
        if self.strike_count == self._at_strike:
            os.kill(os.getpid(), signal.SIGTERM)
        return time.time()

    def log_records(self) -> list[LogRecord]:
        return []

    def close(self) -> None:
        """There is nothing."""


def struck(folder: Path, injector: SignallingInjector, *, kills: int, at_most_seconds: float = math.inf) -> Judged:
    """The history of the strikes alone; none of them is recovered from."""
    options = Options(
        "local", kills, 1, folder, gap_seconds=(0.0, 0.01), recovery_seconds=0.0, at_most_seconds=at_most_seconds
    )
    end = EarlyEnd()
    with end.listening(), Progress(disable=True) as progress:
        FaultRun(options, injector, progress, end).strike_all()
    return Judged(read_history(folder / "history.jsonl"), [])


def test_no_further_fault_after_a_signal_and_the_one_that_is_about_is_finished(tmp_path: Path) -> None:
    injector = SignallingInjector(at_strike=2)
    found = struck(tmp_path, injector, kills=9)
    assert injector.strike_count == 2
    assert [fault.number for fault in of_kind(found.history, Fault)] == [1, 2]
    assert [recovery.number for recovery in of_kind(found.history, Recovery)] == [1, 2]
    assert found.early_end is not None
    assert (found.early_end.signal_name, found.early_end.left_count) == ("SIGTERM", 7)


def test_a_signal_in_the_last_fault_cuts_nothing_short(tmp_path: Path) -> None:
    found = struck(tmp_path, SignallingInjector(at_strike=3), kills=3)
    assert len(list(of_kind(found.history, Fault))) == 3
    assert found.early_end is None


def test_a_time_limit_that_was_given_leaves_faults_out_but_never_all(tmp_path: Path) -> None:
    found = struck(tmp_path, SignallingInjector(at_strike=9), kills=3, at_most_seconds=0.0)
    assert len(list(of_kind(found.history, Fault))) == 1
    assert found.early_end is not None
    assert (found.early_end.signal_name, found.early_end.left_count) == (TIME_LIMIT, 2)
    assert exit_status([found]) == 0


def test_a_second_signal_ends_everything_and_what_was_there_before_is_there_again() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    end = EarlyEnd()

    def twice() -> None:
        with end.listening():
            signal.raise_signal(signal.SIGINT)
            assert end.signal_name == "SIGINT"
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_the_report_of_what_happened_says_what_did_not() -> None:
    history = [*sound(), EndedEarly(400.0, "SIGTERM", 7)]
    cut_short = Judged(history, judge(history))
    assert "2 faults (7 were left at SIGTERM);" in summary(cut_short)
    assert "0 violations" in summary(cut_short)
    assert exit_status([cut_short]) == 3
    assert exit_status([replace(cut_short, violations=[Violation(1, "an event is lost")])]) == 1
    whole = Judged(sound(), judge(sound()))
    assert "2 faults;" in summary(whole)
    assert exit_status([whole]) == 0
