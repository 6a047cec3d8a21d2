"""What every service's HTTP door does with requests that no route is for."""

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Body, Request
from pydantic import BaseModel

from common.errors import MAX_MESSAGE_CHARACTERS, Conflict
from common.process.health import Health
from common.process.web import BoundedBodies, WebServer, bind, create_app
from testing import plain_http
from testing.rows import each_row

_LIMIT_BYTES = 1_000


class Named(BaseModel, extra="forbid"):
    reason: str = ""


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    app = create_app("test", Health())

    @app.get("/items")
    def items(limit: int = 5) -> dict[str, int]:
        return {"limit": limit}

    @app.post("/items")
    def add(item: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        return item

    @app.post("/sweep")
    def sweep() -> dict[str, bool]:
        return {"swept": True}

    @app.get("/things/{name}/events")
    def events(name: str) -> str:
        return name

    @app.get("/things/{name}:close")
    def close(name: str) -> str:
        return name

    @app.post("/named")
    def named(one: Named) -> str:
        return one.reason

    @app.post("/raw")
    async def raw(request: Request) -> dict[str, Any]:
        return {"query": dict(request.query_params), "size": len(await request.body())}

    @app.get("/bug")
    def bug() -> None:
        raise KeyError("ours")

    @app.get("/long")
    def long() -> None:
        raise Conflict("x" * 100_000)

    server = WebServer(BoundedBodies(app, _LIMIT_BYTES), bind("127.0.0.1", 0))
    server.start()
    with plain_http.client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        yield client
    server.stop()


def _refused(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["kind"], error["message"]


def test_the_page_of_the_routes_names_no_other_host_and_has_its_files_here(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "//" not in re.sub(r"<!--.*?-->", "", page.text)
    files = re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text)
    assert [file.rsplit(".", 1)[1] for file in files] == ["css", "css", "js", "js", "js"]
    answers = [http.get(f"/{file}") for file in files]
    assert {answer.status_code for answer in answers} == {200}
    assert sum(len(answer.content) for answer in answers) > 1_000_000
    assert "validatorUrl: null" in answers[-1].text
    assert "script-src 'self';" in page.headers["content-security-policy"], "no script stands in the page"
    assert "Pages</a>" not in page.text, "this service has none"
    assert http.get("/redoc").status_code == 404


def test_a_path_that_nobody_serves_is_not_found_in_our_own_form(http: httpx.Client) -> None:
    answer = _refused(http.get("/itms"))
    meant = "there is no /itms here; /openapi.json has what there is; did you mean /items?"
    assert answer == (404, "NotFound", meant)
    assert _refused(http.get("/things/s/evnts"))[2].endswith("did you mean /things/s/events?")
    assert _refused(http.get("/things/s:clse"))[2].endswith("did you mean /things/s:close?")


def test_a_method_that_the_path_does_not_take_is_named(http: httpx.Client) -> None:
    answer = http.delete("/sweep")
    assert _refused(answer) == (405, "InvalidInput", "/sweep does not take DELETE; it takes POST")
    assert answer.headers["allow"] == "POST"


@each_row("path", ["/items", "/healthz", "/readyz", "/metrics"])
def test_a_query_parameter_that_nobody_reads_is_refused(http: httpx.Client, path: str) -> None:
    status, kind, message = _refused(http.get(path, params={"limt": 3}))
    assert (status, kind) == (400, "InvalidInput")
    assert message.startswith("unknown query parameter limt; known: ")


def test_a_misspelt_parameter_or_key_is_told_with_what_was_meant(http: httpx.Client) -> None:
    assert _refused(http.get("/items", params={"limt": 3}))[2].endswith("known: limit; did you mean limit?")
    assert _refused(http.post("/named", json={"reasn": "x"}))[2].endswith("; did you mean reason?")


def test_a_query_parameter_given_twice_is_refused(http: httpx.Client) -> None:
    answer = _refused(http.get("/items?limit=3&limit=4"))
    assert answer == (400, "InvalidInput", "query parameter limit is given more than once")


def test_known_query_parameters_are_read(http: httpx.Client) -> None:
    assert http.get("/items", params={"limit": 3}).json() == {"limit": 3}
    assert http.get("/readyz").status_code == 200


def test_a_route_that_takes_the_request_itself_reads_what_it_likes(http: httpx.Client) -> None:
    answer = http.post("/raw", params={"wait": 1}, content=b"abc")
    assert answer.json() == {"query": {"wait": "1"}, "size": 3}


def test_a_body_that_nobody_reads_is_refused(http: httpx.Client) -> None:
    assert _refused(http.post("/sweep", json={"dry_run": True})) == (400, "InvalidInput", "POST /sweep takes no body")
    assert http.post("/sweep").json() == http.post("/sweep", json={}).json() == {"swept": True}


def test_a_body_that_is_not_called_json_is_refused_by_its_content_type(http: httpx.Client) -> None:
    assert _refused(http.post("/items", data={"a": "b"})) == (
        400, "InvalidInput", "Content-Type is 'application/x-www-form-urlencoded', expected application/json",
    )  # fmt: skip
    named = {"Content-Type": "application/vnd.items+json; charset=utf-8"}
    assert http.post("/items", content=b'{"a": 1}', headers=named).json() == {"a": 1}


@each_row(
    ("body", "message"),
    [
        (b'{"a": x}', "invalid request: the body is not JSON: Expecting value at character 6"),
        (b'{"\xff": 1}', "the body cannot be read as JSON"),
        (b"[]", "invalid request: body: Input should be a valid dictionary"),
        (b"[" * _LIMIT_BYTES, "the body cannot be read as JSON"),
        (b'{"a":' * (_LIMIT_BYTES // 5), "invalid request: the body is not JSON: Expecting value at character 1000"),
    ],
)
def test_a_body_that_is_not_what_the_route_reads_is_refused_and_is_nothing_to_log(
    http: httpx.Client, body: bytes, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = http.post("/items", content=body, headers={"Content-Type": "application/json"})
    assert _refused(answer) == (400, "InvalidInput", message)
    assert not caplog.records


def test_a_key_that_is_there_twice_is_refused(http: httpx.Client) -> None:
    body = b'{"name": "a", "\\u006eame": "b"}'
    answer = http.post("/items", content=body, headers={"content-type": "application/json"})
    assert _refused(answer) == (400, "InvalidInput", "the body has the key 'name' twice")


def test_a_body_over_the_bound_is_refused(http: httpx.Client) -> None:
    answer = http.post("/items", json={"a": "x" * _LIMIT_BYTES})
    assert _refused(answer) == (400, "InvalidInput", f"the request's body is larger than {_LIMIT_BYTES} bytes")


def test_a_body_over_the_bound_is_refused_when_it_is_announced_and_its_client_reads_why(http: httpx.Client) -> None:
    address = (http.base_url.host, http.base_url.port or 80)
    message = f"the request's body is larger than {_LIMIT_BYTES} bytes".encode()
    for sent in (b"", b"x" * (8 << 20)):
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(
                b"POST /items HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 99999999999\r\n\r\n"
            )
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
            assert message in connection.makefile("rb").read()


def test_a_fault_of_ours_keeps_the_form(http: httpx.Client) -> None:
    answer = _refused(http.get("/bug"))
    assert answer == (500, "Internal", "GET /bug failed unexpectedly: KeyError: 'ours'")


def test_a_message_that_quotes_too_much_is_cut(http: httpx.Client) -> None:
    status, kind, message = _refused(http.get("/long"))
    assert (status, kind) == (409, "Conflict")
    assert message == f"{'x' * MAX_MESSAGE_CHARACTERS} … ({100_000 - MAX_MESSAGE_CHARACTERS} characters more)"
