"""The prediction client against a real front (a process of its own), by both doors, and against one that misbehaves."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import headrace
from headrace import InvalidInput, NotFound, Overloaded, PredictionClient, Unavailable
from headrace.client.tensor_values import as_input
from headrace.tests.answering_server import Server
from protos import example_pb2
from testing.rows import each_row

_MIXED = {"x": np.array([1.5, 2.5], np.float32), "n": [1, 2], "s": ["a", b"\xfe"]}


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request: pytest.FixtureRequest, front_ports: dict[str, int]) -> Iterator[PredictionClient]:
    with PredictionClient(f"{request.param}://127.0.0.1:{front_ports[request.param]}") as client:
        yield client


@pytest.fixture(scope="module")
def rest(front_ports: dict[str, int]) -> Iterator[PredictionClient]:
    with PredictionClient(f"http://127.0.0.1:{front_ports['http']}") as client:
        yield client


@pytest.mark.covers("srv-client")
def test_arrays_in_arrays_out_with_the_version(client: PredictionClient) -> None:
    answer = client.predict("m", {"x": np.array([[1, 2], [3, 4]], np.float32)}, request_id="mine")
    assert (answer.version, answer.request_id) == (3, "mine")
    assert answer.outputs["y"].dtype == np.float32
    assert answer.outputs["y"].tolist() == [3.0, 7.0]
    assert answer.rows() == [3.0, 7.0]


@each_row("given", [[[1, 2]], np.array([[1, 2]]), np.array([[1.0, 2.0]]), {"x": [[1, 2]]}])
def test_a_signature_with_one_input_takes_it_bare_and_of_any_fitting_type(
    client: PredictionClient, given: object
) -> None:
    assert client.predict("m", given).outputs["y"].tolist() == [3.0]


def test_a_bare_array_is_for_the_one_input_that_may_not_be_left_out(client: PredictionClient) -> None:
    for inputs in ([[1, 2]], {"x": [[1, 2]]}):
        assert client.predict("m", inputs, signature_name="grown").outputs["y"].tolist() == [3.0]


@pytest.mark.covers("srv-client")
def test_types_and_strings_travel_both_ways(client: PredictionClient) -> None:
    outputs = client.predict("m", _MIXED, signature_name="mixed", label="canary").outputs
    assert {name: array.dtype.name for name, array in outputs.items()} == {
        "double": "float64", "n": "int64", "s": "object", "raw_bytes": "object",
    }  # fmt: skip
    assert outputs["double"].tolist() == [3.0, 5.0]
    assert outputs["n"].tolist() == [2, 3]
    assert outputs["raw_bytes"].tolist() == [b"\xffa", b"\xff\xfe"]
    assert outputs["s"][0] == b"a"


def test_rows_and_a_filter(client: PredictionClient) -> None:
    rows = [{"x": 1, "n": 1, "s": "a"}, {"x": np.float32(2), "n": 2, "s": "b"}]
    answer = client.predict("m", rows=rows, signature_name="mixed", version=3, output_filter=("n", "double"))
    assert answer.rows() == [{"double": 2.0, "n": 2}, {"double": 4.0, "n": 3}]


@pytest.mark.covers("srv-client")
def test_a_request_of_several_examples_has_a_row_of_each(client: PredictionClient) -> None:
    events = [example_pb2.Example(), example_pb2.Example()]
    for event, values in zip(events, ([1.5, 2.0], [4.0]), strict=True):
        event.features.feature["x"].float_list.value.extend(values)
    given = {"examples": [event.SerializeToString() for event in events]}
    answer = client.predict("m", given, signature_name="serving_examples")
    assert answer.outputs["y"].tolist() == [3.5, 4.0]


def test_numbers_that_are_none_travel(client: PredictionClient) -> None:
    outputs = client.predict("m", np.array([[np.nan, 1], [np.inf, 1]], np.float32)).outputs
    assert np.isnan(outputs["y"][0])
    assert np.isposinf(outputs["y"][1])


def test_a_signature_tells_its_types(client: PredictionClient) -> None:
    types = client.signature("m", "mixed")
    assert types.inputs == {"x": "DT_FLOAT", "n": "DT_INT64", "s": "DT_STRING"}
    with pytest.raises(InvalidInput, match="no signature other"):
        client.signature("m", "other")


@pytest.mark.covers("srv-client")
def test_every_fault_is_one_of_the_six_errors(client: PredictionClient) -> None:
    one = [[1, 2]]
    with pytest.raises(InvalidInput, match="begins with -1"):
        client.predict("m", [[-1, 2]])
    with pytest.raises(NotFound, match="Servable not found"):
        client.predict("none", one)
    with pytest.raises(NotFound, match="Servable not found"):
        client.predict("m", one, version=9)
    with pytest.raises(InvalidInput, match="label: none"):
        client.predict("m", one, label="none")
    with pytest.raises(InvalidInput, match="none"):
        client.predict("m", one, signature_name="none")
    with pytest.raises(InvalidInput):
        client.predict("m", {"x": [["a", "b"]]})
    with pytest.raises(InvalidInput):
        client.predict("m", {"x": [[1, 2], [3]]})
    with pytest.raises(InvalidInput, match="no"):
        client.predict("m", one, output_filter=("no",))
    with pytest.raises(InvalidInput, match="a version or a label"):
        client.predict("m", one, version=3, label="canary")
    with pytest.raises(InvalidInput, match="inputs \\(columns\\) or rows"):
        client.predict("m")
    with pytest.raises(InvalidInput, match="there are no rows"):
        client.predict("m", rows=[])
    with pytest.raises(InvalidInput, match="row 1 has y; row 0 has x"):
        client.predict("m", rows=[{"x": 1}, {"y": 1}])


@each_row(
    ("value", "type_name"),
    [(np.array([1e300]), "DT_FLOAT"), ([1e300], "DT_FLOAT"), ([300], "DT_UINT8"), ([-1], "DT_UINT32")],
)
def test_a_number_that_its_type_cannot_hold_is_refused(value: Any, type_name: str) -> None:
    assert as_input("x", [1], type_name).tolist() == [1]
    with pytest.raises(InvalidInput, match=f"input x is no tensor of {type_name}"):
        as_input("x", value, type_name)


def test_what_failed_or_took_too_long_is_not_sent_again(client: PredictionClient) -> None:
    with pytest.raises(Unavailable, match="the graph is broken"):
        client.predict("m", [[-2, 0]])
    with pytest.raises(Unavailable):
        client.predict("m", [[-3, 0]], timeout_seconds=0.2)


def test_threads_share_a_client(client: PredictionClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: client.predict("m", [[number, 1]]).outputs["y"][0], range(40)))
    assert answers == [number + 1.0 for number in range(40)]


def test_a_prediction_is_submitted_and_fetched_later(rest: PredictionClient) -> None:
    pending = rest.submit("m", _MIXED, signature_name="mixed", output_filter=("n",), deadline_seconds=60)
    answer = rest.wait(pending, timeout_seconds=30)
    assert (answer.version, answer.outputs["n"].tolist(), list(answer.outputs)) == (3, [2, 3], ["n"])
    assert rest.cancel(pending) is False
    with pytest.raises(NotFound, match="no prediction"):
        rest.wait(pending)
    with pytest.raises(InvalidInput, match="begins with -1"):
        rest.wait(rest.submit("m", [[-1, 2]]))
    slow = rest.submit("m", [[-3, 0]])
    with pytest.raises(Unavailable, match="wait again"):
        rest.wait(slow, timeout_seconds=0.01)
    assert rest.wait(slow, timeout_seconds=30).outputs["y"].tolist() == [-3.0]


def test_grpc_has_no_asynchronous_predictions(front_ports: dict[str, int]) -> None:
    with (
        PredictionClient(f"grpc://127.0.0.1:{front_ports['grpc']}") as client,
        pytest.raises(InvalidInput, match="no gRPC"),
    ):
        client.submit("m", [[1, 2]])


def test_an_overloaded_server_is_asked_again_and_a_submission_only_where_it_was_refused(server: Server) -> None:
    with PredictionClient(server.url, timeout_seconds=30) as client:
        server.will_answer(429, {"error": "full"}, Retry_After="0.01")
        server.will_answer(503, {"error": "away"})
        server.will_answer(500, {"error": "broken"})
        with pytest.raises(Unavailable, match="broken"):
            client.predict("m", [[1, 2]])
        assert len(server.requests) == 3
        assert len({request.headers["x-request-id"] for request in server.requests}) == 1
        server.will_answer(429, {"error": "full"}, Retry_After="0.01")
        server.will_answer(503, {"error": "away"})
        with pytest.raises(Unavailable, match="away"):
            client.submit("m", [[1, 2]])
        assert len(server.requests) == 5


def test_an_overload_that_lasts_is_told_in_time(server: Server) -> None:
    for seconds in ("0.01", "100"):
        server.will_answer(429, {"error": "full"}, Retry_After=seconds)
    with PredictionClient(server.url, timeout_seconds=60) as client, pytest.raises(Overloaded, match="full"):
        client.predict("m", [[1, 2]])
    assert len(server.requests) == 2


def test_a_server_that_is_not_there_is_unavailable(free_port: int) -> None:
    for scheme in ("http", "grpc"):
        url = f"{scheme}://127.0.0.1:{free_port}"
        with PredictionClient(url, timeout_seconds=0.2) as client, pytest.raises(Unavailable):
            client.predict("m", [[1, 2]])


def test_the_platforms_client_has_it_by_either_door(front_ports: dict[str, int]) -> None:
    for scheme, port in front_ports.items():
        with headrace.Client(predictions_url=f"{scheme}://127.0.0.1:{port}") as client:
            assert client.predictions.predict("m", [[1, 2]]).version == 3
            assert client.predictions is client.predictions


@each_row("url", ["127.0.0.1:8501", "grpcs://h", "grpc://h", "ftp://h:1", "http://h:1/v1"])
def test_an_address_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="must read"):
        PredictionClient(url)


@pytest.mark.covers("srv-client")
def test_the_clients_come_without_anything_heavy_and_rest_without_grpc() -> None:
    heavy = ["tensorflow", "keras", "grpc", "google.protobuf"]
    more = ["numpy", "httpx", "pydantic", "fastapi", "rich", "typer"]
    script = (
        f"import sys, headrace; headrace.Client(); print([name for name in {heavy + more} if name in sys.modules]);"
        "headrace.PredictionClient('http://127.0.0.1:1').close();"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["[]", "[]"]
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = headrace.Nothing
