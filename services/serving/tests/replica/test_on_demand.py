"""Which models a replica holds within a budget of memory, as a clock and the models' standing decide."""

import pytest

from common.errors import InvalidInput
from services.serving.options.model_priorities import ModelPriority, priorities_of
from services.serving.replica.on_demand import ModelStanding, OnDemand

NAMES = tuple("abcdefghi")


class Memory:
    """Models of 10 bytes each; a model is in memory as soon as it should be, and leaves when a test says so."""

    def __init__(self, budget: int, priorities: str = "") -> None:
        self.on_demand = OnDemand(budget, priorities_of(priorities))
        self.held: set[str] = set()
        self.now = 0.0
        self.step()

    def step(self, seconds: float = 0.0) -> set[str]:
        self.now += seconds
        standings = {name: ModelStanding(10, name in self.held, name in self.held) for name in NAMES}
        loaded = set(self.on_demand.loaded(standings, wanted=NAMES, now=self.now))
        self.held |= loaded
        return loaded

    def ask(self, model: str) -> set[str]:
        """What has to leave leaves at once, and what is loaded answers at once; then four seconds pass."""
        self.on_demand.ask([model], now=self.now)
        self.held &= self.step()
        self.step()
        self.step()
        return self.step(4.0)

    def evictions(self) -> dict[str, int]:
        return dict(self.on_demand.memory().evictions)


def test_the_model_asked_least_lately_makes_room() -> None:
    memory = Memory(25)
    assert memory.step() == set()
    assert memory.ask("a") == {"a"}
    assert memory.ask("b") == {"a", "b"}
    memory.on_demand.used("a", now=memory.now)
    assert memory.ask("c") == {"a", "c"}
    assert memory.evictions() == {"b": 1}


def test_a_model_is_loaded_when_those_that_leave_have_given_their_memory_back() -> None:
    memory = Memory(25)
    memory.ask("a")
    memory.ask("b")
    memory.on_demand.ask(["c"], now=memory.now)
    assert memory.step() == {"b"}, "a leaves, and is still there"
    memory.held.discard("a")
    assert memory.step() == {"b", "c"}


def test_a_model_that_is_waited_for_or_has_just_come_stays() -> None:
    memory = Memory(25)
    memory.on_demand.ask(["a", "b", "c"], now=0.0)
    assert memory.step() == {"a", "b"}
    assert memory.step(0.5) == {"a", "b"}, "c waits"
    memory.on_demand.used("a", now=memory.now)
    assert memory.step(0.9) == {"a", "b"}, "what waited for b gets to it"
    assert memory.step(0.2) == {"a"}
    memory.held.discard("b")
    assert memory.step() == {"a", "c"}


def test_high_priority_is_there_unasked_and_stays_and_low_priority_leaves_first() -> None:
    memory = Memory(30, "d=high,b=low")
    assert memory.step() == {"d"}
    memory.ask("a")
    memory.ask("b")
    assert memory.ask("c") == {"a", "c", "d"}, "b was asked after a"
    assert memory.evictions() == {"b": 1}


def test_once_room_was_short_there_is_room_for_the_next_model() -> None:
    memory = Memory(80)
    for model in NAMES[:8]:
        memory.ask(model)
    assert memory.step() == set(NAMES[:8])
    memory.ask("i")
    assert memory.step() == set(NAMES[2:9]), "70 of 80 bytes"


def test_a_model_larger_than_the_budget_is_loaded_alone() -> None:
    memory = Memory(5)
    assert memory.ask("a") == {"a"}
    assert memory.ask("b") == {"b"}


def test_a_model_that_could_not_be_loaded_may_be_asked_again_after_half_a_minute() -> None:
    on_demand = OnDemand(10, {})
    failed = {"a": ModelStanding(is_settled=True)}
    on_demand.ask(["a"], now=0.0)
    assert on_demand.loaded(failed, wanted=["a"], now=0.0) == {"a"}
    assert on_demand.loaded(failed, wanted=["a"], now=1.0) == {"a"}
    assert on_demand.loaded(failed, wanted=["a"], now=30.0) == {"a"}
    assert on_demand.loaded(failed, wanted=["a"], now=32.0) == set()


def test_priorities_are_read_and_others_refused() -> None:
    assert priorities_of("a=low, b=high") == {"a": ModelPriority.LOW, "b": ModelPriority.HIGH}
    for wrong in ("a", "a=middle", "=low", "a=low,a=high"):
        with pytest.raises(InvalidInput, match="SERVING_MODEL_PRIORITIES"):
            priorities_of(wrong)
