"""One HTTP door: what all of its clients may hold together, whose names it answers to, who gives way when it is full.

Memory is counted as bytes arrive, not as they are announced. Where room runs out, the connection that has been silent
longest gives way, so that silent connections cannot keep others out.

Refused are Host names that are not the door's (a page whose name comes to resolve to this address could read and
write), and methods that change something in the name of a page that is not the door's own (a page could post).
"""

import asyncio
import ipaddress
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

import orjson
import prometheus_client

from common.access.shares import Shares
from common.errors import InvalidInput, Overloaded
from common.loopback import is_loopback

REFUSED = prometheus_client.Counter(
    "http_refused", "Requests and connections that were refused before any route saw them.", ["status"]
)
ANY_HOST = "*"
_FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})
"""Another port of this machine is the same site."""
_MAX_KNOWN_HOSTS = 256
_BEGUN_PER_TURN = 32
"""Of all connections' pipelined requests; the event loop accepts and reads between two turns."""
_FORBIDDEN, REQUEST_TIMEOUT, _MISDIRECTED, _TOO_MANY = 403, 408, 421, 429


class RefusedByDoor(Exception):
    """Raised in a parser's callback: the connection is answered with this and closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def door_error_body(status: int, message: str) -> bytes:
    """In the form of the six errors."""
    kind = "Overloaded" if status == _TOO_MANY else "InvalidInput"
    return orjson.dumps({"error": {"kind": kind, "message": message}})


@dataclass(frozen=True)
class HttpTimes:
    """Seconds. A client that takes longer is answered 408 or dropped.

    Attributes:
        head: from the first byte of a head, or from the connection, to the head's end.
        silence: the longest pause within a body.
        body: for a body as a whole, and more by its length: a second for every 16 KiB.
        unread: how long an answer may be left unread.
        dropped_after: the silence after which a connection is dropped when another needs its room.
        linger: how long after a refusal further bytes are thrown away; closed at once, the client might not read
            the answer.
        look: how often the door looks at the time.
    """

    head: float = 15.0
    silence: float = 15.0
    body: float = 30.0
    unread: float = 60.0
    dropped_after: float = 1.0
    linger: float = 1.0
    look: float = 1.0


@dataclass(frozen=True)
class HttpBounds:
    """What one door allows.

    Attributes:
        max_bodies_bytes: of all requests that are arriving or not answered yet; half of it for one client's address.
        max_connections: at once; half of it for one client's address, unless that is this machine.
        of_principal: of them, for one principal; in any case at most eight times those that are left.
        is_loopback: only this machine can connect.
        own_names: what Host may say besides localhost and addresses, in lower case, without a port.
        allowed_hosts: further names in Host, and names of pages that may change something; ANY_HOST leaves Host unread.
        allowed_hosts_setting: its name in messages.
        any_origin: pages of any origin may post.
    """

    max_bodies_bytes: int = 256 * 1024 * 1024
    max_connections: int = 4096
    of_principal: int = 1024
    of_principal_setting: str = "MAX_CONNECTIONS_PER_PRINCIPAL"
    is_loopback: bool = False
    own_names: frozenset[str] = frozenset()
    allowed_hosts: frozenset[str] = frozenset()
    allowed_hosts_setting: str = "ALLOWED_HOSTS"
    any_origin: bool = False
    times: HttpTimes = HttpTimes()
    error_body: Callable[[int, str], bytes] = door_error_body


def is_near(sock: socket.socket) -> bool:
    """Whether the socket listens where only this machine can connect."""
    return is_loopback(sock.getsockname()[0])


def host_names(text: str) -> frozenset[str]:
    """The names of a setting, separated by commas or spaces. Raises InvalidInput: one is no name: it has a port, a
    scheme or a path."""
    names = frozenset(text.replace(",", " ").lower().split())
    for name in names - {ANY_HOST}:
        if _name_of(name.encode()) != name:
            raise InvalidInput(f"allowed hosts: {name!r} is no name of a host; expected names without scheme and port")
    return names


@dataclass
class _Client:
    """What one address holds."""

    connections: int = 0
    held_bytes: int = 0


class Connection(Protocol):
    """What a door asks of a connection."""

    address: str
    owner: str
    """The principal of the last request; "" before the first request."""
    loop: asyncio.AbstractEventLoop
    held_bytes: int
    """Of bodies; kept by the door."""
    heard_at: float

    def drop(self) -> None: ...
    def waits_since(self) -> tuple[int | None, float]: ...
    def is_silent_in_body(self) -> bool: ...
    def look_at_time(self) -> None: ...
    def refuse(self, status: int, message: str) -> None: ...
    def begin_next(self) -> None: ...


@dataclass(eq=False)
class Door:
    """All connections of one door. Belongs to one event loop."""

    bounds: HttpBounds
    connections: dict["Connection", None] = field(default_factory=dict)
    """In the order in which they came: the loop's clock may give several the same time."""
    held_bytes: int = 0
    hosts: set[bytes] = field(default_factory=set)
    """Values of Host that were found to be ours."""
    _clients: dict[str, _Client] = field(default_factory=dict)
    _shares: Shares = field(init=False)
    _sweeper: asyncio.TimerHandle | None = None
    _in_turn: deque["Connection"] = field(default_factory=deque)
    _is_turning: bool = False

    def __post_init__(self) -> None:
        bounds = self.bounds
        self._shares = Shares(
            "connection", limit=bounds.max_connections, most=bounds.of_principal, setting=bounds.of_principal_setting
        )

    def admit(self, connection: "Connection") -> bool:
        """Takes a new connection; when there are too many, the connection that waits longest for its client goes."""
        client = self._clients.setdefault(connection.address, _Client())
        bounds = self.bounds
        limit = bounds.max_connections
        of_address = connection.address if not bounds.is_loopback and client.connections >= limit // 2 else ""
        is_full = of_address or len(self.connections) >= limit
        if is_full and not self._make_room(lambda other: not of_address or other.address == of_address):
            REFUSED.labels("connections").inc()
            if not client.connections:
                del self._clients[connection.address]
            return False
        client.connections += 1
        self.connections[connection] = None
        if self._sweeper is None:
            self._sweeper = connection.loop.call_later(self.bounds.times.look, self._sweep, connection.loop)
        return True

    def leave(self, connection: "Connection") -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._disown(connection)
        self.release(connection)
        client = self._clients[connection.address]
        client.connections -= 1
        if not client.connections:
            del self._clients[connection.address]

    def own(self, connection: "Connection", principal: str) -> None:
        """Counts the connection as the principal's, of whose idle connections one gives way where it has its share.
        Raises Overloaded: all of them are at work."""
        if connection.owner == principal or connection not in self.connections:
            return
        self._disown(connection)
        try:
            self._shares.take(principal, taken=len(self.connections))
        except Overloaded:
            if not self._make_room(lambda other: other.owner == principal):
                raise
            self._shares.take(principal, taken=len(self.connections))
        connection.owner = principal

    def _disown(self, connection: "Connection") -> None:
        if connection.owner:
            self._shares.give(connection.owner)
            connection.owner = ""

    def hold(self, connection: "Connection", size: int) -> None:
        """Counts bytes of a body that have arrived. Raises RefusedByDoor when there is no room for them."""
        client = self._clients[connection.address]
        connection.held_bytes += size
        client.held_bytes += size
        self.held_bytes += size
        limit = self.bounds.max_bodies_bytes
        client_limit = limit if self.bounds.is_loopback else limit // 2
        while self.held_bytes > limit or client.held_bytes > client_limit:
            of_address = connection.address if client.held_bytes > client_limit else ""
            if not self._drop_silent_body(of_address, but=connection):
                raise RefusedByDoor(_TOO_MANY, "the bodies of all requests together take too much memory; try again")

    def release(self, connection: "Connection") -> None:
        if connection.held_bytes:
            self.held_bytes -= connection.held_bytes
            self._clients[connection.address].held_bytes -= connection.held_bytes
            connection.held_bytes = 0

    def begin_in_turn(self, connection: "Connection") -> None:
        """Begins the connection's next request when those that wait longer have begun: a crowd that sends many at once
        would otherwise make every turn of the loop as long as itself, and new connections wait for several turns."""
        self._in_turn.append(connection)
        if not self._is_turning:
            self._is_turning = True
            connection.loop.call_soon(self._begin_some, connection.loop)

    def _begin_some(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            for _ in range(min(len(self._in_turn), _BEGUN_PER_TURN)):
                self._in_turn.popleft().begin_next()
        finally:
            self._is_turning = bool(self._in_turn)
            if self._is_turning:
                loop.call_soon(self._begin_some, loop)

    def check_host(self, value: bytes) -> None:
        """Raises RefusedByDoor for a name that is not ours."""
        if not self._is_ours(_name_of(value)):
            shown, setting = value[:100].decode(errors="replace"), self.bounds.allowed_hosts_setting
            raise RefusedByDoor(_MISDIRECTED, f"Host {shown!r} is no name of this door; {setting} names further hosts")
        if len(self.hosts) < _MAX_KNOWN_HOSTS:
            self.hosts.add(value)

    def check_page(self, origin: bytes, site: bytes, host: bytes) -> None:
        """Raises RefusedByDoor for a page that is not this door's own.

        Args:
            origin: what Origin says, `null` included; empty without it.
            site: what Sec-Fetch-Site says of the page, where a browser says so; a name in `allowed_hosts` outweighs it.
        """
        scheme, _, rest = origin.partition(b"://")
        is_own = not origin or (scheme in (b"http", b"https") and rest == host)
        if self.bounds.any_origin or (is_own and site not in _FOREIGN_SITES):
            return
        if rest and _name_of(rest) in self.bounds.allowed_hosts:
            return
        page = origin[:100].decode(errors="replace") or f"another site ({site.decode()})"
        setting = self.bounds.allowed_hosts_setting
        raise RefusedByDoor(
            _FORBIDDEN, f"a page of {page!r} may not change anything here; {setting} names pages that may"
        )

    def _is_ours(self, name: str) -> bool:
        bounds = self.bounds
        if name == "localhost" or name.endswith(".localhost") or name in bounds.own_names | bounds.allowed_hosts:
            return True
        if ANY_HOST in bounds.allowed_hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # Only its owner can make an address mean another machine.

    def _make_room(self, among: Callable[["Connection"], bool]) -> bool:
        waiting = [
            (rank, since, number, connection)
            for number, connection in enumerate(self.connections)
            if among(connection)
            for rank, since in (connection.waits_since(),)
            if rank is not None
        ]
        if not waiting:
            return False
        min(waiting)[-1].drop()
        return True

    def _drop_silent_body(self, of_address: str, *, but: "Connection") -> bool:
        silent = [
            (connection.heard_at, number, connection)
            for number, connection in enumerate(self.connections)
            if connection.held_bytes and connection.is_silent_in_body() and connection is not but
            if not of_address or connection.address == of_address
        ]
        if not silent:
            return False
        slowest = min(silent)[-1]
        self.release(slowest)
        slowest.refuse(REQUEST_TIMEOUT, "the body came too slowly while others waited for its room")
        return True

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeper = None
        for connection in list(self.connections):
            connection.look_at_time()
        if self.connections:
            self._sweeper = loop.call_later(self.bounds.times.look, self._sweep, loop)


def _name_of(authority: bytes) -> str:
    """The name or address in `name:port`, in lower case; "" when there is none."""
    try:
        name = urlsplit(f"//{authority.decode('ascii')}").hostname or ""
    except (UnicodeDecodeError, ValueError):
        return ""
    return name.rstrip(".")
