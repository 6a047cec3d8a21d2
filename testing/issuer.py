"""An OpenID Connect issuer of a test's own: discovery, keys, tokens, and logins by code."""

import base64
import functools
import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "headrace"
CLIENT, CLIENT_SECRET = "the dashboard", "s:cret of it"


@functools.cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """One for each name: making it takes a tenth of a second."""
    return rsa.generate_private_key(65537, 2048)


@dataclass
class Issuer:
    """`keys`: private keys by id, as its key set lists them now; `fetched` counts the requests for them."""

    url: str = ""
    stated_issuer: str = ""
    """The issuer that the discovery document names."""
    keys: dict[str, Any] = field(default_factory=dict)
    fetched: int = 0
    paths: list[str] = field(default_factory=list)
    """Of all requests."""
    answers: threading.Event = field(default_factory=threading.Event)
    """Answers are held back while it is cleared."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    """What was asked for, by the code that was given."""
    keys_text: bytes = b""
    """The answer in place of its key set."""
    elsewhere: str = ""
    """A URL to which requests are sent on, of the path that ends with `sent_on`."""
    sent_on: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    """Of the next ID tokens, besides those that they have always."""

    def new_key(self, key_id: str, *, elliptic: bool = False) -> None:
        self.keys[key_id] = ec.generate_private_key(ec.SECP256R1()) if elliptic else rsa_key(key_id)

    def token(self, key_id: str = "a", *, algorithm: str = "RS256", key: Any = None, **claims: Any) -> str:
        """Signed by that key; claims that are None are left out."""
        now = int(time.time())
        whole = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 600, **claims}
        payload = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(payload, key or self.keys[key_id], algorithm=algorithm, headers={"kid": key_id})

    def log_in(self, url: str) -> str:
        """A person's way through the issuer's own pages: where it sends the browser back to."""
        request = dict(parse_qsl(urlsplit(url).query))
        parts = [request[name] for name in ("response_type", "client_id", "code_challenge_method")]
        assert parts == ["code", CLIENT, "S256"]
        code = f"code-{len(self.codes)}"
        self.codes[code] = request
        return f"{request['redirect_uri']}?{urlencode({'code': code, 'state': request['state']})}"

    def redeem(self, form: dict[str, str], authorization: str) -> dict[str, str] | None:
        """The answer to a code, once; None: no token."""
        request = self.codes.pop(form["code"], None)
        pair = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
        if (
            request is None
            or pair != "the%20dashboard:s%3Acret%20of%20it"
            or form["redirect_uri"] != request["redirect_uri"]
            or challenge.rstrip("=") != request["code_challenge"]
        ):
            return None
        claims = {"aud": CLIENT, "nonce": request["nonce"], "roles": ["viewer"], **self.claims}
        return {"id_token": self.token(**claims)}

    def public_pem(self, key_id: str) -> bytes:
        return bytes(self.keys[key_id].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def key_set(self) -> dict[str, Any]:
        self.fetched += 1
        return {"keys": [{**_public(key), "kid": key_id, "use": "sig"} for key_id, key in self.keys.items()]}


def _public(key: Any) -> dict[str, Any]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return dict(json.loads(algorithm.to_jwk(key.public_key())))


@contextmanager
def issuer() -> Iterator[Issuer]:
    """With an RSA key `a`."""
    made = Issuer()
    made.new_key("a")
    made.answers.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.answers.wait(2.0)
            discovery = {
                "issuer": made.stated_issuer, "jwks_uri": f"{made.url}/keys", "token_endpoint": f"{made.url}/token",
                "authorization_endpoint": f"{made.url}/authorize?tenant=a",
            }  # fmt: skip
            self._answer(200, made.key_set() if self.path == "/keys" else discovery)

        def parse_request(self) -> bool:
            is_whole = super().parse_request()
            made.paths.append(self.path)
            if not (is_whole and made.elsewhere and self.path.endswith(made.sent_on)):
                return is_whole
            self.send_response(302)
            self.send_header("Location", made.elsewhere)
            self.end_headers()
            return False

        def do_POST(self) -> None:
            form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            found = made.redeem(form, self.headers.get("Authorization", ""))
            self._answer(200 if found else 400, found or {"error": "invalid_grant"})

        def _answer(self, status: int, document: object) -> None:
            body = made.keys_text if made.keys_text and self.path == "/keys" else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = made.stated_issuer = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()
