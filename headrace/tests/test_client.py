"""The client against a small HTTP server that answers what the test says."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest

from common.errors import Conflict, DataLoss, HeadraceError, InvalidInput, NotFound, Overloaded, Unavailable
from common.registry.catalog import Decision, RoundState
from headrace import Addresses, Client
from headrace.client.connection import Door
from headrace.tests.answering_server import ROUND, VERSION, Server, at
from testing.rows import each_row
from testing.waiting import at_once


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(at(server.url), timeout_seconds=60, by="tester") as client:
        yield client


def test_an_error_has_nothing_that_a_terminal_would_obey_and_an_answer_stays_as_it_is(server: Server) -> None:
    text = "a\x1b]0;x\x07\x7f\x9b2J\u202e\r\n\té\\u001b"
    harmless = "a\ufffd]0;x\ufffd\ufffd\ufffd2J\ufffd\ufffd\n\té\\u001b"
    door = Door("registry", server.url, timeout_seconds=60)
    server.will_answer(200, {"name": text})
    assert door.get_once("/").json() == {"name": text}
    server.will_answer(404, {"error": {"kind": "NotFound", "message": text}})
    with pytest.raises(NotFound) as caught:
        door.call("GET", "/", repeatable=True)
    assert caught.value.message == harmless


@each_row(
    ("status", "kind"),
    [(400, InvalidInput), (404, NotFound), (409, Conflict), (429, Overloaded), (503, Unavailable), (500, DataLoss)],
)
def test_each_of_the_six_errors_comes_back_as_itself(
    server: Server, client: Client, status: int, kind: type[HeadraceError]
) -> None:
    server.will_answer(status, {"error": {"kind": kind.__name__, "message": "what, which, what was expected"}})
    with pytest.raises(kind, match="what, which, what was expected"):
        client.train("m")


@each_row(
    ("status", "kind"),
    [(400, InvalidInput), (404, NotFound), (429, Overloaded), (504, Unavailable), (500, Unavailable)],
)
def test_errors_in_tensorflow_servings_words_become_one_of_the_six(
    server: Server, status: int, kind: type[HeadraceError]
) -> None:
    server.will_answer(status, {"error": "Servable not found for request: Latest(m)"}, Retry_After="100")
    addresses = at(server.url)
    with Client(addresses, timeout_seconds=60) as client, pytest.raises(kind, match="Servable not found"):
        client.predict("m", instances=[1])


def test_refused_events_are_named_by_index(server: Server, client: Client) -> None:
    refused = [{"index": 3, "reason": "distance is missing"}]
    server.will_answer(400, {"error": {"kind": "InvalidInput", "message": "1 of 4 events", "refused": refused}})
    with pytest.raises(InvalidInput) as caught:
        client.append("s", [{}])
    assert caught.value.refused == ((3, "distance is missing"),)


def test_an_overloaded_ingest_is_tried_again_under_the_same_idempotency_key(server: Server, client: Client) -> None:
    overloaded = {"error": {"kind": "Overloaded", "message": "full"}}
    server.will_answer(429, overloaded, Retry_After="0")
    server.will_answer(503, {"error": {"kind": "Unavailable", "message": "the log is away"}})
    server.will_answer(200, {"accepted": 2, "refused": [], "position": {"0": 7}, "duplicate": True})
    answer = client.append("s", [{"x": 1.0}, {"x": 2.0}])
    assert (answer.accepted, answer.position, answer.duplicate) == (2, {0: 7}, True)
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_every_append_has_a_key_of_its_own(server: Server, client: Client) -> None:
    server.will_answer(200, {"accepted": 1})
    client.append("s", [{"x": 1.0}])
    client.append("s", [{"x": 1.0}])
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 2


def test_files_are_ingested_in_batches_and_go_on_under_their_keys(
    server: Server, client: Client, tmp_path: Path
) -> None:
    schema = {"features": [{"name": "x_m", "dtype": "float32", "aliases": ["x (m)"]}], "labels": []}
    (tmp_path / "a.csv").write_text("x (m)\n1\n2\n")
    (tmp_path / "b.ndjson").write_text('{"x (m)": 3}\n{"x_m": "?"}\n')
    stream = {"name": "s", "schema_version": 1, "schema_json": json.dumps(schema), "created_at": 0.0}
    first = {"accepted": 2, "refused": [], "position": {"0": 2}, "duplicate": False}
    second = {"accepted": 1, "refused": [{"index": 1, "reason": "x_m is '?'"}], "position": {"0": 3, "1": 1}}
    keys = []
    for _ in range(2):
        server.will_answer_all(stream, first, second)
        found = client.ingest("s", f"{tmp_path}/*", idempotency_key="k", on_invalid="deadletter")
        assert (found.accepted, found.refused, found.position) == (3, ((3, "x_m is '?'"),), {0: 3, 1: 1})
        keys.append([request.headers["idempotency-key"] for request in server.requests[-2:]])
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 2
    assert server.requests[-2].body == b'{"x_m":1.0}\n{"x_m":2.0}\n'
    client.ingest("s", [{"x_m": 1.0}])
    assert server.requests[-1].body == b'{"events":[{"x_m":1.0}]}'


@pytest.mark.parametrize("call", ["train", "rollback", "promote"])
def test_what_may_not_be_repeated_is_sent_once(server: Server, client: Client, call: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "train": lambda: client.train("m"),
        "rollback": lambda: client.rollback("m"),
        "promote": lambda: client.promote("m", 1),
    }
    server.will_answer(503, {"error": {"kind": "Unavailable", "message": "away"}})
    with pytest.raises(Unavailable):
        calls[call]()
    assert len(server.requests) == 1


def test_who_acts_is_told(server: Server, client: Client) -> None:
    server.will_answer(409, {"error": {"kind": "Conflict", "message": "nothing is new"}})
    with pytest.raises(Conflict):
        client.train("m", reason="because")
    body = orjson.loads(server.requests[0].body)
    assert len(body.pop("request_id")) == 16
    assert body == {"by": "tester", "reason": "because"}


def test_a_connection_is_kept_for_the_next_call(server: Server, client: Client) -> None:
    server.will_answer(200, {"models": []})
    client.models()
    client.models()
    assert len({request.client_port for request in server.requests}) == 1


def test_threads_do_not_share_a_connection(server: Server, client: Client) -> None:
    server.will_answer(200, {"predictions": [0.5]})
    answers = at_once(4, lambda _: [client.predict("m", instances=[1]) for _ in range(50)])
    assert answers == [[[0.5]] * 50] * 4


def test_a_service_that_cannot_be_reached_is_unavailable_and_named(free_port: int) -> None:
    address = f"http://127.0.0.1:{free_port}"
    with (
        Client(Addresses(registry=address), timeout_seconds=0.3) as client,
        pytest.raises(Unavailable, match=f"registry at {address} cannot be reached"),
    ):
        client.models()


def test_a_service_that_does_not_answer_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(Addresses(trainer=address), timeout_seconds=0.3) as client,
            pytest.raises(Unavailable, match=r"did not answer POST /v1/models/m:train within 0\.3 s"),
        ):
            client.train("m")


def test_a_round_that_was_planned_without_an_answer_is_found_in_the_registry(server: Server) -> None:
    """And where it is not, it is said how to see whether it comes."""

    def registry_answers(request_id: str) -> None:
        plan = ROUND | {"configuration": {"requested": {"by": "tester", "request_id": request_id}}}
        other = {"round_id": "q", "planned_at": 0.5, "state": "done", "plan": ROUND}
        listed = [{"round_id": "r", "planned_at": 1.0, "state": "planned", "plan": plan}, other]
        server.will_answer(200, {"rounds": listed})

    with socket.create_server(("127.0.0.1", 0)) as trainer:
        address = f"http://127.0.0.1:{trainer.getsockname()[1]}"

        def take() -> None:
            """The trainer plans the round, and its answer is lost."""
            connection, _ = trainer.accept()
            length = 0
            with connection, connection.makefile("rb") as file:
                while (line := file.readline()) not in (b"\r\n", b""):
                    length = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else length
                body = orjson.loads(file.read(length))
                registry_answers(body["request_id"] if body["reason"] == "planned" else "of another request")

        for reason in ("planned", "not planned"):
            thread = threading.Thread(target=take)
            thread.start()
            with Client(Addresses(trainer=address, registry=server.url), timeout_seconds=30, by="tester") as client:
                if reason == "planned":
                    assert client.train("m", reason=reason).round_id == "r"
                else:
                    with pytest.raises(Unavailable, match="may be planned all the same, `headrace rounds m` shows it"):
                        client.train("m", reason=reason)
            thread.join(timeout=60)


def test_versions_come_as_dataclasses(server: Server, client: Client) -> None:
    server.will_answer(200, {"versions": [VERSION]})
    (version,) = client.versions("m")
    assert version.verdict.decision is Decision.PROMOTE
    assert version.ranges[0].to_offset == 9
    assert version.end_position == {0: 9}
    assert version.files == ()


def test_versions_come_page_by_page_and_no_more_than_asked_for(server: Server, client: Client) -> None:
    pages = [[5, 6], [3, 4], [1, 2]]
    for numbers in pages:
        listed = [VERSION | {"version": number} for number in numbers]
        server.will_answer(200, {"versions": listed, "older": numbers[0] if numbers[0] > 1 else 0})
    assert [version.version for version in client.versions("m")] == [1, 2, 3, 4, 5, 6]
    assert [request.path.partition("?")[2] for request in server.requests] == [
        "limit=1000", "limit=1000&before=5", "limit=1000&before=3",
    ]  # fmt: skip
    for numbers in pages[:2]:
        listed = [VERSION | {"version": number} for number in numbers]
        server.will_answer(200, {"versions": listed, "older": numbers[0]})
    listing = client.listing("m", limit=4)
    assert ([version.version for version in listing.versions], listing.has_older) == ([3, 4, 5, 6], True)
    assert server.requests[-1].path.endswith("?limit=2&before=5")


def test_rounds_are_read_in_the_registrys_and_in_the_trainers_form(server: Server, client: Client) -> None:
    nested = {"round_id": "r", "planned_at": 1.0, "state": "planned", "plan": ROUND}
    server.will_answer(200, {"rounds": [nested]})
    server.will_answer(202, ROUND)
    (listed,), planned = client.rounds("m"), client.train("m")
    assert listed == planned
    assert listed.state is RoundState.PLANNED
    assert listed.plan.example_count == 30


def test_an_answer_of_another_program_is_unavailable_not_a_crash(server: Server, client: Client) -> None:
    server.will_answer(200, b"<html>")
    with pytest.raises(Unavailable, match="not JSON"):
        client.models()
    server.will_answer(200, {"models": [{"name": "m"}]})
    with pytest.raises(Unavailable, match="not a whole Model"):
        client.models()


def test_arrays_are_fine_as_values(server: Server, client: Client) -> None:
    server.will_answer(200, {"outputs": [1]})
    pixels = np.arange(6, dtype=np.float32).reshape(2, 3)
    client.predict("m", inputs={"pixels": pixels.T, "name": np.array(["a"])}, label="canary")
    sent = server.requests[0]
    assert sent.path == "/v1/models/m/labels/canary:predict"
    assert orjson.loads(sent.body) == {"inputs": {"pixels": pixels.T.tolist(), "name": ["a"]}}


def test_predict_takes_rows_or_columns_and_a_version_or_a_label(client: Client) -> None:
    with pytest.raises(InvalidInput, match="what instances share"):
        client.predict("m", inputs=[1], context={"a": 1})
    with pytest.raises(InvalidInput, match="either instances"):
        client.predict("m")
    with pytest.raises(InvalidInput, match="not both"):
        client.predict("m", instances=[1], version=1, label="canary")


def test_status_tells_what_a_service_lacks(server: Server, client: Client) -> None:
    server.will_answer(503, {"conditions": {"event_log": "starting"}})
    statuses = client.status()
    assert [status.name for status in statuses] == ["registry", "ingest", "trainer", "serving-0"]
    assert not statuses[0].is_ready
    assert statuses[0].conditions == {"event_log": "starting"}


@each_row("address", ["127.0.0.1:8701", "ftp://127.0.0.1:8701", "http://host", "http://h:1/path"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="must read http://host:port"):
        Client(Addresses(registry=address))
