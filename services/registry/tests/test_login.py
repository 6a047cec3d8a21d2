"""Logging in on the pages: what a session may see and do, and what ends it."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.access.access import Access
from common.access.guard import Guard
from services.registry.catalog import Catalog
from services.registry.doors.rules import RULES
from services.registry.pages.login import BEGUN_COOKIE, LOGIN_COOKIE
from services.registry.tests.building import Clock, new_catalog, publish
from services.registry.tests.seeing import Seen, browsing, seen
from testing.issuer import AUDIENCE, CLIENT, CLIENT_SECRET, Issuer, issuer
from testing.rows import each_row
from testing.walking import TOKENS, bearer, write_access

_ROLES = {
    "operator": ("operator",), "viewer": ("viewer",), "author": ("author:m",), "predictor": ("predict:m",),
    "sender": ("viewer", "ingest:s"),
}  # fmt: skip
_PAGE = {"accept": "text/html"}


def _served(catalog: Catalog, access: Access) -> AbstractContextManager[httpx.Client]:
    return browsing(catalog, secret=b"s" * 32, guard=Guard(access, RULES))


@pytest.fixture
def access(tmp_path: Path) -> Access:
    write_access(tmp_path / "access.yaml", _ROLES)
    return Access(tmp_path / "access.yaml", look_seconds=0.0)


@pytest.fixture
def browser(catalog: Catalog, access: Access) -> Iterator[httpx.Client]:
    """Keeps its cookies, as a browser does."""
    publish(catalog)
    with _served(catalog, access) as client:
        yield client


def _token_of(page: Seen) -> str:
    return str(page.all("input", name="token")[0]["value"])


def _log_in(browser: httpx.Client, name: str, *, after: str = "/") -> httpx.Response:
    page = seen(browser.get(after, headers=_PAGE))
    fields = {"token": _token_of(page), "access_token": TOKENS[name], "next": after}
    return browser.post("/login", data=fields, follow_redirects=False)


def test_without_a_session_a_page_is_a_form_to_log_in_and_nothing_else(browser: httpx.Client) -> None:
    for path in ("/", "/models/m", "/models/none", "/streams/s", "/history", "/models/m/do/pause", "/docs"):
        answer = browser.get(path, headers=_PAGE)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        page = seen(answer)
        assert [field["value"] for field in page.all("input", name="next")] == [path]
        assert "production" not in page.text
        assert browser.get(path).json()["error"]["kind"] == "Unauthenticated"
    assert browser.get("/static/pages.css").status_code == 200
    assert browser.get("/login", headers=_PAGE).status_code == 200


def test_a_token_is_exchanged_for_a_cookie_that_no_script_and_no_other_site_gets(browser: httpx.Client) -> None:
    answer = _log_in(browser, "operator", after="/models/m")
    assert (answer.status_code, answer.headers["location"]) == (303, "/models/m")
    cookie = answer.headers["set-cookie"]
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert TOKENS["operator"] not in cookie
    page = browser.get("/models/m", headers=_PAGE)
    assert page.status_code == 200
    assert "operator" in seen(page).text
    assert browser.get("/v1/models").status_code == 200


@each_row("after", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"])
def test_logging_in_leads_to_no_other_site(browser: httpx.Client, after: str) -> None:
    page = seen(browser.get("/login", headers=_PAGE))
    fields = {"token": _token_of(page), "access_token": TOKENS["viewer"], "next": after}
    assert browser.post("/login", data=fields, follow_redirects=False).headers["location"] == "/"


def test_a_wrong_token_is_refused_in_a_sentence_and_not_shown(browser: httpx.Client) -> None:
    answer = _log_in(browser, "nobody")
    assert answer.status_code == 401
    assert "the token is of no principal" in seen(answer).text
    assert TOKENS["nobody"] not in answer.text
    assert LOGIN_COOKIE not in browser.cookies


def test_a_forged_or_changed_cookie_is_nobodys(browser: httpx.Client) -> None:
    _log_in(browser, "viewer")
    encoded, _, signature = browser.cookies[LOGIN_COOKIE].partition(".")
    session = json.loads(base64.urlsafe_b64decode(encoded))
    later = base64.urlsafe_b64encode(json.dumps({**session, "expires_at": 2**40}).encode()).decode()
    for forged in (f"{later}.{signature}", f"{encoded}.", encoded, f"{encoded}.{'0' * 64}", ".", "\u00e9.x", "e30=.x"):
        browser.cookies.clear()
        headers = [(b"accept", b"text/html"), (b"cookie", f"{LOGIN_COOKIE}={forged}".encode())]
        assert browser.get("/", headers=headers).status_code == 401, forged


def test_a_session_ends_with_its_token_and_by_logging_out(browser: httpx.Client, access: Access) -> None:
    _log_in(browser, "viewer")
    page = seen(browser.get("/", headers=_PAGE))
    assert access.path is not None
    write_access(access.path, {"operator": ("operator",)})
    assert browser.get("/", headers=_PAGE).status_code == 401
    write_access(access.path, _ROLES)
    assert browser.get("/", headers=_PAGE).status_code == 200
    assert browser.post("/logout", data={"token": ""}).status_code == 409, "a form without its token"
    assert browser.get("/", headers=_PAGE).status_code == 200
    kept = browser.cookies[LOGIN_COOKIE]
    assert browser.post("/logout", data={"token": _token_of(page)}, follow_redirects=False).status_code == 303
    assert browser.get("/", headers=_PAGE).status_code == 401
    browser.cookies.set(LOGIN_COOKIE, kept)
    assert "the session has ended" in seen(browser.get("/", headers=_PAGE)).text


def test_a_session_that_was_ended_stays_so_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    first = new_catalog(tmp_path / "data", clock)
    first.ended_sessions.end_session("over", clock.now - 1)
    first.ended_sessions.end_session("ended", clock.now + 10)
    first.close()
    again = new_catalog(tmp_path / "data", clock)
    assert ("ended" in again.ended_sessions, "over" in again.ended_sessions) == (True, False)
    again.close()


def test_a_live_page_ends_when_its_session_does(browser: httpx.Client, access: Access) -> None:
    _log_in(browser, "viewer")
    assert access.path is not None
    with browser.stream("GET", "/live/models/m") as live:
        lines = live.iter_lines()
        assert next(lines) == "retry: 2000"
        write_access(access.path, {"operator": ("operator",)})
        assert len(list(lines)) > 0, "it ends"


def test_pages_offer_what_the_principal_may_do(browser: httpx.Client, catalog: Catalog) -> None:
    offered = {
        "operator": {"pause", "train", "profile", "pin", "rollback"}, "author": {"pause", "train", "profile"},
        "viewer": set[str](),
    }  # fmt: skip
    for name, expected in offered.items():
        browser.cookies.clear()
        _log_in(browser, name)
        page = browser.get("/models/m", headers=_PAGE)
        assert set(re.findall(r"/models/m/do/(\w+)", page.text)) == expected, name
        for action in ("pause", "pin"):
            status = browser.get(f"/models/m/do/{action}", headers=_PAGE).status_code
            assert status == (200 if action in expected else 403)


def test_who_may_not_gets_a_sentence(browser: httpx.Client) -> None:
    _log_in(browser, "predictor", after="/login")
    answer = browser.get("/models/m", headers=_PAGE)
    assert answer.status_code == 403
    assert "predictor may not call" in seen(answer).text
    assert browser.get("/models/unknown", headers=_PAGE).status_code == 403


def test_a_change_is_made_in_the_name_of_the_session(browser: httpx.Client, catalog: Catalog) -> None:
    _log_in(browser, "operator")
    form = seen(browser.get("/models/m/do/pause", headers=_PAGE))
    assert not form.all("input", name="by")
    fields = {"token": _token_of(form), "from": "1", "by": "mallory", "reason": "r"}
    assert browser.post("/models/m/do/pause", data=fields, follow_redirects=False).status_code == 303
    assert (catalog.get_model("m").paused.partition(":")[0]).startswith("operator")
    assert {entry.by for _, entry in catalog.history_page(action="pause").entries} == {"operator"}


def test_a_cookie_changes_nothing_through_the_api(browser: httpx.Client, catalog: Catalog) -> None:
    _log_in(browser, "operator")
    assert browser.post("/v1/models/m:pause", json={"by": "x"}).status_code == 401
    assert not catalog.get_model("m").paused
    assert browser.post("/v1/models/m:pause", json={}, headers=bearer("operator")).status_code == 200


def test_where_everybody_may_do_everything_every_page_says_so(catalog: Catalog) -> None:
    with _served(catalog, Access(remark="everybody may do everything")) as client:
        for path in ("/", "/models/m", "/streams", "/history", "/serving"):
            assert "Warning: everybody may do everything" in seen(client.get(path)).text


@pytest.fixture
def made() -> Iterator[Issuer]:
    with issuer() as found:
        yield found


@pytest.fixture
def at_issuer(catalog: Catalog, made: Issuer, tmp_path: Path) -> Iterator[httpx.Client]:
    """A browser at a registry where people log in at an issuer."""
    publish(catalog)
    (tmp_path / "secret").write_text(CLIENT_SECRET + "\n")
    client = f"client_id: {CLIENT}, client_secret_file: {tmp_path}/secret"
    path = write_access(tmp_path / "access.yaml", _ROLES)
    with path.open("a") as file:
        file.write(f"oidc: {{issuer: {made.url}, audience: {AUDIENCE}, roles_claim: roles, {client}}}\n")
    with _served(catalog, Access(path)) as opened:
        yield opened


def _begun(browser: httpx.Client, after: str = "/models/m") -> str:
    """Where the page to log in leads a person who asks for that page."""
    (link,) = seen(browser.get(after, headers=_PAGE)).all("a", **{"class": "button primary"})
    answer = browser.get(str(link["href"]), headers=_PAGE, follow_redirects=False)
    assert answer.status_code == 303
    cookie = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"httponly", "samesite=lax", "path=/login/callback"} <= cookie
    return answer.headers["location"]


def test_a_person_logs_in_at_the_issuer_and_goes_on_where_the_page_was_asked_for(
    at_issuer: httpx.Client, made: Issuer
) -> None:
    url = _begun(at_issuer)
    assert url.startswith(f"{made.url}/authorize?tenant=a&response_type=code&")
    answer = at_issuer.get(made.log_in(url), headers=_PAGE)
    assert answer.status_code == 200, answer.text
    assert '<meta http-equiv="refresh" content="0; url=/models/m">' in answer.text
    assert BEGUN_COOKIE not in at_issuer.cookies
    page = at_issuer.get("/models/m", headers=_PAGE)
    assert (page.status_code, "ada" in seen(page).text) == (200, True)
    assert at_issuer.get("/models/m/do/pause", headers=_PAGE).status_code == 403, "a viewer pauses nothing"


@each_row(
    "claims",
    [
        {"nonce": "of another login"}, {"nonce": None}, {"aud": AUDIENCE}, {"aud": "elsewhere"},
        {"iss": "https://elsewhere.example"}, {"exp": 1}, {"sub": "operator"}, {"sub": "no name\n"},
    ],
)  # fmt: skip
def test_a_token_of_another_login_client_issuer_or_name_logs_nobody_in(
    at_issuer: httpx.Client, made: Issuer, claims: Mapping[str, Any]
) -> None:
    made.claims = dict(claims)
    answer = at_issuer.get(made.log_in(_begun(at_issuer)), headers=_PAGE)
    assert answer.status_code == 401
    assert LOGIN_COOKIE not in at_issuer.cookies


def test_a_login_is_finished_once_in_the_browser_that_began_it(at_issuer: httpx.Client, made: Issuer) -> None:
    back = made.log_in(_begun(at_issuer))
    begun = at_issuer.cookies[BEGUN_COOKIE]
    forged = f"{begun.partition('.')[0]}.{'0' * 64}"
    for cookie, url, status in (
        ("", back, 409), (forged, back, 409), ("\u00e9.x", back, 409), (begun, f"{back}x", 409),
        (begun, back.replace("code=code-0", "code=code-9"), 401), (begun, "/login/callback?error=access_denied", 401),
        (begun, back, 200), (begun, back, 401),
    ):  # fmt: skip
        at_issuer.cookies.clear()
        headers = [(b"accept", b"text/html"), (b"cookie", f"{BEGUN_COOKIE}={cookie}".encode())]
        answer = at_issuer.get(url, headers=headers)
        assert (answer.status_code, LOGIN_COOKIE in at_issuer.cookies) == (status, status == 200), url


def test_without_a_client_nobody_is_sent_to_an_issuer(browser: httpx.Client) -> None:
    assert browser.get("/login/issuer", headers=_PAGE).status_code == 404
    assert browser.get("/login/callback?code=a&state=b", headers=_PAGE).status_code == 409
    assert seen(browser.get("/login", headers=_PAGE)).all("a", **{"class": "button primary"}) == []
