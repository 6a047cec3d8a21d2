"""Which models a replica holds within a budget of memory, as a clock and the models' standing decide."""

from collections import Counter

import pytest

from common.errors import InvalidInput
from services.serving.options.model_priorities import ModelPriority, priorities_of
from services.serving.replica.on_demand import ModelStanding, OnDemand

NAMES = tuple("abcdefghi")


class Memory:
    """Models of 10 bytes each; a model is in memory as soon as it should be, and leaves when a test says so."""

    def __init__(self, budget: int, priorities: str = "") -> None:
        self.on_demand = OnDemand(budget, priorities_of(priorities), models_per_runner=3)
        self.held: set[str] = set()
        self.unknown: set[str] = set()
        self.now = 0.0
        self.step()

    def step(self, seconds: float = 0.0) -> set[str]:
        self.now += seconds
        loaded = set(self.on_demand.loaded(self.standings(), wanted=NAMES, now=self.now))
        self.held |= loaded
        return loaded

    def standings(self) -> dict[str, ModelStanding]:
        return {name: ModelStanding(10, name in self.held, name in self.held) for name in NAMES}

    def ask(self, model: str) -> set[str]:
        """What has to leave leaves at once, and what is loaded answers at once; then four seconds pass."""
        self.on_demand.request([model], now=self.now)
        self.held &= self.step()
        self.step()
        self.step()
        return self.step(4.0)

    def evictions(self) -> dict[str, int]:
        return dict(self.on_demand.memory().evictions)


class SharedMemory(Memory):
    """A process takes 60 bytes and 6 for each model; a to c are kin, and so are d to f, and g to i."""

    def standings(self) -> dict[str, ModelStanding]:
        kin = {name: NAMES.index(name) // 3 + 1 for name in NAMES}
        inside = Counter(kin[name] for name in self.held)
        return {
            name: ModelStanding(
                60 // inside[kin[name]] + 6 if name in self.held else 0, name in self.held, name in self.held,
                process=kin[name] if name in self.held else 0, kin=kin[name], part_bytes=6,
                needs_look=name in self.unknown,
            )
            for name in NAMES
        }  # fmt: skip


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
    memory.on_demand.request(["c"], now=memory.now)
    assert memory.step() == {"b"}, "a leaves, and is still there"
    memory.held.discard("a")
    assert memory.step() == {"b", "c"}


def test_a_model_that_is_waited_for_or_has_just_come_stays() -> None:
    memory = Memory(25)
    memory.on_demand.request(["a", "b", "c"], now=0.0)
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


@pytest.mark.covers("srv-multi-model")
def test_a_model_that_joins_a_process_takes_its_part_and_a_process_that_is_in_the_way_ends_whole() -> None:
    memory = SharedMemory(160)
    for model in "adbecf":
        loaded = memory.ask(model)
    assert loaded == set("abcdef"), "two processes with three models each"
    assert memory.ask("g") == set("defg"), "one after the other a, d, b, e and c had to leave"
    assert memory.evictions() == dict.fromkeys("abc", 1)


def test_a_little_room_is_made_by_single_models() -> None:
    memory = SharedMemory(150)
    for model in "abcd":
        memory.ask(model)
    assert memory.ask("e") == set("abcde")
    assert memory.ask("f") == set("bcdef"), "150 bytes again"


def test_room_is_judged_when_it_is_known_which_process_a_model_may_join() -> None:
    memory = SharedMemory(80)
    memory.unknown = {"b"}
    memory.ask("a")
    memory.on_demand.request(["b"], now=memory.now)
    assert memory.step() == {"a"}
    assert memory.on_demand.to_look_at == {"b"}
    memory.unknown = set()
    assert memory.step() == {"a", "b"}


def test_a_model_that_could_not_be_loaded_may_be_asked_again_after_half_a_minute() -> None:
    on_demand = OnDemand(10, {})
    failed = {"a": ModelStanding(is_settled=True)}
    on_demand.request(["a"], now=0.0)
    assert on_demand.loaded(failed, wanted=["a"], now=0.0) == {"a"}
    assert on_demand.loaded(failed, wanted=["a"], now=1.0) == {"a"}
    assert on_demand.loaded(failed, wanted=["a"], now=30.0) == {"a"}
    assert on_demand.loaded(failed, wanted=["a"], now=32.0) == set()


def test_priorities_are_read_and_others_refused() -> None:
    assert priorities_of("a=low, b=high") == {"a": ModelPriority.LOW, "b": ModelPriority.HIGH}
    for wrong in ("a", "a=middle", "=low", "a=low,a=high"):
        with pytest.raises(InvalidInput, match="SERVING_MODEL_PRIORITIES"):
            priorities_of(wrong)
