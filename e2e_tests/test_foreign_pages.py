"""A page in a browser on the machine of a published door: it may neither read by a rebound name nor change anything."""

import http.client
from collections.abc import Mapping
from itertools import product
from urllib.parse import urlsplit

import pytest

from e2e_tests.driver import Platform

pytestmark = pytest.mark.timeout(300, method="signal")

_FOREIGN_HOST = "evil.example"
_FOREIGN_PAGES: tuple[Mapping[str, str], ...] = (
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3999", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
)


_PATHS = (("GET", "/metrics"), ("GET", "/"), ("POST", "/v1/models/none:predict"), ("POST", "/nothing/here"))
"""Of a route, of a page, on the short way of predictions, and of no route: doors look at names first."""


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


def test_no_door_answers_to_a_foreign_name_or_changes_anything_for_a_foreign_page(platform: Platform) -> None:
    for url, (method, path) in product(doors(platform), _PATHS):
        rebound = {"Host": f"{_FOREIGN_HOST}:{urlsplit(url).port}"}
        as_one_site = rebound | {"Origin": f"http://{rebound['Host']}", "Sec-Fetch-Site": "same-origin"}
        for headers in (rebound, as_one_site):
            status, text = asked(url, method, path, headers)
            assert (status, b"ALLOWED_HOSTS" in text) == (421, True), f"{url} {method} {path} {headers}: {text!r}"
        for page in _FOREIGN_PAGES if method == "POST" else ():
            status, text = asked(url, method, path, {"Host": urlsplit(url).netloc, **page})
            assert (status, b"ALLOWED_HOSTS" in text) == (403, True), f"{url} {method} {path} {page}: {text!r}"


def test_a_page_of_the_doors_own_is_answered(platform: Platform) -> None:
    for url, host in product(doors(platform), ("localhost", "127.0.0.1")):
        own = f"{host}:{urlsplit(url).port}"
        page = {"Host": own, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}
        for method, path in (("GET", "/metrics"), ("GET", "/readyz"), ("POST", "/nothing/here")):
            assert asked(url, method, path, page)[0] not in (403, 421)
