"""What a door does with its table of rules, over HTTP: the parts that no service shows by itself."""

from pathlib import Path

import httpx
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from common.access.access import Access
from common.access.guard import Guard, fields_of, rule
from common.process.health import Health
from common.process.web import COMMON_RULES, create_app
from protos import tfserving_pb2
from testing.asgi import asked
from testing.rows import each_row
from testing.walking import access_in, bearer, write_access


def _app(access: Access) -> FastAPI:
    app = create_app("test", Health("core"), guard=Guard(access, {**COMMON_RULES, "GET /ruled/{model}": _RULE}))

    @app.get("/ruled/{model}")
    def ruled(model: str) -> str:
        return model

    @app.get("/forgotten")
    def forgotten() -> str:
        return "open"

    app.router.routes.append(Mount("/mounted", Starlette()))
    return app


_RULE = rule("predict:{model}", "service:trainer")


def _get(app: FastAPI, path: str, name: str, method: str = "GET", **headers: str) -> httpx.Response:
    return asked(app, path, method, headers={**bearer(name), **headers})


@each_row("path", ["/forgotten", "/mounted/x"])
def test_a_route_without_a_rule_is_nobodys(tmp_path: Path, path: str) -> None:
    app = _app(access_in(tmp_path))
    assert _get(app, path, "").status_code == 401
    answer = _get(app, path, "operator")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (403, "PermissionDenied")


@each_row(
    ("name", "path", "status"),
    [
        ("predictor", "/ruled/none", 200), ("predictor", "/ruled/other", 403), ("predictor", "/ruled/none%2Fx", 404),
        ("predictor", "/ruled/NONE", 403), ("trainer", "/ruled/any", 200), ("operator", "/ruled/any", 200),
        ("viewer", "/ruled/none", 403), ("nobody", "/ruled/none", 401), ("nobody", "/nothing", 401),
        ("viewer", "/nothing", 404), ("viewer", "/metrics", 200), ("predictor", "/metrics", 403),
        ("predictor", "/openapi.json", 200),
    ],
)  # fmt: skip
def test_a_rule_is_held_against_what_the_path_names(tmp_path: Path, name: str, path: str, status: int) -> None:
    assert _get(_app(access_in(tmp_path)), path, name).status_code == status


def test_a_path_that_one_principal_has_passed_is_held_against_the_next(tmp_path: Path) -> None:
    app, long = _app(access_in(tmp_path)), "/ruled/" + "n" * 300
    for path in ("/ruled/none", long):
        for name, status in (("trainer", 200), ("viewer", 403), ("", 401), ("trainer", 200)):
            assert _get(app, path, name).status_code == status
    assert _get(app, "/ruled/none", "trainer", method="DELETE").status_code == 405


def test_a_method_in_a_header_is_none(tmp_path: Path) -> None:
    app = _app(access_in(tmp_path))
    for header in ("x-http-method-override", "x-http-method", "x-method-override"):
        assert _get(app, "/ruled/other", "predictor", **{header: "OPTIONS"}).status_code == 403
    assert _get(app, "/ruled/none", "predictor", method="HEAD").status_code == 405
    assert _get(app, "/ruled/none", "predictor", method="DELETE").status_code == 405
    assert _get(app, "/ruled/none", "", method="DELETE").status_code == 401


def test_readiness_says_what_is_wrong_with_the_access_file_and_nothing_of_who_is_in_it(tmp_path: Path) -> None:
    access = access_in(tmp_path)
    app = _app(access)
    assert _get(app, "/readyz", "").json()["conditions"]["access"] == "ok"
    (tmp_path / "access.yaml").write_text("principals: [{name: mallory}]")
    while "refused" not in access.remark:
        pass
    shown = _get(app, "/readyz", "").json()["conditions"]["access"]
    assert ("ok, but" in shown, "mallory" in shown) == (True, False)
    write_access(tmp_path / "access.yaml")
    while access.remark:
        pass
    assert _get(app, "/readyz", "").json()["conditions"]["access"] == "ok"


def test_without_identity_readiness_is_silent_about_it() -> None:
    app = create_app("test", Health("core"))
    assert set(_get(app, "/readyz", "").json()["conditions"]) == {"core"}
    assert _get(app, "/metrics", "").status_code == 200


def test_the_names_of_a_message_are_found_by_path() -> None:
    two = tfserving_pb2.MultiInferenceRequest()
    for name in ("a", "b"):
        two.tasks.add().model_spec.name = name
    assert list(fields_of(two)("tasks.model_spec.name")) == ["a", "b"]
    assert list(fields_of(tfserving_pb2.MultiInferenceRequest())("tasks.model_spec.name")) == [""]
    assert list(fields_of(tfserving_pb2.PredictRequest())("model_spec.name")) == [""]
