"""Where Redis is and how it is spoken to, from one URL, for the three clients of Redis:

    redis://[user[:password]@]host[:port][/db]      rediss:// the same over TLS      unix:///path[?db=N]

Behind it, after `?`: `password_file`, read at each connection, so that it can be replaced; and for rediss redis-py's
`ssl_ca_certs` (else the machine's authorities), `ssl_certfile` and `ssl_keyfile` (a client's certificate).
"""

import ssl
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from common.errors import InvalidInput, Unavailable
from common.peers import client_context, password_in

_FORMS = "redis://host:port/db, rediss://host:port/db or unix:///path"
_PORT = 6379
_OF_ALL, _OF_TLS = ("password_file",), ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True)
class RedisUrl:
    """Attributes:
    shown: for messages; without a password.
    path: of a Unix socket; "" for host and port.
    options: what stands after `?`.
    """

    shown: str
    is_tls: bool = False
    host: str = ""
    port: int = _PORT
    path: str = ""
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises InvalidInput: it is of another form; quotes no password."""
        shown = f"{url.partition('://')[0]}://{url.rpartition('@')[2]}" if "@" in url else url
        what = f"REDIS_URL is {shown!r}"
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
            is_path = parts.scheme == "unix"
            database = int((options.pop("db", "") if is_path else parts.path.strip("/")) or 0)
            host, port = parts.hostname or "127.0.0.1", parts.port or _PORT
        except ValueError as error:
            raise InvalidInput(f"{what}, which is malformed; expected {_FORMS}") from error
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise InvalidInput(f"{what}, expected {_FORMS}")
        known = (*_OF_ALL, *(_OF_TLS if parts.scheme == "rediss" else ()))
        if unknown := sorted(options.keys() - set(known)):
            raise InvalidInput(f"{what}: unknown option {', '.join(unknown)}; known are {', '.join(known)}")
        if password and "password_file" in options:
            raise InvalidInput(f"{what}: it has a password and a password_file; take one away")
        path = parts.path if is_path else ""
        return cls(shown, parts.scheme == "rediss", host, port, path, database, user, password, options)

    def login(self) -> tuple[str, ...]:
        """Words for AUTH; () without a password. Raises Unavailable: the file cannot be read."""
        password = self.password
        if path := self.options.get("password_file"):
            password = password_in(path, "Redis")
        return tuple(word for word in (self.user, password) if word) if password else ()

    def context(self) -> ssl.SSLContext | None:
        """None for plain text. Raises Unavailable: a file cannot be used."""
        if not self.is_tls:
            return None
        try:
            return client_context(*(self.options.get(name, "") for name in _OF_TLS))
        except (OSError, ValueError) as error:
            raise Unavailable(f"the certificates for {self.shown} cannot be used: {error}") from error
