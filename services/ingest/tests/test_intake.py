"""The intake: nothing acknowledged is lost or doubled, whatever fails and however often a request is sent."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from common.access.principal import Principal, act_as
from common.errors import Conflict, InvalidInput, NotFound, Overloaded, Unavailable
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec
from common.registry.catalog import Stream
from common.schema import Schema
from services.ingest.codec import bodies
from services.ingest.codec.validation import Validator
from services.ingest.intake.accept import AppendRequest, OnInvalid
from services.ingest.intake.budget import Budget, Share
from services.ingest.intake.replay import ReplayReport, replay
from services.ingest.intake.status import status_of
from services.ingest.intake.streams import check_files
from services.ingest.once.keys import Answer, Refusal
from services.ingest.tests.conftest import SCHEMA, World, event, with_changes

_TIMEOUT_SECONDS = 60.0


_LOOPS: list[asyncio.Runner] = []


@pytest.fixture(autouse=True)
def one_loop() -> Iterator[None]:
    """For all calls of a test: an intake's writers belong to the loop of its first call."""
    with asyncio.Runner() as runner:
        _LOOPS.append(runner)
        yield
        _LOOPS.remove(runner)


def _run(work: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(work, _TIMEOUT_SECONDS)

    return _LOOPS[-1].run(limited())


def _json(*events: Any, key: str = "", on_invalid: OnInvalid = "reject", stream: str = "flights") -> AppendRequest:
    body = orjson.dumps({"events": list(events)})
    return AppendRequest(stream, body, "json", on_invalid=on_invalid, idempotency_key=key)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        while not condition():
            await asyncio.sleep(0)


def test_events_are_in_the_log_when_the_answer_comes(world: World) -> None:
    answer = _run(world.intake().append(_json(event(0), event(1))))
    assert answer == Answer(accepted=2, refused=(), position={0: 1})
    assert world.ids() == [0, 1]
    assert world.records()[0].headers.schema_version == 1


def test_framed_examples_are_stored_byte_for_byte(world: World) -> None:
    codec = ExampleCodec(Schema.from_mapping(SCHEMA))
    body = tfrecord.frame([codec.encode(event(number)) for number in range(5)])
    assert _run(world.intake().append(AppendRequest("flights", body, "tfrecord"))).accepted == 5
    assert b"".join(record.value for record in world.records()) == body


def test_no_stream_is_opened_that_would_take_the_files_of_the_others() -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(100):
            opened.enter_context(Path("/proc/self/stat").open())
        check_files("late", 10_000)
        with pytest.raises(Unavailable, match=r"late cannot be opened: .* of the 120 files that this process may"):
            check_files("late", 120)


def test_a_stream_nobody_registered_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="no stream 'trains'"):
        _run(world.intake().append(_json(event(0), stream="trains")))


def test_an_archived_stream_takes_no_events_until_it_is_restored(world: World) -> None:
    intake = world.intake()
    streams = world.registry.streams["flights"]
    streams[-1] = replace(streams[-1], archived=True)
    with pytest.raises(Conflict, match="stream flights is archived and takes no events"):
        _run(intake.append(_json(event(0))))
    with pytest.raises(Conflict, match="stream flights is archived"):
        _run(replay(intake, "flights"))
    streams[-1] = replace(streams[-1], archived=False)
    assert _run(world.intake().append(_json(event(0)))).accepted == 1


def test_a_stream_of_the_name_of_a_deleted_one_has_none_of_its_events_letters_and_keys(world: World) -> None:
    other = {"features": [{"name": "distance", "dtype": "string"}], "labels": SCHEMA["labels"]}
    intake = world.intake()
    first = _json(event(0), event(1, late=9), on_invalid="deadletter", key="morning")
    assert _run(intake.append(first)).accepted == 1
    world.registry.delete_and_register("flights", other)
    intake.schemas.fetch("flights")

    for opened in (intake, world.intake()):  # one that had the deleted stream open, and one that starts anew
        status = _run(status_of(opened, "flights"))
        assert (status["topic"], status["schema_version"]) == ("examples.2.flights", 2)
        assert sum(status["end"].values()) == 0
        assert status["deadletters"] == {"topic": "deadletter.2.flights", "start": {0: 0}, "end": {0: 0}}
        assert _run(replay(opened, "flights")) == ReplayReport()
    again = _json({"distance": "far", "late": 1}, key="morning")
    answer = _run(intake.append(again))
    assert (answer.accepted, answer.duplicate) == (1, False), "the key was used for another stream"
    assert _run(world.intake().append(again)).duplicate
    assert [len(world.records(f"examples.{name}")) for name in ("flights", "2.flights")] == [1, 1]


def test_a_request_that_meets_the_change_of_streams_is_sent_again(world: World) -> None:
    intake = world.intake()
    opened = _run(intake.open("flights"))
    world.registry.delete_and_register("flights", SCHEMA)
    with pytest.raises(Unavailable, match="flights was deleted and applied anew a moment ago; send the request again"):
        opened.validator(intake.schemas.fetch("flights"))
    assert _run(intake.append(_json(event(0)))).accepted == 1
    assert len(world.records("examples.2.flights")) == 1


def test_a_stream_that_reads_somebody_elses_topic_takes_no_events(world: World) -> None:
    streams = world.registry.streams["flights"]
    schema = orjson.loads(streams[-1].schema_json) | {"source": {"kafka": {"topic": "shop", "format": "json"}}}
    streams[-1] = replace(streams[-1], schema_json=orjson.dumps(schema).decode())
    intake = world.intake()
    with pytest.raises(Conflict, match="stream flights reads Kafka topic shop; its events go there"):
        _run(intake.append(_json(event(0))))
    with pytest.raises(Conflict, match="reads Kafka topic shop"):
        _run(replay(intake, "flights"))
    assert _run(status_of(intake, "flights"))["source"]["kafka"]["topic"] == "shop"


def test_a_bad_event_keeps_all_others_out(world: World) -> None:
    with pytest.raises(InvalidInput) as caught:
        _run(world.intake().append(_json(event(0), event(1, late=7), event(2, carrier="ZZ"))))
    assert [index for index, _ in caught.value.refused] == [1, 2]
    assert "2 of 3 events are refused and none is taken" in caught.value.message
    assert not caught.value.message.endswith("more")
    with pytest.raises(InvalidInput, match=r"4 of 4 events are refused and none is taken: event 0: .*; and 1 more$"):
        _run(world.intake().append(_json(*(event(number, late=7) for number in range(4)))))
    assert world.ids() == []


def test_bad_events_go_to_the_dead_letters_and_good_ones_in(world: World) -> None:
    answer = _run(world.intake().append(_json(event(0), event(1, late=7), event(2), on_invalid="deadletter")))
    assert (answer.accepted, answer.refused) == (2, (Refusal(1, "late is 7, expected at most 1"),))
    assert world.ids() == [0, 2]
    assert [record.headers.example_count for record in world.records("deadletter.flights")] == [1]


def test_many_requests_share_chunks_and_appends(world: World) -> None:
    async def run() -> list[Answer]:
        intake = world.intake(linger_seconds=1.0, chunk_events=20)
        await intake.open("flights")
        return await asyncio.gather(*(intake.append(_json(event(number))) for number in range(100)))

    answers = _run(run())
    assert sum(answer.accepted for answer in answers) == 100
    assert sorted(world.ids()) == list(range(100))
    assert world.log.append_calls <= 5
    assert len(world.records()) <= 5


def test_chunks_close_by_count_and_by_size(world: World) -> None:
    _run(world.intake(chunk_events=10).append(_json(*(event(number) for number in range(25)))))
    assert [record.headers.example_count for record in world.records()] == [10, 10, 5]
    _run(world.intake(chunk_bytes=1024).append(_json(*(event(number) for number in range(25)))))
    assert all(len(record.value) <= 1024 for record in world.records()[3:])
    assert world.ids() == [*range(25), *range(25)]


@pytest.mark.parametrize("restart", [False, True])
def test_a_retry_with_its_key_gets_the_first_answer(world: World, restart: bool) -> None:
    intake = world.intake()
    request = _json(event(0), event(1, late=7), event(2), key="k", on_invalid="deadletter")
    first = _run(intake.append(request))
    _run(intake.append(_json(event(9))))
    second = _run((world.intake() if restart else intake).append(request))
    assert second == Answer(first.accepted, first.refused, first.position, duplicate=True)
    assert world.ids() == [0, 2, 9]
    assert len(world.records("deadletter.flights")) == 1


def test_a_key_with_two_bodies_is_a_conflict_also_after_a_restart(world: World) -> None:
    intake = world.intake()
    _run(intake.append(_json(event(0), key="k")))
    for asked in (intake, world.intake()):
        with pytest.raises(Conflict, match="used before with another body"):
            _run(asked.append(_json(event(1), key="k")))
    assert world.ids() == [0]


def test_the_same_request_twice_at_once_is_taken_once(world: World) -> None:
    async def run() -> None:
        intake = world.intake(linger_seconds=0.02)
        answers = await asyncio.gather(*(intake.append(_json(event(0), key="k")) for _ in range(5)))
        assert sorted(answer.duplicate for answer in answers) == [False, True, True, True, True]
        one, other = _json(event(1), key="l"), _json(event(2), key="l")
        first, second = await asyncio.gather(intake.append(one), intake.append(other), return_exceptions=True)
        assert isinstance(first, Answer)
        assert isinstance(second, Conflict)

    _run(run())
    assert world.ids() == [0, 1]


def test_a_refused_request_does_not_use_up_its_key(world: World) -> None:
    intake = world.intake()
    with pytest.raises(InvalidInput):
        _run(intake.append(_json(event(0, late=3), key="k")))
    assert _run(intake.append(_json(event(0), key="k"))).duplicate is False
    assert world.ids() == [0]


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
@pytest.mark.parametrize("restart", [False, True])
def test_an_append_that_failed_halfway_is_completed_by_the_retry(world: World, taken: int, restart: bool) -> None:
    request = _json(*(event(number) for number in range(25)), key="k")
    intake = world.intake(chunk_events=10)
    _run(intake.open("flights"))
    world.log.records_taken_before_failing = taken
    with pytest.raises(Unavailable):
        _run(intake.append(request))
    answer = _run((world.intake(chunk_events=10) if restart else intake).append(request))
    assert (answer.accepted, answer.duplicate) == (25, taken == 3)
    assert world.ids() == list(range(25))


def test_a_key_taken_by_another_process_is_seen(world: World) -> None:
    first, other = world.intake(), world.intake()
    for opened in (first, other):
        _run(opened.open("flights"))
    assert _run(first.append(_json(event(0), key="k"))).duplicate is False
    assert _run(other.append(_json(event(0), key="k"))).duplicate is True
    assert world.ids() == [0]


def test_a_request_taken_in_part_is_completed_under_the_schema_it_came_with(world: World) -> None:
    request = _json(event(0, wind=1.0), *(event(number) for number in range(1, 8)), key="k", on_invalid="deadletter")
    intake = world.intake(chunk_events=2)
    _run(intake.open("flights"))
    world.log.records_taken_before_failing = 2
    with pytest.raises(Unavailable):
        _run(intake.append(request))
    wind = {"name": "wind", "dtype": "float32", "required": False, "default": 0.0}
    world.registry.register("flights", with_changes(SCHEMA, wind))
    answer = _run(world.intake().append(request))
    assert (answer.accepted, [item.index for item in answer.refused]) == (7, [0])
    assert sorted(world.ids()) == list(range(1, 8))


def test_a_new_schema_version_is_learned_when_events_need_it(world: World) -> None:
    async def run() -> None:
        intake = world.intake()
        await intake.append(_json(event(0)))
        wind = {"name": "wind", "dtype": "float32", "required": False, "default": 0.0}
        world.registry.register("flights", with_changes(SCHEMA, wind))
        await _until(lambda: intake.schemas.may_be_old("flights"))
        assert (await intake.append(_json(event(1, wind=2.0)))).accepted == 1

    _run(run())
    assert [record.headers.schema_version for record in world.records()] == [1, 2]


def test_known_streams_are_taken_while_the_registry_is_away(world: World) -> None:
    intake = world.intake()
    _run(intake.append(_json(event(0))))
    world.registry.is_away = True
    assert _run(intake.append(_json(event(1)))).accepted == 1
    with pytest.raises(InvalidInput):
        _run(intake.append(_json(event(2, late=9))))
    with pytest.raises(Unavailable, match="registry"):
        _run(intake.append(_json(event(3), stream="trains")))
    assert world.ids() == [0, 1]


def test_a_log_that_is_away_is_named_and_its_return_noticed(world: World) -> None:
    intake = world.intake()
    for first in (0, 2):
        world.log.is_away = True
        with pytest.raises(Unavailable, match="the log is away"):
            _run(intake.append(_json(event(first))))
        world.log.is_away = False
        _run(intake.append(_json(event(first + 1))))
    assert world.ids() == [1, 3]


def test_the_bound_on_memory_refuses_and_is_given_back(world: World) -> None:
    intake = world.intake()
    with intake.budget.open() as share:
        share.resize(intake.settings.max_in_flight_bytes)
        with pytest.raises(Overloaded) as caught, intake.budget.open() as other:
            other.resize(1)
        assert caught.value.retry_after_seconds >= 1
    assert intake.budget.used_bytes == 0


def test_a_flood_of_one_principal_leaves_room_for_another() -> None:
    def open_share(name: str) -> Share:
        act_as(Principal(name, frozenset()))
        return budget.open()

    def run() -> None:
        with contextlib.ExitStack() as held:
            for _ in range(80):
                held.enter_context(open_share("flood")).resize(10)
            with pytest.raises(Overloaded, match="others need room"), open_share("flood") as share:
                share.resize(10)
            assert generate_latest(registry).decode().endswith('of_principal{principal="flood"} 800.0\n')
            with open_share("other") as share:
                share.resize(100)
                with pytest.raises(Overloaded, match="may hold 900"):
                    share.resize(101)
        with open_share("alone") as share:
            share.resize(900)
        assert (budget.used_bytes, next(iter(budget.collect())).samples) == (0, [])

    budget, registry = Budget(900), CollectorRegistry()
    registry.register(budget)
    copy_context().run(run)


def test_requests_during_an_append_share_the_next_append(world: World) -> None:
    release = threading.Event()
    world.log.before_append = lambda: release.wait(_TIMEOUT_SECONDS)

    async def run() -> None:
        intake = world.intake(linger_seconds=0.0)
        await intake.open("flights")
        first = asyncio.create_task(intake.append(_json(event(0))))
        await _until(lambda: world.log.append_calls == 1)
        queued = 0

        def count() -> None:
            nonlocal queued
            queued += 1

        others = [asyncio.create_task(intake.append(_json(event(n)), on_queued=count)) for n in range(1, 6)]
        await _until(lambda: queued == 5)
        release.set()
        await asyncio.gather(first, *others)

    _run(run())
    assert world.log.append_calls == 2
    assert world.ids() == [0, 1, 2, 3, 4, 5]


def test_a_log_that_hangs_is_given_up_and_the_retry_completes(world: World) -> None:
    release = threading.Event()
    world.log.before_append = lambda: release.wait(_TIMEOUT_SECONDS)

    async def run() -> None:
        intake = world.intake(linger_seconds=0.0, append_timeout_seconds=0.05)
        for number in range(3):
            with pytest.raises(Unavailable, match="has not answered for 0 s"):
                await intake.append(_json(event(number), key=f"k{number}"))
        assert world.log.append_calls == 1
        release.set()
        await _until(lambda: len(world.records()) == 1)
        intake.settings = intake.settings.model_copy(update={"append_timeout_seconds": _TIMEOUT_SECONDS})
        assert [(await intake.append(_json(event(n), key=f"k{n}"))).duplicate for n in range(3)] == [True, False, False]

    _run(run())
    assert world.ids() == [0, 1, 2]


def test_events_of_one_key_stay_together_whichever_way_they_come(world: World) -> None:
    world.registry.register("keyed", SCHEMA | {"key": "id"})
    codec = ExampleCodec(Schema.from_mapping(SCHEMA))

    async def run() -> None:
        intake = world.intake(partition_count=4)
        await intake.append(_json(*(event(number % 10) for number in range(40)), stream="keyed"))
        body = tfrecord.frame([codec.encode(event(number)) for number in range(10)])
        await intake.append(AppendRequest("keyed", body, "tfrecord"))

    _run(run())
    places: dict[Any, set[int]] = {}
    for record in world.records("examples.keyed"):
        for item in tfrecord.cut(record.value)[0]:
            places.setdefault(codec.decode(item)["id"][0], set()).add(record.partition)
    assert len(places) == 10
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len(set.union(*places.values())) > 1


def test_requests_without_event_keys_take_turns_and_retries_go_back(world: World) -> None:
    async def run() -> None:
        intake = world.intake(partition_count=4)
        positions = [(await intake.append(_json(event(number)))).position for number in range(4)]
        assert positions == [{0: 1}, {1: 1}, {2: 1}, {3: 1}]
        first = await intake.append(_json(event(7), key="k"))
        assert (await world.intake().append(_json(event(7), key="k"))).position == first.position

    _run(run())
    assert sorted(world.ids()) == [0, 1, 2, 3, 7]


def test_too_many_or_too_large_events_are_refused(world: World) -> None:
    world.registry.register("notes", {"features": [{"name": "note", "dtype": "string"}], "labels": []})
    intake = world.intake(max_request_events=3, max_event_bytes=100)
    with pytest.raises(InvalidInput, match="the request has 4 events, expected at most 3"):
        _run(intake.append(_json(*(event(number) for number in range(4)))))
    with pytest.raises(InvalidInput, match=r"event 1: the event takes .* bytes as an Example, expected at most 100"):
        _run(intake.append(_json({"note": "a"}, {"note": "w" * 200}, stream="notes")))


def test_too_many_events_are_counted_before_one_of_them_is_looked_at() -> None:
    """Sixteen megabytes of lines that are no JSON took minutes to be refused."""
    validator = Validator(Stream("flights", 1, json.dumps(SCHEMA), 0.0), max_event_bytes=100)
    with pytest.raises(InvalidInput, match="the request has 4 events, expected at most 3"):
        bodies.events_of_ndjson(b"a\n" * 4, most=3)
    with pytest.raises(InvalidInput, match="the request has 4 events, expected at most 3"):
        _run(validator.check_examples(tfrecord.frame([b"a"] * 4), with_keys=False, most=3))


def test_a_list_that_cannot_fit_is_refused_before_its_values_are_looked_at(world: World) -> None:
    world.registry.register("lists", {"features": [{"name": "v", "dtype": "float32", "shape": [None]}], "labels": []})
    asked = _json({"v": ["no number"] * 26}, stream="lists")
    with pytest.raises(InvalidInput, match="event 0: v holds 26 values, more than fit into the bytes"):
        _run(world.intake(max_event_bytes=100).append(asked))


def test_an_empty_request_is_taken_and_leaves_no_record(world: World) -> None:
    assert _run(world.intake().append(_json())) == Answer(accepted=0, refused=(), position={})
    assert world.records() == []
