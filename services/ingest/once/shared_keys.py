"""The window of idempotency keys that the replicas of ingest share, in Redis.

Before a replica looks into the log for a request with a key, it claims the key; so of two replicas that are given the
same request at the same time one appends, and the other waits for its answer and gives the same. The log
stays the truth: every record names its requests (RequestMark), and the holder of a claim first reads what the log has
gained since. Redis only keeps two replicas from looking and appending at the same time.

    {ingest}:key:<stream>:<key digest>   hash: state claimed|done, body (digest), holder, incarnation, answer (JSON)
    {ingest}:done                        sorted set of the keys that are done, by microseconds: bounds their number
    {ingest}:holder:<holder>             the incarnation of that replica that runs; earlier incarnations are dead

A claim ends with its answer, when its holder gives it up, or by time. Where the holder was killed and its successor
(the same host and port) has announced itself, the claim counts as ended at once. A holder whose append is under way
renews its claim until the outcome is known. Without Redis no replica can claim, and requests with a key are refused
(503): that no event is taken twice goes before that it is taken now.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, cast

import orjson
import redis.asyncio as redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from common.errors import Conflict, Unavailable
from common.process.retry import Backoff, Pauses
from common.redis_cluster import cluster_of, login_of
from common.redis_url import RedisUrl
from services.ingest import metrics
from services.ingest.once.keys import KEPT_REFUSALS, Answer, Refusal, RequestKey

logger = logging.getLogger(__name__)
_TIMEOUT_SECONDS = 2.0
_CONNECTIONS = 16
_CLUSTER_CONNECTIONS = 1_000
"""There a request that finds none free does not wait for it."""
_BACKOFF = Backoff(first_seconds=0.01, longest_seconds=0.2)
_PREFIX = "{ingest}"

_CLAIM = """
local e = redis.call('HMGET', KEYS[1], 'state', 'body', 'holder', 'incarnation', 'answer')
if e[1] then
  if e[2] ~= ARGV[1] then return {'conflict', ''} end
  if e[1] == 'done' then return {'done', e[5]} end
  local own = e[3] == ARGV[2] and e[4] == ARGV[3]
  local runs = redis.call('GET', ARGV[5] .. e[3])
  local ended = runs and tonumber(e[4]) < tonumber(runs)
  if not own and not ended then return {'held', e[3]} end
end
redis.call('HSET', KEYS[1], 'state', 'claimed', 'body', ARGV[1], 'holder', ARGV[2], 'incarnation', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {'claimed', ''}
"""
_IF_OWN = """
local e = redis.call('HMGET', KEYS[1], 'state', 'holder', 'incarnation')
if e[1] ~= 'claimed' or e[2] ~= ARGV[1] or e[3] ~= ARGV[2] then return 0 end
"""
_RENEW = _IF_OWN + "return redis.call('PEXPIRE', KEYS[1], ARGV[3])"
_RELEASE = _IF_OWN + "return redis.call('DEL', KEYS[1])"
_KEEP = (
    _IF_OWN
    + """
redis.call('HSET', KEYS[1], 'state', 'done', 'answer', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
local now = redis.call('TIME')
local at = now[1] * 1000000 + now[2]
redis.call('ZADD', KEYS[2], at, KEYS[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', at - ARGV[4] * 1000)
local excess = redis.call('ZCARD', KEYS[2]) - ARGV[5]
if excess > 0 then
  local oldest = redis.call('ZRANGE', KEYS[2], 0, excess - 1)
  for _, key in ipairs(oldest) do redis.call('DEL', key) end
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, excess - 1)
end
return 1
"""
)


@dataclass(frozen=True)
class SharedWindow:
    """How long and how many.

    Attributes:
        window_seconds, window_count: for which answers are known, until the first of both ends.
        claim_seconds: after which a claim ends whose holder says nothing any more.
        wait_seconds: for which a request waits for the answer of the replica that has claimed its key.
    """

    window_seconds: float
    window_count: int
    claim_seconds: float
    wait_seconds: float


def _client(url: RedisUrl) -> "redis.Redis | RedisCluster":
    if url.is_cluster:
        return cluster_of(url, timeout_seconds=_TIMEOUT_SECONDS, connections=_CLUSTER_CONNECTIONS)
    pool = redis.BlockingConnectionPool(
        **_connecting(url),
        max_connections=_CONNECTIONS,
        timeout=_TIMEOUT_SECONDS,
        socket_timeout=_TIMEOUT_SECONDS,
        socket_connect_timeout=_TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    return redis.Redis(connection_pool=pool)


def _connecting(url: RedisUrl) -> dict[str, Any]:
    """The arguments of redis-py's pool."""
    options: dict[str, Any] = {"db": url.database, "credential_provider": login_of(url)}
    if url.path:
        return options | {"connection_class": redis.UnixDomainSocketConnection, "path": url.path}
    options |= {"host": url.host, "port": url.port}
    if url.is_tls:
        options |= {name: path for name, path in url.options.items() if name.startswith("ssl_")}
    connection = redis.SSLConnection if url.is_tls else redis.Connection
    return options | {"connection_class": _to_the_master(connection, url) if url.fails_over else connection}


def _to_the_master(connection: type[redis.Connection], url: RedisUrl) -> type[redis.Connection]:
    """Each connection goes to the Redis that the Sentinels call the master then."""

    class ToTheMaster(connection):  # type: ignore[misc, valid-type]  # a class that is a value
        async def connect(self) -> None:
            try:
                found = await asyncio.to_thread(url.located)
            except Unavailable as error:
                raise redis.ConnectionError(error.message) from error
            self.host, self.port = found.host, found.port
            await super().connect()

    return ToTheMaster


class SharedKeys:
    """Belongs to one event loop.

    Args:
        holder: this replica's name, the same after a restart and unique.
        incarnation: this process's, a number that grows from start to start.
    """

    def __init__(self, url: str, window: SharedWindow, *, holder: str, incarnation: int) -> None:
        """Does not connect. Raises InvalidInput when the URL is none of Redis."""
        self.window = window
        self._redis = _client(RedisUrl.parse(url))
        self._holder, self._incarnation = holder, incarnation
        self._is_away = False

    async def claim(self, stream: str, request: RequestKey) -> Answer | None:
        """None when the caller now holds the key and must keep or release it; else the answer that was given.

        Raises:
            Conflict: the key was used with another body.
            Unavailable: Redis does not answer, or the replica that has the key did not come to an end in time.
        """
        deadline = time.monotonic() + self.window.wait_seconds
        pauses = Pauses(_BACKOFF)
        arguments = (request.body_digest.hex(), *self._own(), _ms(self.window.claim_seconds), f"{_PREFIX}:holder:")
        waited = False
        while True:
            outcome, detail = await self._run(_CLAIM, [_name(stream, request)], *arguments)
            if outcome == b"claimed":
                metrics.KEYS.labels("claimed").inc()
                return None
            if outcome == b"conflict":
                metrics.KEYS.labels("conflict").inc()
                raise Conflict("the idempotency key was used before with another body; use a new key for a new request")
            if outcome == b"done":
                metrics.KEYS.labels("waited" if waited else "answered").inc()
                return _answer_of(detail)
            pause_seconds = pauses.next_seconds()
            if time.monotonic() + pause_seconds > deadline:
                metrics.KEYS.labels("given_up").inc()
                raise Unavailable(
                    f"replica {detail.decode()} has the same idempotency key and is not done after "
                    f"{self.window.wait_seconds:g} s; try again"
                )
            await asyncio.sleep(pause_seconds)
            waited = True

    async def keep(self, stream: str, request: RequestKey, answer: Answer) -> None:
        """Ends the claim with the answer; one with very many refusals is not kept, the log tells it again."""
        if len(answer.refused) > KEPT_REFUSALS:
            await self.release(stream, request)
            return
        names = [_name(stream, request), f"{_PREFIX}:done"]
        window = (_ms(self.window.window_seconds), self.window.window_count)
        await self._try(_KEEP, names, *self._own(), orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS), *window)

    async def release(self, stream: str, request: RequestKey) -> None:
        """Ends the claim without an answer: the next request with the key looks into the log."""
        await self._try(_RELEASE, [_name(stream, request)], *self._own())

    async def renew(self, stream: str, request: RequestKey) -> None:
        await self._try(_RENEW, [_name(stream, request)], *self._own(), _ms(self.window.claim_seconds))

    async def announce(self) -> None:
        """Ends the claims of this replica's earlier incarnations. Raises Unavailable.

        To be called when nothing that they had sent can still be on its way to the log.
        """
        try:
            name, seconds = f"{_PREFIX}:holder:{self._holder}", 2 * self.window.claim_seconds
            await self._redis.set(name, self._incarnation, px=_ms(seconds))
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis does not answer: {error}") from error

    async def close(self) -> None:
        await self._redis.aclose()

    def _own(self) -> tuple[str, int]:
        return self._holder, self._incarnation

    async def _try(self, script: str, names: list[str], *arguments: str | int | bytes) -> None:
        """A failure here costs the next request with that key a wait, until the claim ends by time."""
        try:
            await self._run(script, names, *arguments)
        except Unavailable:
            metrics.KEYS.labels("not_noted").inc()

    async def _run(self, script: str, names: list[str], *arguments: str | int | bytes) -> Any:
        try:
            found = await cast(Any, self._redis.eval(script, len(names), *names, *arguments))
        except (RedisError, OSError, TimeoutError) as error:
            if not self._is_away:
                self._is_away = True
                logger.warning(
                    "requests with an idempotency key are refused: Redis is away", extra={"reason": str(error)}
                )
            metrics.KEYS.labels("unavailable").inc()
            raise Unavailable(
                f"requests with an idempotency key cannot be taken, as Redis does not answer: {error}"
            ) from error
        if self._is_away:
            self._is_away = False
            logger.info("Redis answers again; requests with an idempotency key are taken")
        return found


def _name(stream: str, request: RequestKey) -> str:
    return f"{_PREFIX}:key:{stream}:{request.key_digest.hex()}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _answer_of(text: bytes) -> Answer:
    fields = orjson.loads(text)
    return Answer(
        accepted=fields["accepted"],
        refused=tuple(Refusal(**item) for item in fields["refused"]),
        position={int(partition): offset for partition, offset in fields["position"].items()},
        duplicate=True,
    )
