"""Rounds are planned along the chain of production versions: contiguous, bounded, once, whoever plans."""

import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from common.errors import Conflict, InvalidInput, NotFound
from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.segment_log import SegmentLog
from common.eventlog.sourced_log import SourcedLog
from common.eventlog.tfrecord import frame
from common.examples.codec import ExampleCodec
from common.process.health import Health
from common.registry.catalog import (
    PRODUCTION,
    ChangeKind,
    Model,
    OffsetRange,
    Round,
    RoundPlan,
    RoundState,
    ranges_from_json,
)
from common.registry.client import RegistryClient
from common.registry.live import Evidence
from common.registry.plan_notes import (
    EVENTS_FROM,
    FIRED,
    FORGOTTEN,
    LEFT_OUT,
    QUALITY_ALARM,
    SHIFT,
    SKIPPED,
    UPSTREAM_VERSION,
    WINDOW,
    without_notes,
)
from common.schema import Schema
from services.trainer.plan import lineage
from services.trainer.plan.forgetting import Forgetting
from services.trainer.plan.planner import Planner
from services.trainer.settings import TrainerSettings
from services.trainer.tests.support.plans import INPUTS, RULE, Plans, look_again
from services.trainer.tests.support.platform_processes import SCHEMA, Events
from testing import plain_http
from testing.registry_server import RegistryServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def registry_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    """One for all tests, each of which has a model and a stream in it, and leaves nothing."""
    process = RegistryServer(tmp_path_factory.mktemp("registry"), {"REGISTRY_BACKOFF_FIRST_SECONDS": "0.2"})
    process.start()
    yield process
    process.stop()


@pytest.fixture
def plans(registry_process: RegistryServer, tmp_path: Path) -> Iterator[Plans]:
    number = next(_numbers)
    stream = f"flights{number}"
    with (
        closing(RegistryClient(registry_process.address, timeout_seconds=60.0)) as registry,
        closing(SegmentLog(tmp_path / "log")) as log,
    ):
        registry.register_stream(stream, json.dumps(SCHEMA))
        log.create_topic(f"examples.{stream}", partition_count=2)
        events = Events(log, topic=f"examples.{stream}")
        found = Plans(registry, events, tmp_path, model=f"late{number}", stream=stream)
        found.register(found.definition())
        yield found
        for model in registry.list_models():
            for one in registry.list_rounds(model.name, limit=1):
                call(registry_process, f"models/{model.name}/rounds/{one.round_id}:fail")
            remove(registry_process, f"models/{model.name}")
        for known in registry.list_streams():
            remove(registry_process, f"streams/{known.name}")


def call(registry: RegistryServer, path: str) -> None:
    plain_http.post(f"{registry.url}/v1/{path}", json={"by": "test"})


def remove(registry: RegistryServer, path: str) -> None:
    call(registry, f"{path}:archive")
    plain_http.delete(f"{registry.url}/v1/{path}", params={"by": "test"}).raise_for_status()


def ends_of(plan: RoundPlan) -> list[tuple[int, int, int]]:
    return [(item.partition, item.from_offset, item.to_offset) for item in plan.ranges]


def test_the_first_round_starts_at_the_topics_start_and_names_everything_it_depends_on(plans: Plans) -> None:
    plans.events.add(9)
    plans.assert_none()
    plans.events.add(5, partition=1)
    plan = plans.next()
    assert ends_of(plan) == [(0, 0, 2), (1, 0, 1)]
    assert (plan.sequence, plan.parent_version, plan.example_count, plan.trigger) == (1, 0, 14, "min_examples")
    assert plan.schema_version == 1
    assert plan.configuration["block_examples"] == 16_384
    assert plan.configuration["intra_op_threads"] >= 1
    assert plan.configuration["training"]["batch_size"] == 256
    assert len(plan.configuration_digest) == len(plan.code_digest) == 64
    last_record = next(iter(plans.events.log.scan(plans.events.topic, 1, 0, 1)))
    assert plan.last_event_at == last_record.headers.ingest_time


def test_rounds_follow_each_other_without_gap_or_overlap(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}")
    plans.events.add(10)
    first = plans.next()
    plans.events.add(50)
    plans.assert_none()
    plans.finish()
    second = plans.next()
    assert (ends_of(first), ends_of(second)) == ([(0, 0, 2)], [(0, 2, 12)])
    assert (second.sequence, second.parent_version) == (2, 1)
    assert second.seed != first.seed
    assert second.configuration_digest == first.configuration_digest


def windows_of(plan: RoundPlan) -> list[tuple[int, int]]:
    return [(piece.from_offset, piece.to_offset) for piece in ranges_from_json(plan.configuration.get(WINDOW, []))]


def test_a_window_follows_the_chain_of_parents_past_rejection_rollback_and_another_rule(plans: Plans) -> None:
    triggers = "{min_examples: 10, cooldown_seconds: 0}"
    plans.use(triggers=triggers, evaluation="{window_examples: 4}")

    def plan_one() -> RoundPlan:
        plans.events.add(10, per_record=5)
        return plans.next()

    assert windows_of(plan_one()) == []
    plans.finish(held_out=2)  # 1, [0, 2)
    assert windows_of(plan_one()) == [(0, 2)]
    plans.finish(held_out=2, auc=0.1)  # rejected, [2, 4)
    retried = plan_one()
    assert (ends_of(retried), windows_of(retried)) == ([(0, 2, 6)], [(0, 2)])
    plans.finish(held_out=4)  # 3, [2, 6)
    assert windows_of(plan_one()) == [(2, 6)], "the newest are enough"
    plans.finish(held_out=1)  # 4, [6, 8)
    assert windows_of(plan_one()) == [(2, 8)]
    plans.finish(held_out=1)  # 5, [8, 10)
    plans.registry.set_alias(plans.model, PRODUCTION, 3, by="test", reason="4 and 5 are worse")
    back = plan_one()
    assert (back.parent_version, windows_of(back)) == (3, [(2, 6)])
    plans.finish(held_out=8)
    cut = plan_one()
    (begin, end), (own_begin, own_end) = windows_of(cut)[0], ends_of(back)[0][1:]
    assert own_begin < begin < end == own_end, "of a long range the newest records"
    plans.finish(held_out=2)
    plans.use(triggers=triggers, evaluation="{window_examples: 400, holdout_fraction: 0.2}")
    assert windows_of(plan_one()) == [], "what the share before let learn, this one may hold out"
    plans.finish(held_out=2)
    last = plan_one()
    assert windows_of(last) == [(ends_of(last)[0][1] - 2, ends_of(last)[0][1])]
    plans.finish(held_out=2)
    plans.use(triggers=triggers, evaluation="{window_examples: 0, holdout_fraction: 0.2}")
    assert WINDOW not in plan_one().configuration


def test_a_round_is_cut_at_a_record_boundary_below_its_bound(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, max_round_examples: 12, cooldown_seconds: 0}")
    plans.events.add(40, per_record=5)
    assert ends_of(plans.next()) == [(0, 0, 2)]
    plans.finish()
    assert ends_of(plans.next()) == [(0, 2, 4)]


def test_a_record_larger_than_the_bound_is_a_round_of_its_own(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 1, max_round_examples: 3, cooldown_seconds: 0}")
    plans.events.add(20, per_record=10)
    plan = plans.next()
    assert (ends_of(plan), plan.example_count) == ([(0, 0, 1)], 10)


def test_a_rejected_stretch_is_judged_again_with_what_followed(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, max_round_examples: 100, cooldown_seconds: 0}")
    plans.round()
    plans.round(auc=0.1)
    plans.assert_none()
    plans.events.add(9)
    plans.assert_none()
    plans.events.add(1)
    plan = plans.next()
    assert (plan.parent_version, plan.example_count, ends_of(plan)) == (1, 20, [(0, 2, 7)])
    assert SKIPPED not in plan.configuration


def test_a_rejected_stretch_is_judged_again_whatever_the_limit_and_its_oldest_left_out_past_it(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, max_round_examples: 12, cooldown_seconds: 0}")
    plans.round()
    plans.events.add(20)
    assert ends_of(plans.next()) == [(0, 2, 4)]
    plans.finish(auc=0.1)
    assert ends_of(plans.next()) == [(0, 2, 6)], "all of it again, and as many new ones as ever"
    plans.finish(auc=0.1)
    plans.events.add(10)
    plan = plans.next()
    assert ends_of(plan) == [(0, 4, 8)]
    left_out = {"partition": 0, "from_offset": 2, "to_offset": 4}
    assert plan.configuration[SKIPPED] == [left_out]
    assert plan.configuration[LEFT_OUT] == [{**left_out, "examples": 10, "reason": "rejection"}]
    plans.finish()
    version = plans.registry.get_version(plans.model, plans.registry.get_model(plans.model).aliases[PRODUCTION])
    assert version.end_position == {0: 8}


def test_what_lies_beyond_the_head_is_counted_for_the_account(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}", on_reject="skip")
    plans.round()
    plans.round(auc=0.1)
    plans.events.add(5)
    plans.look_again()
    counted = plans.planner.counted()[plans.model]
    assert (counted["head_version"], counted["waiting"], counted["judged_before"]) == (1, 5, 0)
    (entry,) = counted["left_out"]
    assert (entry["from_offset"], entry["to_offset"], entry["examples"], entry["reason"]) == (2, 4, 10, "rejection")


def test_a_person_may_begin_from_an_offset_or_from_nothing(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 1000, cooldown_seconds: 0}")
    plans.events.add(20)
    with pytest.raises(InvalidInput, match="there is no partition 7"):
        plans.ask(start={7: 1})
    chosen = plans.ask(start={0: 2})
    assert ends_of(chosen) == [(0, 2, 4)]
    assert [(entry["examples"], entry["reason"]) for entry in chosen.configuration[LEFT_OUT]] == [(10, "chosen")]
    plans.finish()
    with pytest.raises(InvalidInput, match="can begin from 4, where the head of the model ended, to 4"):
        plans.ask(start={0: 1})
    anew = plans.ask(start="scratch")
    assert (ends_of(anew), anew.parent_version) == ([(0, 0, 4)], 0)
    plans.finish()
    model = plans.registry.get_model(plans.model)
    assert (model.aliases[PRODUCTION], model.head_version) == (2, 2)


def test_what_a_rejection_advises_can_be_done_although_no_event_is_new(plans: Plans) -> None:
    """`headrace train --allow-signature-change` after a version that broke signatures was rejected."""
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}")
    first = plans.round(auc=0.1)
    plans.assert_none()
    again = plans.ask(allow_signature_change=True, request_id="a7")
    assert (ends_of(again), again.trigger) == (ends_of(first), "manual")
    assert again.configuration["requested"] == {
        "by": "ada", "reason": "", "allow_signature_change": True, "request_id": "a7",
    }  # fmt: skip


def test_events_that_a_rejection_leaves_out_are_learned_by_the_command_that_the_refusal_names(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}", on_reject="skip")
    first = plans.round(auc=0.1)
    plans.assert_none()
    advice = f"`headrace train {plans.model} --from 0:0` learns the events that were left out"
    with pytest.raises(Conflict, match=f"there is no new example; {advice}"):
        plans.ask()
    assert ends_of(plans.ask(start={0: 0})) == ends_of(first)


def test_a_paused_model_says_so(plans: Plans, registry_process: RegistryServer) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}")
    plain_http.post(f"{registry_process.url}/v1/models/{plans.model}:pause", json={"by": "ada"}).raise_for_status()
    plans.events.add(10)
    plans.assert_none()
    assert plans.waits_for() == "it is paused by ada"
    with pytest.raises(Conflict, match="paused by ada"):
        plans.planner.plan_now(plans.model, by="bob", reason="")


class NewerRegistry(RegistryClient):
    """From the moment of its upgrade its definitions have a key that this release does not know."""

    is_upgraded = False

    def get_definition(self, digest: str) -> dict[str, bytes]:
        added = b"\nfrom_a_newer_release: 1\n" if self.is_upgraded else b""
        return {name: content + added for name, content in super().get_definition(digest).items()}


class EmptiedRegistry(RegistryClient):
    is_emptied = False

    def list_models(self) -> list[Model]:
        return [] if self.is_emptied else super().list_models()

    def get_model(self, name: str) -> Model:
        if self.is_emptied:
            raise NotFound(f"model {name} is not registered")
        return super().get_model(name)


def test_a_model_that_was_deleted_is_planned_for_and_complained_of_no_longer(
    plans: Plans, registry_process: RegistryServer
) -> None:
    emptied = EmptiedRegistry(registry_process.address, timeout_seconds=60.0)
    planner = plans.begin(registry=emptied)
    plans.look_again()
    assert planner.known_models() == [plans.model]
    emptied.is_emptied = True
    planner.mark_stale(ChangeKind.MODEL, plans.model)
    planner.turn()
    planner.turn()
    assert (planner.known_models(), planner.status(), planner.faults(), planner.counted()) == ([], [], {}, {})


def test_a_definition_of_a_newer_release_stops_the_planning_of_its_model_with_the_key_named(
    plans: Plans, registry_process: RegistryServer
) -> None:
    newer = NewerRegistry(registry_process.address, timeout_seconds=60.0)
    planner = plans.begin(registry=newer)
    plans.look_again()
    assert planner.faults() == {}
    newer.is_upgraded = True
    plans.use(triggers="{min_examples: 5, cooldown_seconds: 0}")
    plans.events.add(10)
    plans.assert_none()
    assert "from_a_newer_release" in planner.faults()[plans.model]
    assert "from_a_newer_release" in plans.waits_for()
    with pytest.raises(InvalidInput, match="from_a_newer_release"):
        planner.plan_now(plans.model, by="ada", reason="")
    newer.close()


def test_skip_leaves_a_rejected_stretch_out_at_once(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}", on_reject="skip")
    plans.round()
    for _ in range(2):
        plans.round(auc=0.1)
    plans.events.add(10)
    plan = plans.next()
    assert ends_of(plan) == [(0, 6, 8)]
    assert plan.configuration[SKIPPED] == [{"partition": 0, "from_offset": 2, "to_offset": 6}]


def test_skip_works_before_there_is_a_production_version(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}", on_reject="skip")
    for expected in ([(0, 0, 2)], [(0, 2, 4)], [(0, 4, 6)]):
        plans.events.add(10)
        plan = plans.next()
        assert ends_of(plan) == expected
        plans.finish(auc=0.1)
    assert plan.configuration[SKIPPED] == [{"partition": 0, "from_offset": 0, "to_offset": 4}]


def test_a_new_definition_judges_everything_since_production_anew(plans: Plans) -> None:
    plans.round(auc=0.1)
    plans.assert_none()
    plans.use(triggers="{min_examples: 5, cooldown_seconds: 0}")
    assert ends_of(plans.next()) == [(0, 0, 2)]


def test_after_a_rollback_rounds_go_on_from_the_version_that_is_live(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}")
    for _ in range(2):
        plans.round()
    plans.registry.rollback(plans.model, by="test", reason="the second is odd")
    plans.assert_none()
    plans.events.add(10)
    plan = plans.next()
    assert (plan.parent_version, ends_of(plan)) == (1, [(0, 2, 6)])


def test_a_failed_round_is_planned_anew_after_the_backoff(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}")
    now = [time.time()]
    plans.begin(lambda: now[0])
    plans.events.add(10)
    plans.next()
    lease = plans.registry.lease_round("test", ttl_seconds=30.0)
    assert lease is not None
    plans.registry.fail_round(lease, reason="numeric: NaN")
    plans.look_again()
    waiting = plans.planner.status()[0]["next_round"]
    assert waiting["waiting_for"] == "the last round failed; backing off"
    now[0] = waiting["not_before"]
    plan = plans.next()
    assert (plan.sequence, plan.parent_version, ends_of(plan)) == (2, 0, [(0, 0, 2)])


def test_of_many_planners_one_plans_each_round(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}")
    several = [plans.begin() for _ in range(3)]
    for planner in several:
        planner.turn()
    for sequence in range(1, 4):
        plans.events.add(10)
        threads = [threading.Thread(target=look_again, args=(planner,)) for planner in several]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert [found.plan.sequence for found in plans.registry.list_rounds(plans.model)] == list(
            range(sequence, 0, -1)
        )
        plans.finish()


class Noting:
    """A registry that notes how many rounds it is asked for."""

    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry
        self.asked: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    def list_rounds(self, model: str, *, limit: int) -> list[Round]:
        self.asked.append(limit)
        return self._registry.list_rounds(model, limit=limit)


def test_rounds_that_are_known_to_have_ended_are_not_read_again(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}")
    registry: Any = Noting(plans.registry)
    planner = plans.begin(registry=registry)
    planner.turn()
    for number in range(1, 5):
        plans.events.add(10)
        planner.turn()
        (planned, *ended) = plans.registry.list_rounds(plans.model)
        assert (planned.state, planned.plan.sequence, len(ended)) == (RoundState.PLANNED, number, number - 1)
        plans.finish(auc=0.1 if number == 2 else 0.9)
        planner.mark_stale(ChangeKind.VERSION, plans.model)
        planner.turn()
    assert set(registry.asked) == {1}, "the newest"
    planner.mark_stale(ChangeKind.RESET, "")
    planner.turn()
    assert registry.asked[-1] == 4, "all, of a registry that may be another"


def test_asking_twice_gives_one_round(plans: Plans) -> None:
    plans.events.add(3)
    planned = plans.planner.plan_now(plans.model, by="ada", reason="a look")
    assert planned.plan.configuration["requested"] == {"by": "ada", "reason": "a look"}
    with pytest.raises(Conflict, match="has a round already"):
        plans.begin().plan_now(plans.model, by="bob", reason="")


def test_what_cannot_be_planned_says_why(plans: Plans) -> None:
    with pytest.raises(Conflict, match="there is no new example"):
        plans.ask()
    with pytest.raises(NotFound, match="nobody"):
        plans.planner.plan_now("nobody", by="ada", reason="")


def test_a_stream_without_a_topic_is_waited_for(plans: Plans) -> None:
    plans.registry.register_stream("clicks", plans.registry.get_stream(plans.stream).schema_json)
    plans.register(plans.definition(model="m", stream="clicks"), model="m", stream="clicks")
    plans.planner.turn()
    waiting = {status["model"]: status["next_round"]["waiting_for"] for status in plans.planner.status()}
    assert waiting["m"] == "stream clicks has no events yet"
    plans.events.log.create_topic("examples.clicks", partition_count=1)
    plans.events.add(10, topic="examples.clicks")
    plans.planner.turn()
    assert [found.plan.stream for found in plans.registry.list_rounds("m")] == ["clicks"]


def test_a_damaged_log_is_shown_as_not_ready_until_it_can_be_read(plans: Plans, tmp_path: Path) -> None:
    plans.events.add(8, per_record=1)
    (index,) = (tmp_path / "log").rglob("0/*.index")
    whole = index.read_bytes()
    middle = len(whole) // 2
    index.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :])
    health = Health("registry", "event_log")
    settings = TrainerSettings(event_log=f"segments:{tmp_path / 'log'}")
    log = SourcedLog(SegmentLog(tmp_path / "log"), settings.event_log)
    plans.planner = Planner(settings, registry=plans.registry, log=log, health=health, on_planned=lambda: None)
    plans.look_again()
    assert index.name in health.conditions()["event_log"]
    assert not health.is_ready()
    plans.look_again()
    assert not health.is_ready()
    index.write_bytes(whole)
    plans.look_again()
    plans.look_again()
    assert health.is_ready()
    log.close()


def test_a_stream_of_the_name_of_a_deleted_one_is_counted_from_its_own_beginning(
    plans: Plans, registry_process: RegistryServer
) -> None:
    """What waits, and the ranges of its rounds, are of its own events; the trainer had counted those before."""
    plans.events.add(8, per_record=1)
    plans.look_again()
    assert plans.planner.counted()[plans.model]["waiting"] == 8
    for path in (f"models/{plans.model}", f"streams/{plans.stream}"):
        remove(registry_process, path)
    plans.registry.register_stream(plans.stream, json.dumps(SCHEMA))
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}")
    plans.look_again()
    assert plans.waits_for() == f"stream {plans.stream} has no events yet"
    plans.events.log.create_topic(f"examples.2.{plans.stream}", partition_count=1)
    plans.events.add(12, per_record=1, topic=f"examples.2.{plans.stream}")
    plan = plans.next()
    assert [(piece.partition, piece.from_offset, piece.to_offset) for piece in plan.ranges] == [(0, 0, 12)]
    assert plan.example_count == 12


def test_another_version_of_an_upstream_model_in_production_fires_once_and_is_named_in_the_plan(plans: Plans) -> None:
    plans.register(plans.definition(model="above", gate=RULE % "retry"), model="above")
    plans.use(triggers="{min_examples: null, min_first_examples: 1, cooldown_seconds: 0, upstream: above}")
    now = [time.time()]
    plans.begin(lambda: now[0])
    plans.events.add(10)
    plans.look_again()
    assert plans.registry.list_rounds(plans.model) == [], "above has no version yet"
    (waiting,) = (one["next_round"]["waiting_for"] for one in plans.planner.status() if one["model"] == plans.model)
    assert waiting == "another version of above in production than none; 10 new examples"
    plans.finish()
    plan = plans.next()
    assert (plan.trigger, plan.configuration[UPSTREAM_VERSION]) == ("upstream", {"above": 1})
    assert plan.configuration[FIRED] == {"upstream": "version 1 of above is in production, none at the last plan"}
    lease = plans.registry.lease_round("test", ttl_seconds=30.0)
    assert lease is not None
    assert lease.round.plan.model == plans.model
    plans.registry.fail_round(lease, reason="it broke")
    now[0] += 3600.0
    assert plans.next().trigger == "upstream", "a round that failed has not answered the version"
    plans.finish()
    plans.events.add(5)
    plans.assert_none()


def test_an_alarm_of_live_quality_fires_once_and_its_numbers_are_in_the_plan_and_the_status(plans: Plans) -> None:
    name, topic = "watched", "examples.keyed"
    features: list[object] = [{"name": "distance", "dtype": "float32"}, {"name": "id", "dtype": "int64"}]
    plans.registry.register_stream("keyed", json.dumps(SCHEMA | {"features": features}))
    plans.events.log.create_topic(topic, partition_count=1)

    def use(triggers: str) -> None:
        text = plans.definition(model=name, stream="keyed", triggers=triggers, gate=RULE % "retry")
        plans.register(text + b"live: {key: id, wait_seconds: 9}\n", model=name, stream="keyed")

    def planned(count: int) -> RoundPlan:
        plans.look_again()
        rounds = plans.registry.list_rounds(name)
        assert len(rounds) == count, plans.planner.status()
        return rounds[0].plan

    def measured(alarms: int) -> None:
        """As a trainer hands in what it has measured of version 1."""
        shown = {"version": 1, "alarms": alarms, "alarm": {"says": "0.4 is wrong"} if alarms else {}, "says": "0.1 is"}
        plans.registry.put_evidence(
            name, Evidence(plans.registry.get_evidence(name).revision, {"quality": {"1": shown}})
        )
        now[0] += 3.0

    now = [time.time()]
    plans.begin(lambda: now[0])
    use("{min_examples: 10, cooldown_seconds: 0}")
    plans.events.add(10, topic=topic)
    planned(1)
    plans.finish()
    use("{min_examples: null, cooldown_seconds: 0, quality: {metric: error_rate, margin: 0.02}}")
    plans.events.add(10, topic=topic)
    measured(0)
    planned(1)
    told = next(one for one in plans.planner.status() if one["model"] == name)
    assert told["next_round"]["waiting_for"] == "0.1 is; 10 new examples"
    measured(1)
    plans.begin(lambda: now[0])
    plan = planned(2)
    assert (plan.trigger, plan.configuration[FIRED]) == ("quality", {"quality": "0.4 is wrong"})
    assert plan.configuration[QUALITY_ALARM]["alarm"] == {"says": "0.4 is wrong"}
    plans.finish(auc=0.1)
    plans.events.add(10, topic=topic)
    planned(2)
    told = next(one for one in plans.planner.status() if one["model"] == name)
    assert told["quality"]["alarms"] == 1, "the round has answered the alarm, although its version was rejected"
    measured(2)
    assert planned(3).trigger == "quality"


@pytest.mark.covers("eco-tfdv")
def test_a_round_of_events_that_have_drifted_is_held_with_the_fields_until_somebody_asks(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 200, cooldown_seconds: 0, on_drift: hold}")
    plans.events.add(200, per_record=50)
    first = plans.next()
    told = plans.statistics()
    plans.finish(files=told)

    plans.events.add(200, per_record=50)  # of distances that the first round has not seen
    plans.assert_none()
    reason = plans.waits_for()
    assert reason.startswith("the new events have drifted from those that version 1 learned from: distance (PSI ")
    assert "late" not in reason
    assert reason.endswith("; it waits for a round by hand")
    asked = plans.planner.plan_now(plans.model, by="me", reason="it is meant").plan
    assert (asked.trigger, asked.ranges[0].from_offset) == ("manual", first.ranges[0].to_offset)
    assert asked.configuration["drift"] in reason
    plans.finish(files=told)

    plans.events.appended = 0
    plans.events.add(200, per_record=50)
    alike = plans.next()
    assert "drift" not in alike.configuration
    assert alike.configuration_digest == first.configuration_digest
    plans.finish(files=told)

    plans.use(triggers="{min_examples: 200, cooldown_seconds: 0, on_drift: warn}")
    plans.events.add(200, per_record=50)
    assert "distance" in plans.next().configuration["drift"]
    plans.finish(files=told)

    plans.events.appended = 0
    plans.events.add(200, per_record=50, late=1)
    assert "drift" not in plans.next().configuration, "no feature reads the label"
    plans.finish(files=told)


def test_a_window_of_shifted_events_fires_with_the_feature_its_distance_and_its_threshold(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 200, cooldown_seconds: 0}")
    plans.events.add(200, per_record=50)
    plans.next()
    plans.finish(files=INPUTS)
    plans.use(triggers="{min_examples: null, cooldown_seconds: 0, drift: {window_examples: 200}}")
    plans.begin()

    def waits() -> str:
        plans.assert_none()
        return plans.waits_for()

    plans.events.appended = 0
    plans.events.add(150, per_record=50, late=1)
    assert waits() == "150 of 200 new examples to compare; 150 new examples"
    plans.events.add(50, per_record=50, late=1)
    assert waits().startswith(
        "distance is the furthest, at 0, below its threshold (alpha 0.01 over 1 feature; 200 new "
    )
    plans.events.appended = 1000
    plans.events.add(200, per_record=50)
    plans.begin()
    due = plans.next()
    assert (due.trigger, due.example_count) == ("drift", 400)
    assert re.match(r"distance 1 above 0\.\d+ \(alpha 0.01 over 1 feature; ", due.configuration[FIRED]["drift"])
    (fault,) = due.configuration[SHIFT]["shifted"]
    assert (fault["feature"], due.configuration[SHIFT]["window"]) == ("distance", 2)
    plans.finish(files=INPUTS)
    plans.use(triggers="{min_examples: null, cooldown_seconds: 0, drift: {leave_out: [distance]}}")
    plans.events.add(1000, per_record=50)
    assert waits().startswith("nothing to compare new events with")


@pytest.mark.covers("eco-tfdv")
def test_what_drifts_by_which_bound_is_the_definitions_to_say(plans: Plans) -> None:
    def planned(bounds: str) -> str:
        """Of 200 events of other distances, all of them late."""
        plans.use(triggers=f"{{min_examples: 200, cooldown_seconds: 0, on_drift: warn, drift_psi: {bounds}}}")
        plans.events.add(200, per_record=50, late=1)
        found = plans.next().configuration.get("drift", "")
        plans.finish(files=told)
        return str(found)

    plans.use(triggers="{min_examples: 200, cooldown_seconds: 0}")
    plans.events.add(200, per_record=50)
    plans.next()
    told = plans.statistics()
    plans.finish(files=told)
    assert planned("{distance: null}") == ""
    assert planned("{distance: 100}") == ""
    assert re.search(r" learned from: late \(PSI \d+\.\d+\)$", planned("{distance: null, late: 0.3}"))
    both = planned("{late: 0.3}")
    assert "distance (PSI " in both
    assert "late (PSI " in both


def test_what_is_forgotten_is_left_out_from_the_last_ancestor_before_it_on(plans: Plans) -> None:
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}", evaluation="{window_examples: 4}")
    for _ in range(3):
        plans.round(held_out=2)  # 1, 2 and 3 of two records each
    forgetting = Forgetting(plans.registry, SourcedLog(plans.events.log, ""), plans.planner)

    def forget(**which: Any) -> dict[str, Any]:
        return forgetting.forget(plans.model, by="ada", reason="poisoned", **which)

    with pytest.raises(InvalidInput, match=r"partition 0 has no records \[4, 9\); the log ends at 0: 6"):
        forget(ranges=[OffsetRange(0, 4, 9)])
    with pytest.raises(InvalidInput, match="has no feature late that"):
        forget(key=("late", "x"))
    tried = forget(ranges=[OffsetRange(0, 3, 4)], dry_run=True)
    assert (tried["learned_by"], tried["head_version"], tried["events_again"]) == ([2, 3], 1, 15)
    assert tried["seconds"] > 0
    assert plans.registry.get_model(plans.model).head_version == 3, "a dry run changes nothing"

    told = forget(ranges=[OffsetRange(0, 3, 4)])
    plan = plans.registry.list_rounds(plans.model)[0].plan
    assert (plan.parent_version, ends_of(plan), plan.example_count) == (1, [(0, 2, 6)], 15)
    assert plan.configuration[FORGOTTEN] == [[0, 3, 4, []]]
    assert [(one["examples"], one["reason"]) for one in plan.configuration[LEFT_OUT]] == [(5, FORGOTTEN)]
    with pytest.raises(Conflict, match=f"round {plans.model}-000004 is planned"):
        forget(ranges=[OffsetRange(0, 0, 1)])
    plans.finish()
    assert plans.registry.get_model(plans.model).aliases[PRODUCTION] == 4
    assert [one for one in range(1, 5) if plans.registry.get_version(plans.model, one).forgotten_at] == [2, 3]
    with pytest.raises(Conflict, match=f"version 3 of {plans.model} has learned events that were forgotten since"):
        plans.registry.set_alias(plans.model, PRODUCTION, 3, by="ada", reason="")
    assert plans.registry.rollback(plans.model, by="ada", reason="").aliases[PRODUCTION] == 1, "2 and 3 are passed over"
    with pytest.raises(Conflict, match="has forgotten these events already"):
        forget(ranges=[OffsetRange(0, 3, 4)])
    assert told["round_id"] == f"{plans.model}-000004"


def test_the_code_digest_is_of_what_reads_events_and_leaves_some_out_too() -> None:
    read = {"schema.py", "feature_keys.py", "examples/codec.py", "eventlog/sourced_log.py", "registry/forgotten.py"}
    named = lineage.sources()
    assert {f"common/{name}" for name in read} <= named.keys()
    assert not any("tests" in name or "__pycache__" in name for name in named)


def test_a_plan_says_where_windows_of_events_begin_and_what_is_forgotten_there(plans: Plans) -> None:
    card = {"name": "card", "dtype": "string", "required": False, "default": ""}
    features: Any = SCHEMA["features"]
    schema = {**SCHEMA, "features": [*features, card], "key": "card"}
    plans.registry.register_stream("calls", json.dumps(schema))
    text = plans.definition(model="m", stream="calls", triggers="{min_examples: 10, cooldown_seconds: 0}")
    text = text.replace(b"linear_classifier", b"rnn_classifier")
    text += b"parameters: {sequence: [distance]}\nevent_window: {features: [distance], size: 3, lookback_records: 1}\n"
    plans.events.log.create_topic("examples.calls", partition_count=1)
    plans.register(text, model="m", stream="calls")

    def planned() -> RoundPlan:
        plans.events.add(10, topic="examples.calls")
        plans.look_again()
        return plans.registry.list_rounds("m")[0].plan

    assert planned().configuration[EVENTS_FROM] == {"0": 0}, "the log has nothing before"
    plans.finish()
    plan = planned()
    assert (ends_of(plan), plan.configuration[EVENTS_FROM]) == ([(0, 2, 4)], {"0": 1})
    plans.finish()
    forgetting = Forgetting(plans.registry, SourcedLog(plans.events.log, ""), plans.planner)
    forgetting.forget("m", by="ada", reason="poisoned", ranges=[OffsetRange(0, 3, 4)])
    plans.finish()
    plan = planned()
    assert (ends_of(plan), plan.configuration[EVENTS_FROM]) == ([(0, 4, 6)], {"0": 3})
    assert plan.configuration[FORGOTTEN] == [[0, 3, 4, []]], "it lies before the range, where a window would reach"
    assert lineage.digest_of(without_notes(plan.configuration)) == plan.configuration_digest, "or none could rebuild it"


def test_a_key_is_forgotten_event_by_event_and_where_the_first_version_learned_it_the_next_starts_from_nothing(
    plans: Plans,
) -> None:
    schema: dict[str, Any] = json.loads(json.dumps(SCHEMA))
    schema["features"].append({"name": "user", "dtype": "string", "required": False, "default": ""})
    plans.registry.register_stream(plans.stream, json.dumps(schema))
    plans.use(triggers="{min_examples: 10, cooldown_seconds: 0}", evaluation="{window_examples: 4}")
    for user in ("ada", "bob"):
        codec = ExampleCodec(Schema.from_json(json.dumps(schema)))
        rows = [codec.encode({"distance": float(n), "late": 0, "user": user if n == 7 else "eve"}) for n in range(10)]
        headers = RecordHeaders(2, 10, time.time(), b"%016d" % len(user))
        plans.events.log.append(plans.events.topic, 0, [NewRecord(frame(rows), headers)])
        plans.next()
        plans.finish(held_out=2)
    told = Forgetting(plans.registry, SourcedLog(plans.events.log, ""), plans.planner).forget(
        plans.model, key=("user", "ada"), by="ada", reason=""
    )
    plan = plans.registry.list_rounds(plans.model)[0].plan
    assert (told["examples"], told["learned_by"], told["head_version"]) == (1, [1, 2], 0)
    assert (plan.parent_version, ends_of(plan), plan.example_count) == (0, [(0, 0, 2)], 19)
    assert plan.configuration[FORGOTTEN] == [[0, 0, 1, [7]]]
    plans.finish(held_out=2)
    plans.events.add(10)
    assert windows_of(plans.next()) == [(1, 2)], "the record with a forgotten event judges nothing"
