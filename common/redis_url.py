"""Where Redis is and how it is spoken to, from one URL, for the three clients of Redis:

    redis://[user[:password]@]host[:port][/db]      rediss:// the same over TLS      unix:///path[?db=N]

Behind it, after `?`: `password_file`, read at each connection, so that it can be replaced; and for rediss redis-py's
`ssl_ca_certs` (else the machine's authorities), `ssl_certfile` and `ssl_keyfile` (a client's certificate).

With `sentinel_master=NAME` the host is a Sentinel, and `sentinels=host:port,host:port` are others: each connection is
made to the Redis that they call the master NAME then. User, password and database are those of the master.

With `cluster_nodes=host:port,host:port` the host is a node of a Redis Cluster and these, which may be none, are
others: each connection is made to the master of its key. User and password are those of all nodes; a cluster has
database 0 only.
"""

import random
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from common.errors import InvalidInput, Unavailable
from common.peers import client_context, password_in

if TYPE_CHECKING:
    from redis import Redis

_FORMS = "redis://host:port/db, rediss://host:port/db or unix:///path"
_PORT, _SENTINEL_PORT = 6379, 26379
_LOOK_SECONDS = 1.0
_MASTER, _OTHERS, _NODES = "sentinel_master", "sentinels", "cluster_nodes"
NOT_HERE = frozenset(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED"))
"""Codes with which a node of a cluster refuses what another node has, or will have in a moment: the client connects
anew."""
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
        place = f"REDIS_URL is {shown!r}"
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
            is_path = parts.scheme == "unix"
            database = int((options.pop("db", "") if is_path else parts.path.strip("/")) or 0)
            host, port = parts.hostname or "127.0.0.1", parts.port or _PORT
        except ValueError as error:
            raise InvalidInput(f"{place}, which is malformed; expected {_FORMS}") from error
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise InvalidInput(f"{place}, expected {_FORMS}")
        followed = (_MASTER, _OTHERS, _NODES) if not is_path else ()
        known = (*_OF_ALL, *followed, *(_OF_TLS if parts.scheme == "rediss" else ()))
        if unknown := sorted(options.keys() - set(known)):
            raise InvalidInput(f"{place}: unknown option {', '.join(unknown)}; known are {', '.join(known)}")
        if password and "password_file" in options:
            raise InvalidInput(f"{place}: it has a password and a password_file; take one away")
        if _OTHERS in options and not options.get(_MASTER):
            raise InvalidInput(f"{place}: sentinels needs sentinel_master, the name of the master that they watch")
        if _NODES in options and (database or _MASTER in options):
            raise InvalidInput(f"{place}: a Redis Cluster has database 0 only, and no Sentinels")
        path = parts.path if is_path else ""
        found = cls(shown, parts.scheme == "rediss", host, port, path, database, user, password, options)
        try:
            found.places()
        except ValueError as error:
            raise InvalidInput(f"{place}: expected host:port,host:port in {_OTHERS} or {_NODES}") from error
        return found

    @property
    def mode(self) -> str:
        """What stands behind the URL: single, sentinel or cluster."""
        return "sentinel" if _MASTER in self.options else "cluster" if self.is_cluster else "single"

    @property
    def is_cluster(self) -> bool:
        return _NODES in self.options

    @property
    def fails_over(self) -> bool:
        """Whether `located` asks others where a connection has to go."""
        return self.mode != "single"

    def located(self, key: bytes = b"") -> Self:
        """With host and port of the Redis to connect to: the master that the Sentinels name, or in a cluster the master
        of the key. Blocks for as many seconds as there are Sentinels or nodes. Raises Unavailable: none of them
        answers, or none knows the master."""
        if self.mode == "sentinel":
            name = self.options[_MASTER]
            return self._answered_by(
                self.places(), "Sentinel", f"the master {name}",
                lambda sentinel: sentinel.sentinel_get_master_addr_by_name(name), has_login=False,
            )  # fmt: skip
        if self.is_cluster:
            # Any node knows: those that ask at the same time, after a failover, do not all ask the same.
            places = self.places()
            random.shuffle(places)
            return self._answered_by(
                places, "node", f"the master of {key.decode()}", lambda node: _master_of(key, node)
            )
        return self

    def places(self) -> list[tuple[str, int]]:
        """Host and port of each Sentinel or node that the URL names."""
        others = self.options.get(_NODES if self.is_cluster else _OTHERS, "")
        default = _PORT if self.is_cluster else _SENTINEL_PORT
        return [(self.host, self.port), *(_host_and_port(place, default) for place in others.split(",") if place)]

    def _answered_by(
        self, places: Iterable[tuple[str, int]], kind: str, subject: str,
        question: "Callable[[Redis], Any]", *, has_login: bool = True,
    ) -> Self:  # fmt: skip
        # Here, because it takes a tenth of a second, and serving asks Redis without it.
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        tls: dict[str, Any] = {key: self.options[key] for key in _OF_TLS if key in self.options}
        login, faults = self.login() if has_login else (), []
        for host, port in places:
            try:
                with redis.Redis(
                    host=host, port=port, username=login[0] if len(login) > 1 else None,
                    password=login[-1] if login else None, socket_timeout=_LOOK_SECONDS,
                    socket_connect_timeout=_LOOK_SECONDS, retry=Retry(NoBackoff(), 0), decode_responses=True,
                    ssl=self.is_tls, **tls,
                ) as client:  # fmt: skip
                    found = question(client)
            except (redis.RedisError, OSError) as error:
                faults.append(f"{host}:{port}: {error}")
                continue
            if found:
                # A node that does not know its own address gives none.
                return replace(self, host=str(found[0] or host), port=int(found[1]))
            faults.append(f"{host}:{port} knows no {subject.removeprefix('the ')}")
        raise Unavailable(f"no {kind} names {subject} ({'; '.join(faults)})")

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


def _host_and_port(place: str, default: int) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    return (host, int(port)) if host else (place, default)


def _master_of(key: bytes, node: "Redis") -> Any:
    """(host, port), by the slots of the cluster as the node knows them; None: the slot has no master."""
    from redis.crc import key_slot

    slot, slots = key_slot(key), node.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
    for first, last, (host, port, *_), *_ in slots:
        if first <= slot <= last:
            return host, port
    return None
