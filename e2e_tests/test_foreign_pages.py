"""A page in a browser on the machine of a published door: it may neither read by a rebound name nor change anything."""

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from urllib.parse import urlsplit

import pytest

from e2e_tests.driver import Platform
from testing.rows import each_row

pytestmark = pytest.mark.timeout(300, method="signal")

_FOREIGN_HOST = "evil.example"
_FOREIGN_PAGES: tuple[Mapping[str, str], ...] = (
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3999", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
)
_UNLISTED = (
    ("POST", "/models/none:rollback"), ("POST", "/models/none/versions/1/try"), ("POST", "/V1/models/none:predict"),
    ("POST", "/v1/models/none/versions/1:predict"), ("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json"),
    ("GET", "/nothing/here"), ("POST", "/nothing/here"),
)  # fmt: skip
"""Paths that no description lists: pages and their forms, and those that no route takes."""
_SAFE = ("get", "head", "options")


def doors(platform: Platform) -> dict[str, str]:
    """{URL: service}; in containers both each container's own port and the proxy's."""
    addresses = platform.addresses
    urls = {addresses.registry: "registry", addresses.ingest: "ingest", addresses.trainer: "trainer"}
    urls |= dict.fromkeys(addresses.serving, "serving")
    return urls | ({addresses.predictions: "serving"} if addresses.predictions else {})


def asked(url: str, method: str, path: str, headers: Mapping[str, str], body: bytes = b"{}") -> tuple[int, bytes]:
    """Status and body, with exactly these headers besides the length."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def routes(url: str, token: str) -> Iterator[tuple[str, str]]:
    """Method and path of every route that the door describes, and of some that it does not."""
    headers = {"Host": urlsplit(url).netloc, **({"Authorization": f"Bearer {token}"} if token else {})}
    status, text = asked(url, "GET", "/openapi.json", headers, b"")
    assert status == 200
    for path, methods in json.loads(text)["paths"].items():
        for method in methods:
            yield method.upper(), re.sub(r"{[^}]+}", "none", path)
    yield from _UNLISTED


def test_no_route_of_any_door_answers_to_a_foreign_name_or_changes_anything_for_a_foreign_page(
    platform: Platform,
) -> None:
    walked = changing = 0
    with platform.client() as client:
        token = client.token
    for url in doors(platform):
        own = urlsplit(url).netloc
        for method, path in routes(url, token):
            walked += 1
            rebound = {"Host": f"{_FOREIGN_HOST}:{urlsplit(url).port}"}
            as_one_site = rebound | {"Origin": f"http://{rebound['Host']}", "Sec-Fetch-Site": "same-origin"}
            for headers in (rebound, as_one_site):
                status, text = asked(url, method, path, headers)
                assert (status, b"ALLOWED_HOSTS" in text) == (421, True), f"{url} {method} {path} {headers}: {text!r}"
            if method.lower() in _SAFE:
                continue
            changing += 1
            for page in _FOREIGN_PAGES:
                status, text = asked(url, method, path, {"Host": own, **page})
                assert (status, b"ALLOWED_HOSTS" in text) == (403, True), f"{url} {method} {path} {page}: {text!r}"
    assert walked > 60
    assert changing > 25


def test_a_page_of_the_doors_own_is_answered(platform: Platform) -> None:
    for url, host in product(doors(platform), ("localhost", "127.0.0.1")):
        own = f"{host}:{urlsplit(url).port}"
        page = {"Host": own, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}
        for method, path in (("GET", "/metrics"), ("GET", "/readyz"), ("POST", "/nothing/here")):
            assert asked(url, method, path, page)[0] not in (403, 421)


@each_row("service", ["registry", "ingest", "serving-0"])
def test_a_browser_gets_nothing_from_a_grpc_port(platform: Platform, service: str) -> None:
    """It speaks HTTP/2 over TLS only; these ports take neither TLS nor HTTP/1.1."""
    url = f"http://127.0.0.1:{platform.grpc_port(service)}"
    try:
        status, _ = asked(url, "POST", "/headrace.v1.RegistryService/PutStream", {"Host": "localhost"})
    except (http.client.HTTPException, OSError):
        return
    assert status in (400, 421, 503)
