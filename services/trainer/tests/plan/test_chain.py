"""Where a round begins and ends, and what names it: the planner's pure parts, without registry or log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.registry.catalog import PRODUCTION, Model, OffsetRange, Round, RoundPlan, RoundState
from services.trainer.plan import lineage
from services.trainer.plan.backlog import Backlog
from services.trainer.plan.chain import Beginning, ModelState, beginning_of, left_out
from services.trainer.settings import TrainerSettings
from services.trainer.tests.features.test_dataset import ListLog, as_event_log
from services.trainer.tests.support.platform_processes import MODEL, STREAM, TOPIC, definition


def state_of(
    *,
    production: int = 0,
    production_end: dict[int, int] | None = None,
    finished: tuple[OffsetRange, ...] = (),
    parent: int = 0,
    version: int = 0,
    on_reject: str = "retry",
    rolled_back: str = "",
) -> ModelState:
    named = {PRODUCTION: production} if production else {}
    behind = {"head_version": production, "newest_version": version, "events": rolled_back, "examples": 40,
              "end_position": {"0": 9}}  # fmt: skip
    model = Model(
        MODEL, STREAM, "d", 1.0, named, newest_version=version, head_version=production,
        rolled_back=behind if rolled_back else {},
    )  # fmt: skip
    plan = RoundPlan(MODEL, 1, parent, STREAM, 1, finished, "d", {}, "c", "e", 1, 10, "manual", 1.0)
    done = Round("late-000001", plan, 1.0, RoundState.DONE, version=version)
    gate = f"{{min_value: 0.5, max_regression: null, on_reject: {on_reject}}}"
    parsed = parse_definition({"model.yaml": definition(gate=gate)})
    return ModelState(model, parsed, 1, (done,) if finished else (), production_end or {})


def test_retention_that_overtakes_the_model_is_left_out_and_recorded() -> None:
    state = state_of(production=1, production_end={0: 5, 1: 5}, finished=(OffsetRange(0, 0, 5),), version=1)
    beginning = beginning_of(state, {0: 8, 1: 0})
    assert beginning == Beginning({0: 5, 1: 5}, {0: 8, 1: 5}, {0: 8, 1: 5})
    assert left_out(beginning) == (OffsetRange(0, 5, 8),)


def test_a_partition_without_records_in_the_rejected_round_begins_where_production_ended() -> None:
    ranges = (OffsetRange(0, 5, 9),)
    state = state_of(production=1, production_end={0: 5, 1: 3}, finished=ranges, parent=1, version=2)
    assert beginning_of(state, {0: 0, 1: 0}) == Beginning({0: 5, 1: 3}, {0: 5, 1: 3}, {0: 9, 1: 3})


@pytest.mark.parametrize(
    ("rolled_back", "on_reject", "finished", "begin", "judged_to"),
    [
        ("learn", "retry", OffsetRange(0, 5, 9), 5, 9),
        ("learn", "skip", OffsetRange(0, 5, 9), 5, 9),
        ("leave_out", "retry", OffsetRange(0, 5, 9), 9, 9),
        ("leave_out", "skip", OffsetRange(0, 5, 9), 9, 9),
        ("learn", "retry", OffsetRange(0, 9, 12), 5, 12),
        ("leave_out", "retry", OffsetRange(0, 9, 12), 9, 12),
    ],
)
def test_what_was_rolled_back_is_learned_again_or_left_out_as_somebody_said(
    rolled_back: str, on_reject: str, finished: OffsetRange, begin: int, judged_to: int
) -> None:
    """The last of them: a round that went on from the version that was rolled back, and was rejected."""
    state = state_of(
        production=1, production_end={0: 5}, finished=(finished,), parent=1 if finished.from_offset == 5 else 2,
        version=2, on_reject=on_reject, rolled_back=rolled_back,
    )  # fmt: skip
    assert beginning_of(state, {0: 0}) == Beginning({0: 5}, {0: begin}, {0: judged_to})


def test_of_what_was_judged_only_the_newest_stays_when_it_is_too_much() -> None:
    log = ListLog()
    for index, (partition, count) in enumerate([(0, 4), (1, 4), (0, 4), (1, 4), (0, 9)]):
        log.add(partition, float(index), [b"x"] * count)
    backlog = Backlog()
    backlog.start_at({0: 0, 1: 0})
    backlog.advance(as_event_log(log), TOPIC, {0: 3, 1: 2})
    judged_to = {0: 2, 1: 2}
    assert backlog.newest({0: 0, 1: 0}, judged_to, max_examples=16) == {0: 0, 1: 0}
    assert backlog.newest({0: 0, 1: 0}, judged_to, max_examples=10) == {0: 1, 1: 1}
    assert backlog.newest({0: 0, 1: 0}, judged_to, max_examples=3) == {0: 2, 1: 2}


def failed(sequence: int, *ranges: OffsetRange) -> Round:
    plan = RoundPlan(MODEL, sequence, 0, STREAM, 1, ranges, "d", {}, "c", "e", 1, 10, "manual", 1.0)
    return Round(f"late-{sequence:06d}", plan, 1.0, RoundState.FAILED)


@pytest.mark.parametrize(
    ("rule", "failures", "begin"),
    [("wait", 3, 0), ("leave_out", 2, 0), ("leave_out", 3, 4), ("leave_out", 4, 4), ("leave_out", 6, 9)],
)
def test_a_range_that_fails_again_and_again_is_left_out_where_the_definition_says_so(
    rule: str, failures: int, begin: int
) -> None:
    first = [failed(n, OffsetRange(0, 0, 4 + n)) for n in range(3)]
    second = [failed(3 + n, OffsetRange(0, 4, 9 + n)) for n in range(3)]
    rounds = tuple(reversed((first + second)[:failures]))
    model = Model(MODEL, STREAM, "d", 1.0, consecutive_failures=failures)
    parsed = parse_definition({"model.yaml": definition(triggers=f"{{min_examples: 5, on_failure: {rule}}}")})
    beginning = beginning_of(ModelState(model, parsed, 1, rounds, {}), {0: 0})
    assert (beginning.begin, beginning.chain_end) == ({0: begin}, {0: 0})


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=40), st.integers(1, 30), st.integers(1, 7))
def test_cuts_one_after_the_other_cover_every_record_once(
    records: list[tuple[int, int]], max_examples: int, step: int
) -> None:
    log = ListLog()
    for index, (partition, count) in enumerate(records):
        log.add(partition, float(index), [b"x"] * count)
    backlog = Backlog()
    backlog.start_at({0: 0, 1: 0, 2: 0})
    sizes = {partition: len(log.partitions.get(partition, [])) for partition in range(3)}
    for upto in range(0, max(sizes.values()) + step, step):  # counted piece by piece, as a planner does
        backlog.advance(as_event_log(log), TOPIC, {partition: min(upto, size) for partition, size in sizes.items()})
    total = sum(count for _, count in records)
    assert backlog.examples == total
    position = {0: 0, 1: 0, 2: 0}
    taken = 0
    while backlog.examples:
        stretch = backlog.cut(position, max_examples=max_examples)
        assert stretch.example_count <= max_examples or sum(r.to_offset - r.from_offset for r in stretch.ranges) == 1
        assert all(item.from_offset == position[item.partition] for item in stretch.ranges)
        taken += stretch.example_count
        position |= {item.partition: item.to_offset for item in stretch.ranges}
        backlog.start_at(position)
        assert backlog.examples == total - taken == backlog.examples_from(position)
    assert position == sizes


def test_a_backlog_past_its_bound_is_counted_on_when_there_is_room() -> None:
    log = ListLog()
    for index in range(10):
        log.add(0, float(index), [b"x"])
    backlog = Backlog(max_waiting_records=4)
    backlog.start_at({0: 0})
    backlog.advance(as_event_log(log), TOPIC, {0: 10})
    assert backlog.examples == 4
    backlog.start_at({0: 3})
    backlog.advance(as_event_log(log), TOPIC, {0: 10})
    assert (backlog.examples, backlog.cut({0: 3}, max_examples=9).ranges) == (4, (OffsetRange(0, 3, 7),))


def test_a_log_that_ends_before_the_model_is_refused() -> None:
    backlog = Backlog()
    backlog.start_at({0: 5})
    with pytest.raises(InvalidInput, match="ends at 3, before the model's position 5"):
        backlog.advance(as_event_log(ListLog()), TOPIC, {0: 3})


def test_going_back_counts_anew() -> None:
    log = ListLog()
    for index in range(6):
        log.add(0, float(index), [b"x"])
    backlog = Backlog()
    backlog.start_at({0: 4})
    backlog.advance(as_event_log(log), TOPIC, {0: 6})
    backlog.start_at({0: 1})
    backlog.advance(as_event_log(log), TOPIC, {0: 6})
    assert backlog.examples == 5


@pytest.mark.covers("loop-seed", "pipe-feed-modes")
def test_the_digest_names_what_the_weights_depend_on_and_the_name_is_no_part_of_the_seed() -> None:
    settings = TrainerSettings(event_log="segments:/log")
    one, other = (parse_definition({"model.yaml": definition(seed=seed)}) for seed in (1, 2))
    triggers = parse_definition({"model.yaml": definition(seed=1, triggers="{min_examples: 99}")})
    digests = [lineage.digest_of(lineage.configuration_of(d, settings)) for d in (one, other, triggers)]
    assert digests[0] != digests[1]
    assert digests[0] == digests[2]
    assert 0 <= lineage.seed_of(one, 1) < 2**63
    assert len({lineage.seed_of(d, n) for d in (one, other) for n in range(5)}) == 10
    renamed = parse_definition({"model.yaml": definition(seed=1).replace(b"name: ", b"name: other-")})
    assert renamed.name != one.name
    assert lineage.seed_of(renamed, 1) == lineage.seed_of(one, 1)
