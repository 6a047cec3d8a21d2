"""TensorBoard behind the same rules as the other doors: it checks neither Host nor Origin itself.

python -m services.trainer.summaries.board_door ALLOWED_HOSTS [TensorBoard's own arguments]
"""

import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from absl import app
from tensorboard import default, main_lib, program

from common.process.http_door import Door, HttpBounds, RefusedByDoor, host_names
from common.process.http_protocol import SAFE_METHODS

_Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def guarded(inner: _Wsgi, allowed_hosts: str) -> _Wsgi:
    """The application, asked only by names and pages of its own and of `allowed_hosts`."""
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
            start(f"{refusal.status} Refused", [("Content-Type", "text/plain; charset=utf-8")])
            return [refusal.message.encode()]
        return inner(environment, start)

    return answer


def main() -> None:
    """As TensorBoard's own main."""
    allowed_hosts = sys.argv.pop(1)

    class Server(program.WerkzeugServer):
        def __init__(self, wsgi_app: _Wsgi, flags: Any) -> None:
            super().__init__(guarded(wsgi_app, allowed_hosts), flags)

    main_lib.global_init()
    board = program.TensorBoard(plugins=default.get_plugins(), server_class=Server)
    app.run(board.main, flags_parser=board.configure)


if __name__ == "__main__":
    main()
