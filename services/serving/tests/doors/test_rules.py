"""Who may ask what of serving: every route and method, on the short way and the ordinary one."""

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import numpy as np
import pytest

from common.access.access import Access
from common.access.guard import Guard
from common.process.health import Health
from protos import queue_pb2, tfserving_pb2
from services.serving.doors import grpc_api
from services.serving.doors.http_api import create_serving_app
from services.serving.doors.model_doors import add_model_doors
from services.serving.doors.rules import serving_rules
from services.serving.front.monitoring import add_metrics_route
from services.serving.tests.support.fake_runner import FakeRunner
from services.serving.tests.support.front_process import FrontThread
from services.serving.tests.support.replica_states import replica_state, version
from testing import plain_http
from testing.redis_server import RedisServer
from testing.rows import each_row
from testing.walking import TOKENS, access_in, bearer, call, http_actions, rpc_actions, statuses_of_all, write_access

_NOTHING = cast(Any, None)
_METRICS = "/monitoring/prometheus/metrics"
_RULES = serving_rules(_METRICS)
_PROBES = {"GET /healthz", "GET /readyz", "OPTIONS /v1/{rest:path}", "OPTIONS /V1/{rest:path}"}
_ROLES: Mapping[str, tuple[str, ...]] = {
    "operator": ("operator",), "viewer": ("viewer",), "predictor": ("predict:m",), "sender": ("ingest:*",),
    "stranger": ("predict:mm", "author:*"),
}  # fmt: skip
_BODY = json.dumps({"instances": [{"x": [1.0, 2.0]}]}).encode()
_UNUSUAL = {"content-encoding": "identity"}
"""Has a prediction go the ordinary way."""


def _methods(server: Any) -> None:
    grpc_api.add_services(server, _NOTHING, _NOTHING, _NOTHING)


def _app(tmp_path: Path) -> Any:
    guard = Guard(access_in(tmp_path), _RULES)
    app = create_serving_app(_NOTHING, _NOTHING, _NOTHING, Health(), max_body_bytes=1024, guard=guard)
    add_model_doors(app, _NOTHING)
    add_metrics_route(app, _METRICS, None)
    return app


def _sums(inputs: Mapping[str, np.ndarray], request: queue_pb2.PredictionRequest) -> Mapping[str, np.ndarray]:
    return {"y": inputs["x"].sum(axis=1)}


@pytest.fixture
def access(tmp_path: Path) -> Path:
    return write_access(tmp_path / "access.yaml", _ROLES)


@pytest.fixture
def front(redis_server: RedisServer, access: Path) -> Iterator[FrontThread]:
    """Serves model m; has another one, which it only knows."""
    state = replica_state(version(), secret={"production": 1})
    guard = Guard(Access(access, look_seconds=0.0), serving_rules())
    with (
        FrontThread(redis_server.url, state, guard=guard) as front,
        FakeRunner(redis_server.url, _sums) as front.runner,
    ):
        yield front


def _post(front: FrontThread, name: str, path: str = "/v1/models/m:predict", **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", **bearer(name), **headers}
    return plain_http.post(f"{front.url}{path}", content=_BODY, headers=sent, timeout=60)


def test_every_route_and_method_has_a_rule_and_every_rule_is_of_one(tmp_path: Path) -> None:
    actions = http_actions(_app(tmp_path)) | rpc_actions(_methods)
    assert actions == {action for action in _RULES if not action.startswith("grpc.")}


@each_row("name", ["", "nobody"])
def test_without_credentials_only_probes_are_answered(tmp_path: Path, name: str) -> None:
    answers = statuses_of_all(_app(tmp_path), name)
    assert {action for action, status in answers.items() if status != 401} == _PROBES


def test_a_sender_asks_nothing_of_serving(tmp_path: Path) -> None:
    answers = statuses_of_all(_app(tmp_path), "sender")
    anybody = {action for action, rule in _RULES.items() if not rule.roles}
    assert {action for action, status in answers.items() if status != 403} == (anybody | _PROBES) & answers.keys()


@each_row("more", [{}, _UNUSUAL])
def test_predictions_are_for_who_may_predict(front: FrontThread, more: Mapping[str, str]) -> None:
    expected = {
        "predictor": 200,
        "operator": 200,
        "viewer": 403,
        "stranger": 403,
        "sender": 403,
        "nobody": 401,
        "": 401,
    }
    assert {name: _post(front, name, **more).status_code for name in expected} == expected


def test_refusals_have_the_form_of_the_errors_and_say_the_same_of_what_is_there_and_what_is_not(
    front: FrontThread,
) -> None:
    unknown = _post(front, "")
    assert (unknown.json()["error"]["kind"], unknown.headers["www-authenticate"]) == ("Unauthenticated", "Bearer")
    paths = ("/v1/models/secret:predict", "/v1/models/secrex:predict", "/v1/models/secret/versions/1:predict")
    answers = [_post(front, "predictor", path).json()["error"] for path in paths]
    assert {answer["kind"] for answer in answers} == {"PermissionDenied"}
    assert len({answer["message"] for answer in answers[:2]}) == 1


def test_a_misspelt_name_is_not_answered_with_one_that_is_not_for_the_caller(front: FrontThread, access: Path) -> None:
    write_access(access, {"operator": ("operator",), "predictor": ("predict:secre?",)})
    assert "secret" in _post(front, "operator", "/v1/models/secreto:predict").text
    write_access(access, {"predictor": ("predict:secreto",)})
    answer = _post(front, "predictor", "/v1/models/secreto:predict")
    assert answer.status_code == 404
    assert "did you mean" not in answer.text


@each_row(
    "path",
    [
        "/v1/models/m%2F..%2Fsecret:predict", "/v1/models/m/../secret:predict", "/v1/models/%6D%2e:predict",
        "/v1/models/M:predict", "/v1/models/\uff4d:predict", "/v1/models/m%00:predict", "/v1/models/m%20:predict",
        "/V1/MODELS/secret:predict", "/v1/models/secret:predict?model=m", "//v1/models/secret:predict",
        "/v1/models/secret/labels/m:predict", "/v1/models/secret:predict#/v1/models/m:predict",
    ],
)  # fmt: skip
def test_no_other_spelling_of_a_name_is_let_through(front: FrontThread, path: str) -> None:
    for more in ({}, _UNUSUAL):
        assert _post(front, "predictor", path, **more).status_code in (400, 403, 404)
        assert _post(front, "predictor", path, **more).status_code != 200


def test_each_request_of_a_connection_is_held_against_its_own_credentials(front: FrontThread) -> None:
    head = "POST /v1/models/m:predict HTTP/1.1\r\nhost: localhost\r\n{}content-length: {}\r\n\r\n"
    credentials = tuple(map(bearer, ("predictor", "viewer", "", "predictor")))
    requests = [
        head.format("".join(f"{key}: {value}\r\n" for key, value in one.items()), len(_BODY)).encode() + _BODY
        for one in credentials
    ]
    with socket.create_connection(("127.0.0.1", front.port), timeout=60) as wire:
        wire.sendall(b"".join(requests))
        file = wire.makefile("rb")
        statuses = []
        for _ in requests:
            statuses.append(int(file.readline().split()[1]))
            headers = dict(line.lower().split(b": ", 1) for line in iter(file.readline, b"\r\n"))
            file.read(int(headers[b"content-length"]))
    assert statuses == [200, 403, 401, 200]


def test_a_request_with_two_authorization_headers_is_refused(front: FrontThread) -> None:
    both = [("authorization", f"Bearer {TOKENS[name]}") for name in ("stranger", "predictor")]
    for more in ([], [*_UNUSUAL.items()]):
        answer = plain_http.post(f"{front.url}/v1/models/m:predict", content=_BODY, headers=[*both, *more], timeout=60)
        assert answer.status_code == 400


def test_a_removed_token_counts_no_more_with_the_next_request(front: FrontThread, access: Path) -> None:
    assert _post(front, "predictor").status_code == 200
    write_access(access, {"operator": ("operator",)})
    assert (_post(front, "predictor").status_code, _post(front, "operator").status_code) == (401, 200)


def test_a_later_answer_is_for_who_may_ask_the_model(front: FrontThread) -> None:
    submitted = _post(front, "predictor", "/v1/models/m:predictAsync")
    assert submitted.status_code == 202
    url = f"{front.url}/v1/predictions/{submitted.json()['id']}?wait_seconds=60"
    for name, status in (("", 401), ("viewer", 403), ("stranger", 403), ("predictor", 200)):
        assert plain_http.get(url, headers=bearer(name), timeout=60).status_code == status
    plain = url.partition("?")[0]
    for name, status in (("stranger", 403), ("predictor", 200)):
        assert plain_http.delete(plain, headers=bearer(name), timeout=60).status_code == status


def test_calls_are_for_who_may_predict_each_model_that_they_name(front: FrontThread) -> None:
    codes = grpc.StatusCode
    spec = tfserving_pb2.ModelSpec(name="m")
    predict = tfserving_pb2.PredictRequest(model_spec=spec)
    service = f"{grpc_api.PREDICTION_SERVICE}/"
    for name, code in (("", codes.UNAUTHENTICATED), ("viewer", codes.PERMISSION_DENIED),
                       ("stranger", codes.PERMISSION_DENIED), ("predictor", codes.INVALID_ARGUMENT)):  # fmt: skip
        assert call(front.grpc_port, f"{service}Predict", name, predict.SerializeToString()) is code
    two = tfserving_pb2.MultiInferenceRequest()
    for model in ("m", "secret"):
        two.tasks.add().model_spec.name = model
    assert call(front.grpc_port, f"{service}MultiInference", "predictor", two.SerializeToString()) is (
        codes.PERMISSION_DENIED
    )
    status = tfserving_pb2.GetModelStatusRequest(model_spec=spec).SerializeToString()
    for name, code in (("viewer", codes.OK), ("predictor", codes.OK), ("stranger", codes.PERMISSION_DENIED)):
        assert call(front.grpc_port, f"{grpc_api.MODEL_SERVICE}/GetModelStatus", name, status) is code
    reload = f"{grpc_api.MODEL_SERVICE}/HandleReloadConfigRequest"
    assert call(front.grpc_port, reload, "predictor") is codes.PERMISSION_DENIED
    assert call(front.grpc_port, reload, "operator") is codes.FAILED_PRECONDITION


def test_every_method_asks_for_credentials(front: FrontThread) -> None:
    for action in rpc_actions(_methods):
        assert call(front.grpc_port, action, "") is grpc.StatusCode.UNAUTHENTICATED, action
        assert call(front.grpc_port, action, "sender") is grpc.StatusCode.PERMISSION_DENIED, action
