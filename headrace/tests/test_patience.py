"""How long a start goes on: while something computes, wants a core or gets further, and not for ever."""

from dataclasses import dataclass, field, replace

from common.process.own_time import Usage
from headrace.local.patience import Patience, lacks
from headrace.places import ProcessState

REGISTRY, TRAINER = ProcessState("registry", pid=1), ProcessState("trainer", pid=2, note="does not answer")


@dataclass
class Machine:
    """Seconds that pass when told to, and what processes use of them."""

    now: float = 0.0
    used: dict[int, float] = field(default_factory=dict)
    wanting: set[int] = field(default_factory=set)

    def patience(self, seconds: float = 120.0) -> Patience:
        return Patience(seconds, usage=self.usage, now=lambda: self.now)

    def usage(self, pid: int) -> Usage:
        return Usage(self.used.get(pid, 0.0), pid in self.wanting)

    def passes(self, patience: Patience, *waiting: ProcessState, seconds: int, share: float = 0.0) -> bool:
        """Whether the time is over after so many seconds, in which each process uses that share of a core."""
        for _ in range(seconds):
            self.now += 1.0
            for process in waiting:
                self.used[process.pid] = self.used.get(process.pid, 0.0) + share
            if patience.is_over(waiting):
                return True
        return False


def test_a_start_that_stands_still_ends_and_one_that_computes_goes_on() -> None:
    machine = Machine()
    patience = machine.patience()
    assert not machine.passes(patience, REGISTRY, TRAINER, seconds=3600, share=0.5)
    assert not machine.passes(patience, REGISTRY, TRAINER, seconds=119, share=0.02)
    assert machine.passes(patience, REGISTRY, TRAINER, seconds=2, share=0.02)


def test_a_process_that_wants_a_core_and_gets_none_is_waited_for() -> None:
    machine = Machine(wanting={2})
    patience = machine.patience()
    assert not machine.passes(patience, REGISTRY, TRAINER, seconds=3600)
    machine.wanting.clear()
    assert machine.passes(patience, REGISTRY, TRAINER, seconds=130)


def test_each_step_forward_gives_the_whole_time_again() -> None:
    machine = Machine()
    patience = machine.patience()
    assert not machine.passes(patience, REGISTRY, TRAINER, seconds=100)
    further = replace(TRAINER, note="registry: cannot be reached")
    assert not machine.passes(patience, REGISTRY, further, seconds=100)
    assert not machine.passes(patience, further, seconds=100), "the registry is ready"
    assert machine.passes(patience, further, seconds=30)


def test_what_dies_and_starts_over_and_over_ends_the_wait() -> None:
    machine = Machine()
    patience = machine.patience(60.0)
    over = [
        machine.passes(patience, state, seconds=5)
        for number in range(30)
        for state in (
            ProcessState("ingest", pid=100 + number),
            ProcessState("ingest", phase="restarting", note="ended with status 3"),
        )
    ]
    assert any(over)
    assert not any(over[:12])


def test_a_reason_that_only_counts_is_no_step_forward() -> None:
    machine = Machine()
    patience = machine.patience(60.0)
    over = [machine.passes(patience, replace(TRAINER, note=f"{number} of 9 tries"), seconds=5) for number in range(20)]
    assert any(over)


def test_what_is_waited_for_is_said_with_its_reason() -> None:
    assert [lacks(process) for process in (REGISTRY, TRAINER)] == [
        "registry is starting", "trainer is starting (does not answer)",
    ]  # fmt: skip
