"""Tokens of an issuer: which count, for whom, and which do not."""

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from common.access.access import Access
from common.access.guard import Guard
from common.errors import InvalidInput, Unauthenticated, Unavailable
from common.process.health import Health
from common.process.web import COMMON_RULES, create_app
from testing.asgi import asked
from testing.issuer import AUDIENCE, CLIENT, CLIENT_SECRET, Issuer, issuer, rsa_key
from testing.rows import each_row
from testing.waiting import wait_until


@pytest.fixture
def made() -> Iterator[Issuer]:
    with issuer() as one:
        yield one


def _access(folder: Path, made: Issuer, **more: Any) -> Access:
    oidc = {"issuer": made.url, "audience": AUDIENCE, "roles_claim": "roles", **more}
    named = {"name": "bob", "roles": ["viewer"], "token_sha256": ["0" * 64]}
    (folder / "access.yaml").write_text(json.dumps({"principals": [named], "oidc": oidc}))
    return Access(folder / "access.yaml")


def test_a_token_has_the_name_and_the_roles_of_its_claims(tmp_path: Path, made: Issuer) -> None:
    rules = [{"claim": "groups", "value": "ml", "roles": ["author:*", "viewer"]}]
    access = _access(tmp_path, made, rules=rules)
    token = made.token(roles=["predict:a*", "admin-of-something-else"], groups=["ml", "all"])
    principal = access.identify(f"Bearer {token}")
    assert (principal.name, principal.roles) == ("ada", frozenset({"predict:a*", "author:*", "viewer"}))
    assert principal.expires_at > time.time()
    spaced = access.identify(f"Bearer {made.token(roles='viewer operator', sub='eve')}")
    assert (spaced.name, spaced.roles) == ("eve", frozenset({"viewer", "operator"}))
    assert access.identify(f"Bearer {made.token(sub='none')}").roles == frozenset()


def test_another_claim_may_be_the_name_and_other_keys_and_algorithms_sign(tmp_path: Path, made: Issuer) -> None:
    made.new_key("e", elliptic=True)
    access = _access(tmp_path, made, name_claim="email")
    token = made.token("e", algorithm="ES256", email="ada@example.org")
    assert access.identify(f"Bearer {token}").name == "ada@example.org"


def _unsigned(made: Issuer) -> str:
    parts = ({"alg": "none", "kid": "a"}, {"iss": made.url, "aud": AUDIENCE, "sub": "ada", "exp": 2**33})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def _by_public_key(made: Issuer) -> str:
    """HMAC with what everybody may know. PyJWT makes none itself."""
    import hashlib
    import hmac

    def encoded(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    claims = {"iss": made.url, "aud": AUDIENCE, "sub": "ada", "exp": 2**33, "roles": ["operator"]}
    signed = f"{encoded(json.dumps({'alg': 'HS256', 'kid': 'a'}).encode())}.{encoded(json.dumps(claims).encode())}"
    return f"{signed}.{encoded(hmac.new(made.public_pem('a'), signed.encode(), hashlib.sha256).digest())}"


def _changed(made: Issuer) -> str:
    head, payload, signature = made.token(roles=["viewer"]).split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    forged = base64.urlsafe_b64encode(json.dumps({**claims, "roles": ["operator"]}).encode()).decode().rstrip("=")
    return f"{head}.{forged}.{signature}"


_WRONG = {
    "expired": lambda made: made.token(exp=int(time.time()) - 3600),
    "without an end": lambda made: made.token(exp=None),
    "not yet": lambda made: made.token(nbf=int(time.time()) + 3600),
    "for others": lambda made: made.token(aud="another"),
    "for nobody": lambda made: made.token(aud=None),
    "of another issuer": lambda made: made.token(iss="http://127.0.0.1:1"),
    "of no issuer": lambda made: made.token(iss=None),
    "of no one": lambda made: made.token(sub=None),
    "of a name that is none": lambda made: made.token(sub="a b\n"),
    "of a principal of the file": lambda made: made.token(sub="bob", roles=["operator"]),
    "unsigned": _unsigned,
    "signed with the public key": _by_public_key,
    "changed": _changed,
    "of an unknown key": lambda made: made.token("x", key=rsa_key("of a stranger")),
    "of a stranger's key under a known id": lambda made: made.token("a", key=rsa_key("of a stranger")),
    "of a key by a path": lambda made: made.token("../keys/a", key=made.keys["a"]),
    "nothing": lambda made: "a.b.c",
    "of nested lists": lambda made: base64.urlsafe_b64encode(b"[" * 4500).decode() + ".e30.e30",
    "too long": lambda made: made.token(more="x" * 9000),
}


@each_row("make", _WRONG.values())
def test_no_other_token_counts(tmp_path: Path, made: Issuer, make: Any) -> None:
    access = _access(tmp_path, made)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            access.identify(f"Bearer {make(made)}")


def test_a_new_key_counts_at_once_and_keys_are_not_fetched_for_each_token(tmp_path: Path, made: Issuer) -> None:
    access = _access(tmp_path, made)
    for number in range(5):
        access.identify(f"Bearer {made.token(sub=f'u{number}')}")
    assert made.fetched == 1
    made.new_key("b")
    token = made.token("b")
    wait_until(lambda: _counts(access, token), "the new key counts")
    before = made.fetched
    for _ in range(20):
        assert not _counts(access, made.token("x", key=rsa_key("of a stranger")))
    assert made.fetched - before < 20


def _counts(access: Access, token: str) -> bool:
    try:
        return access.identify(f"Bearer {token}").name == "ada"
    except Unauthenticated:
        return False


def test_an_expired_token_counts_no_more_although_it_was_known(tmp_path: Path, made: Issuer) -> None:
    access = _access(tmp_path, made, leeway_seconds=0)
    token = made.token(exp=int(time.time()) + 2)
    assert _counts(access, token)
    generation, principal = access.generation, access.identify(f"Bearer {token}")
    assert not access.has_changed(generation, principal)
    wait_until(lambda: not _counts(access, token), "the token has expired")
    assert access.has_changed(generation, principal), "open streams are asked again"


def test_an_issuer_that_is_away_or_another_is_said_to_be(tmp_path: Path, made: Issuer) -> None:
    access = _access(tmp_path, made)
    made.stated_issuer = "https://another.example"
    with pytest.raises(Unavailable, match="cannot be read"):
        access.identify(f"Bearer {made.token()}")
    made.stated_issuer = made.url
    assert access.identify(f"Bearer {made.token()}").name == "ada"


@each_row("text", [b"<html>", b'"\xff"', b"[" * 100_000])
def test_keys_that_are_no_json_are_none(tmp_path: Path, made: Issuer, text: bytes) -> None:
    access = _access(tmp_path, made)
    made.keys_text = text
    with pytest.raises(Unavailable, match="cannot be fetched"):
        access.identify(f"Bearer {made.token()}")


@each_row("path", ["/openid-configuration", "/keys", "/token"])
def test_an_issuer_that_sends_elsewhere_is_not_followed(tmp_path: Path, made: Issuer, path: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CLIENT_SECRET)
    access = _access(tmp_path, made, client_id=CLIENT, client_secret_file=str(secret))

    def log_in() -> None:
        access.identify(f"Bearer {made.token()}")
        assert access.issuer is not None
        access.issuer.id_token_of("code", made.url, verifier="v")

    with issuer() as other:
        other.keys, made.elsewhere, made.sent_on = made.keys, f"{other.url}{path}", path
        with pytest.raises((Unavailable, Unauthenticated)):
            log_in()
        assert other.paths == []


_ROOT = {"claim": "g", "value": "v", "roles": ["root"]}


def test_made_up_tokens_hold_few_threads_while_the_issuer_is_slow(tmp_path: Path, made: Issuer) -> None:
    access = _access(tmp_path, made)
    token = made.token()
    made.answers.clear()
    with ThreadPoolExecutor(12) as pool:
        submitted = [pool.submit(access.identify, f"Bearer {token}") for _ in range(12)]
        refused = [one for one in submitted if isinstance(one.exception() if one.done() else None, Unavailable)]
        while len(refused) < 8:
            refused = [one for one in submitted if one.done() and isinstance(one.exception(), Unavailable)]
        made.answers.set()
    assert [one.result().name for one in submitted if one not in refused] == ["ada"] * 4


@each_row(
    "oidc",
    [
        {"issuer": "http://id.example.org", "audience": "a"}, {"issuer": "ftp://127.0.0.1", "audience": "a"},
        {"issuer": "https://id.example.org"}, {"issuer": "https://id.example.org", "audience": ""},
        {"issuer": "https://id.example.org", "audience": "a", "algorithms": ["HS256"]},
        {"issuer": "https://id.example.org", "audience": "a", "rules": [_ROOT]},
    ],
)  # fmt: skip
def test_an_issuer_that_is_not_safe_or_not_known_is_refused(tmp_path: Path, oidc: dict[str, Any]) -> None:
    (tmp_path / "access.yaml").write_text(json.dumps({"oidc": oidc}))
    with pytest.raises(InvalidInput, match="oidc"):
        Access(tmp_path / "access.yaml")


def test_a_door_fetches_keys_beside_its_event_loop(tmp_path: Path, made: Issuer) -> None:
    app = create_app("test", Health(), guard=Guard(_access(tmp_path, made), COMMON_RULES))

    for token, status in (
        (made.token(roles=["viewer"]), 200), (made.token(roles=[]), 403), (made.token(aud="another"), 401),
    ):  # fmt: skip
        assert asked(app, "/metrics", headers={"authorization": f"Bearer {token}"}).status_code == status
