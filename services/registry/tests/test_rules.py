"""Who may call what of the registry: every route and every method, by the credentials that it takes."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from starlette.types import ASGIApp

from common.access.guard import Guard
from common.process.health import Health
from common.process.rpc import start_server
from protos import registry_pb2_grpc
from services.registry.catalog import Catalog
from services.registry.doors.grpc_api import SERVICE_NAME, RegistryServicer
from services.registry.doors.http_api import create_registry_app
from services.registry.doors.rules import RULES
from services.registry.tests.building import SCHEMA
from testing.asgi import asked
from testing.rows import each_row
from testing.walking import access_in, bearer, call, http_actions, rpc_actions, statuses_of_all

_OPEN = {action for action, rule in RULES.items() if rule.is_open}
_SESSION = {"GET /login", "POST /login", "POST /logout"}
_OPEN_PATHS = ("GET /healthz", "GET /readyz", "GET /static/", "grpc.health.v1.Health/", *_SESSION)


def _methods(server: object) -> None:
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(RegistryServicer(None), server)  # type: ignore[arg-type]  # nothing behind it


@pytest.fixture
def app(catalog: Catalog, tmp_path: Path) -> ASGIApp:
    return create_registry_app(catalog, Health(), guard=Guard(access_in(tmp_path), RULES))


@pytest.fixture
def port(catalog: Catalog, tmp_path: Path) -> Iterator[int]:
    access = access_in(tmp_path)
    servicer = RegistryServicer(catalog)
    server, port = start_server(
        "127.0.0.1:0",
        lambda server: registry_pb2_grpc.add_RegistryServiceServicer_to_server(servicer, server),
        service_names=(SERVICE_NAME,), service_health=Health(), guard=Guard(access, RULES),
    )  # fmt: skip
    yield port
    server.stop(None)


def test_every_route_and_method_has_a_rule_and_every_rule_is_of_one(app: ASGIApp) -> None:
    actions = http_actions(app) | rpc_actions(_methods)
    ours = {action for action in RULES if not action.startswith("grpc.")}
    assert actions == ours
    assert all(action.startswith(_OPEN_PATHS) for action in _OPEN)


@each_row("name", ["", "nobody"])
def test_without_credentials_no_route_is_answered_but_those_of_probes(app: ASGIApp, name: str) -> None:
    answers = statuses_of_all(app, name)
    assert {action for action, status in answers.items() if status != 401} == _OPEN & answers.keys()


def test_a_stranger_meets_403_wherever_there_is_something_to_see(app: ASGIApp) -> None:
    answers = statuses_of_all(app, "stranger")
    let_through = {action for action, status in answers.items() if status not in (401, 403)}
    by_any_author = {
        "GET /v1/streams", "GET /v1/streams/{stream}", "PUT /v1/streams/{stream}", "POST /v1/apply",
        "GET /v1/definitions/{digest}", "GET /v1/files/{digest}",
    }  # fmt: skip
    anybody = {action for action, rule in RULES.items() if not rule.roles}
    assert let_through == (anybody | by_any_author) & answers.keys()


def test_an_operator_may_do_all_that_people_do(app: ASGIApp) -> None:
    assert not {action for action, status in statuses_of_all(app, "operator").items() if status in (401, 403)}


def test_a_viewer_changes_nothing(app: ASGIApp) -> None:
    answers = statuses_of_all(app, "viewer")
    changing = {action for action in answers if not action.startswith("GET ")}
    assert {action for action in changing if answers[action] != 403} == _SESSION - {"GET /login"}


def test_an_author_registers_a_new_stream_and_leaves_anothers_schema_as_it_is(app: ASGIApp) -> None:
    optional = {"name": "later", "dtype": "float32", "required": False, "default": 0.0}
    changed = {**SCHEMA, "features": [*SCHEMA["features"], optional]}

    for name, stream, schema, status in (
        ("author", "s", SCHEMA, 200), ("author", "new", SCHEMA, 200), ("author", "s", changed, 403),
        ("sender", "s", SCHEMA, 403), ("operator", "s", changed, 200), ("author", "s", changed, 200),
    ):  # fmt: skip
        answer = asked(app, f"/v1/streams/{stream}", "PUT", json=schema, headers=bearer(name))
        assert answer.status_code == status, (name, stream)


def test_every_method_asks_for_credentials_and_for_a_role(port: int) -> None:
    for action in rpc_actions(_methods):
        assert call(port, action, "") is grpc.StatusCode.UNAUTHENTICATED, action
        assert call(port, action, "nobody") is grpc.StatusCode.UNAUTHENTICATED, action
        assert call(port, action, "predictor") is grpc.StatusCode.PERMISSION_DENIED, action


def test_a_person_does_not_speak_for_a_service(port: int) -> None:
    for method in ("LeaseRound", "RegisterVersion", "FailRound", "PlanRound", "TakeJob", "Report"):
        action = f"{SERVICE_NAME}/{method}"
        assert call(port, action, "operator") is grpc.StatusCode.PERMISSION_DENIED, action


def test_a_trainer_does_what_trainers_do_and_promotes_nothing(port: int) -> None:
    assert call(port, f"{SERVICE_NAME}/SetAlias", "trainer") is grpc.StatusCode.PERMISSION_DENIED
    assert call(port, f"{SERVICE_NAME}/ListModels", "trainer") is grpc.StatusCode.OK
    assert call(port, f"{SERVICE_NAME}/LeaseRound", "trainer") is grpc.StatusCode.INVALID_ARGUMENT
    report = b"\x0a\x01i\x12\x07serving"
    assert call(port, f"{SERVICE_NAME}/Report", "trainer", report) is grpc.StatusCode.PERMISSION_DENIED
