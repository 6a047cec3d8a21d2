"""TensorBoard behind the same rules as the other doors: it checks neither Host nor Origin nor credentials itself.

python -m services.trainer.summaries.board_door HOST ALLOWED_HOSTS [TensorBoard's own arguments]

With ACCESS_FILE it takes a token as bearer, or, as browsers ask for one, as the password of any name (RFC 7617); it
takes the role viewer. /healthz is open. With TLS_CERTIFICATE_FILE and TLS_KEY_FILE it
speaks TLS, as the other doors do.
"""

import base64
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from absl import app
from tensorboard import default, main_lib, program

from common.access.access import Access, open_access
from common.access.principal import VIEWER
from common.errors import InvalidInput, Unauthenticated, Unavailable
from common.process.http_door import Door, HttpBounds, RefusedByDoor, host_names
from common.process.http_protocol import SAFE_METHODS
from common.process.tls import Tls
from services.trainer.summaries.board import tls_files

_HEALTH = "/healthz"
_TEXT = [("Content-Type", "text/plain; charset=utf-8")]
_Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def guarded(inner: _Wsgi, allowed_hosts: str, access: Access) -> _Wsgi:
    """The application, for principals who may view; at its own host names and `allowed_hosts`, from pages of those."""
    own = frozenset({"tensorboard", socket.gethostname().lower()})
    door = Door(HttpBounds(own_names=own, allowed_hosts=host_names(allowed_hosts)))

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        host, origin, site = (
            environment.get(f"HTTP_{name}", "").encode() for name in ("HOST", "ORIGIN", "SEC_FETCH_SITE")
        )
        try:
            door.check_host(host)
            if environment["REQUEST_METHOD"].encode() not in SAFE_METHODS:
                door.check_page(origin, site.lower(), host)
        except RefusedByDoor as refusal:
            start(f"{refusal.status} Refused", _TEXT)
            return [refusal.message.encode()]
        if environment.get("PATH_INFO") == _HEALTH:
            start("200 OK", _TEXT)
            return [b"ok"]
        try:
            if not access.identify(_bearer(environment.get("HTTP_AUTHORIZATION", ""))).may(VIEWER):
                start("403 Forbidden", _TEXT)
                return [b"this takes the role viewer"]
        except Unavailable as error:
            start("503 Service Unavailable", _TEXT)
            return [error.message.encode()]
        except Unauthenticated as error:
            start("401 Unauthorized", [*_TEXT, ("WWW-Authenticate", 'Basic realm="Headrace: a token as password"')])
            return [error.message.encode()]
        return inner(environment, start)

    return answer


def _bearer(authorization: str) -> str:
    """A browser's form of it turned into a bearer's; anything else as it is."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        decoded = base64.b64decode(encoded, validate=True).decode()
    except ValueError:
        return authorization
    return f"Bearer {decoded.partition(':')[2]}"


def server_class(allowed_hosts: str, access: Access, tls: ssl.SSLContext | None) -> type[program.WerkzeugServer]:
    """TensorBoard's server behind the door; with TLS, whose handshakes are made by each connection's thread."""

    class Server(program.WerkzeugServer):
        def __init__(self, wsgi_app: _Wsgi, flags: Any) -> None:
            super().__init__(guarded(wsgi_app, allowed_hosts, access), flags)
            if tls is not None:
                listening: socket.socket = self.socket  # type: ignore[has-type]  # werkzeug's
                self.socket = tls.wrap_socket(listening, server_side=True, do_handshake_on_connect=False)

        def get_url(self) -> str:
            url: str = super().get_url()
            return url.replace("http://", "https://", 1) if tls is not None else url

    return Server


def main() -> None:
    """As TensorBoard's own main."""
    host, allowed_hosts = sys.argv.pop(1), sys.argv.pop(1)
    path = os.environ.get("ACCESS_FILE")
    try:
        access = open_access(
            Path(path) if path else None, host, allow_anonymous=os.environ.get("ALLOW_ANONYMOUS") == "yes"
        )
        tls = Tls.of(files).server_context() if (files := tls_files()).certificate else None
    except InvalidInput as error:
        sys.exit(f"tensorboard: {error.message}")

    main_lib.global_init()
    board = program.TensorBoard(plugins=default.get_plugins(), server_class=server_class(allowed_hosts, access, tls))
    app.run(board.main, flags_parser=board.configure)


if __name__ == "__main__":
    main()
