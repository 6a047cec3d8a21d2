"""A process's own time: processor time while it wants a core, wall time while it sleeps."""

import os
import signal
import subprocess
import sys

from common.process.own_time import OwnClock, Usage, ends_within, usage_of
from testing.waiting import wait_until

_SPINS_IN_A_CHILD = "import os; os.fork() or [None for _ in iter(int, 1)]; os.wait()"


def _clock(*usages: Usage) -> OwnClock:
    """One that is to look a second after another, from 0 on."""
    coming = iter(usages)
    return OwnClock(lambda: next(coming), 0.0)


def test_seconds_without_a_core_are_starved_and_not_its_own() -> None:
    clock = _clock(Usage(5.0, wants=True), Usage(5.25, wants=True), Usage(5.25, wants=False), Usage(8.25, wants=True))
    for now in (0.5, 1.0, 2.0, 3.0):
        clock.look(now)
    assert (clock.wall_seconds, clock.cpu_seconds) == (3.0, 3.25)
    assert (clock.own_seconds, clock.starved_seconds) == (2.25, 0.75), "a second has no more than a second"
    newest = clock.lately(2.0)
    assert newest is not None
    assert (newest.cpu_seconds, newest.starved_seconds) == (3.0, 0.0)
    assert clock.lately(4.0) is None


def test_a_descendant_that_takes_its_time_with_it_is_no_time_gained() -> None:
    clock = _clock(Usage(9.0, wants=True), Usage(2.0, wants=True), Usage(3.0, wants=True))
    for now in (1.0, 2.0):
        clock.look(now)
    assert clock.cpu_seconds == 1.0


def test_a_limit_counts_no_second_without_a_core() -> None:
    class Starved(OwnClock):
        def look(self, now: float) -> None:
            super().look(self.wall_seconds + 1.0)

    looks = 0

    def ended(seconds: float) -> bool:
        nonlocal looks
        looks += 1
        return looks > 1000

    assert ends_within(300.0, Starved(lambda: Usage(0.0, wants=True), 0.0), ended)
    looks = 0
    assert not ends_within(300.0, Starved(lambda: Usage(0.0, wants=False), 0.0), ended)
    assert looks == 300


def test_the_time_of_a_child_counts_and_one_that_is_stopped_wants_a_core() -> None:
    with subprocess.Popen([sys.executable, "-c", _SPINS_IN_A_CHILD], start_new_session=True) as process:
        try:
            wait_until(lambda: usage_of(process.pid).cpu_seconds > 0.2, "its child has used a core")
            assert usage_of(process.pid).wants
            assert not usage_of(process.pid, with_descendants=False).wants
            os.killpg(process.pid, signal.SIGSTOP)
            wait_until(lambda: usage_of(process.pid, with_descendants=False).wants, "it is stopped")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert usage_of(process.pid) == Usage(0.0, wants=False)
