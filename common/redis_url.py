"""Where Redis is and how it is spoken to, from one URL, for the three clients of Redis:

    redis://[user[:password]@]host[:port][/db]      rediss:// the same over TLS      unix:///path[?db=N]

Behind it, after `?`: `password_file`, read at each connection, so that it can be replaced; and for rediss redis-py's
`ssl_ca_certs` (else the machine's authorities), `ssl_certfile` and `ssl_keyfile` (a client's certificate).

With `sentinel_master=NAME` the host is a Sentinel, and `sentinels=host:port,host:port` are others: each connection is
made to the Redis that they call the master NAME then. User, password and database are those of the master.
"""

import ssl
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from common.errors import InvalidInput, Unavailable
from common.peers import client_context, password_in

_FORMS = "redis://host:port/db, rediss://host:port/db or unix:///path"
_PORT, _SENTINEL_PORT = 6379, 26379
_SENTINEL_SECONDS = 1.0
_MASTER, _OTHERS = "sentinel_master", "sentinels"
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
        sentinels = (_MASTER, _OTHERS) if not is_path else ()
        known = (*_OF_ALL, *sentinels, *(_OF_TLS if parts.scheme == "rediss" else ()))
        if unknown := sorted(options.keys() - set(known)):
            raise InvalidInput(f"{what}: unknown option {', '.join(unknown)}; known are {', '.join(known)}")
        if password and "password_file" in options:
            raise InvalidInput(f"{what}: it has a password and a password_file; take one away")
        if _OTHERS in options and not options.get(_MASTER):
            raise InvalidInput(f"{what}: sentinels needs sentinel_master, the name of the master that they watch")
        path = parts.path if is_path else ""
        return cls(shown, parts.scheme == "rediss", host, port, path, database, user, password, options)

    @property
    def has_sentinels(self) -> bool:
        return _MASTER in self.options

    def located(self) -> Self:
        """With host and port of the master, where Sentinels know it; blocks for as many seconds as there are of them.

        Raises:
            Unavailable: no Sentinel answers, or none knows the master.
        """
        if not self.has_sentinels:
            return self
        # Here, because it takes a tenth of a second, and serving asks Redis without it.
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        name, faults = self.options[_MASTER], []
        for place in (f"{self.host}:{self.port}", *filter(None, self.options.get(_OTHERS, "").split(","))):
            host, _, port = place.rpartition(":")
            tls: dict[str, Any] = {key: self.options[key] for key in _OF_TLS if key in self.options}
            try:
                with redis.Redis(
                    host=host or place, port=int(port) if host else _SENTINEL_PORT,
                    socket_timeout=_SENTINEL_SECONDS, socket_connect_timeout=_SENTINEL_SECONDS, ssl=self.is_tls,
                    decode_responses=True, retry=Retry(NoBackoff(), 0), **tls,
                ) as sentinel:  # fmt: skip
                    found = sentinel.sentinel_get_master_addr_by_name(name)
            except (redis.RedisError, OSError, ValueError) as error:
                faults.append(f"{place}: {error}")
                continue
            if found:
                return replace(self, host=str(found[0]), port=int(found[1]))
            faults.append(f"{place} knows no master {name}")
        raise Unavailable(f"no Sentinel names the master {name} ({'; '.join(faults)})")

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
