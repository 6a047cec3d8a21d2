"""Where Redis keeps asynchronous predictions, and the connection over which a front calls it: off the path of those
that wait for their answers."""

import asyncio
import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from common.errors import Unavailable
from common.redis_url import RedisUrl
from services.serving.queue.redis_connection import Argument, RedisConnection, Reply, connect
from services.serving.queue.scripts import Script
from services.serving.wire.codes import Code
from services.serving.wire.keys import tagged
from services.serving.wire.prediction import RequestFailed

if TYPE_CHECKING:
    from redis.asyncio.cluster import RedisCluster

_ANSWER_SECONDS = 5.0
_CONNECTIONS = 64
"""To each node of a cluster; with more commands under way at a time some fail."""
_ID_BYTES = 16


@dataclass(frozen=True)
class Places:
    """The keys of the predictions of a model in a cluster, of all models elsewhere (async_scripts.py).

    Attributes:
        model: its name in the keys; "": all.
    """

    model: str = ""

    @classmethod
    def of(cls, prediction_id: str) -> "Places | None":
        """None: no such id is ever given."""
        _, dot, name = prediction_id.partition(".")
        try:
            return cls(base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode() if dot else "")
        except ValueError:
            return None

    def new_id(self) -> str:
        """Random; in a cluster with the model in it, so that any front finds it."""
        name = base64.urlsafe_b64encode(self.model.encode()).decode().rstrip("=")
        return secrets.token_hex(_ID_BYTES) + (f".{name}" if name else "")

    @property
    def prefix(self) -> str:
        """Before the id of a prediction."""
        return f"headrace:prediction:{tagged(self.model)}"

    @property
    def index(self) -> str:
        return self.of_all("").removesuffix(":")

    def of_all(self, name: str) -> str:
        """The other keys."""
        return f"headrace:predictions:{tagged(self.model)}{name}"


class AsyncRedis:
    """Runs in one event loop. Connects when it is first needed: to the only Redis, or, by redis-py, to a cluster's
    masters. Every method raises RequestFailed, UNAVAILABLE, when its Redis is away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_cluster = RedisUrl.parse(url).is_cluster
        self._connecting = asyncio.Lock()
        self._connection: RedisConnection | None = None
        self._cluster: RedisCluster | None = None

    async def run(self, script: Script, keys: Sequence[Argument], arguments: Sequence[Argument]) -> Reply:
        return await self.execute("EVAL", script.text, len(keys), *keys, *arguments)

    async def execute(self, command: str, *arguments: Argument) -> Reply:
        try:
            if self.is_cluster:
                return await self._execute_in_cluster(command, *arguments)
            connection = await self._connected()
            return await connection.execute(command, *arguments, timeout_seconds=_ANSWER_SECONDS)
        except Unavailable as error:
            raise RequestFailed(
                Code.UNAVAILABLE,
                f"asynchronous predictions need Redis, which is away; try again ({error.message[:200]})",
            ) from error

    async def _execute_in_cluster(self, command: str, *arguments: Argument) -> Reply:
        # Here, because it takes a tenth of a second, and a single Redis works without it.
        from redis.exceptions import RedisError

        from common.redis_cluster import cluster_of

        if self._cluster is None:
            url = RedisUrl.parse(self._url)
            self._cluster = cluster_of(url, timeout_seconds=_ANSWER_SECONDS, connections=_CONNECTIONS)
        try:
            return cast(Reply, await self._cluster.execute_command(command, *arguments))
        except (RedisError, OSError) as error:
            raise Unavailable(str(error)) from error

    async def _connected(self) -> RedisConnection:
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = await connect(self._url, self._on_lost)
            return self._connection

    def _on_lost(self) -> None:
        self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._cluster is not None:
            await self._cluster.aclose()
