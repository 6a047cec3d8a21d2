"""redis-py's client of a Redis Cluster: for what is not on the path of a prediction."""

from typing import Any

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from common.redis_url import RedisUrl


class Login(CredentialProvider):
    """Asked at each connection."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return self._url.login()  # type: ignore[return-value]  # one word or two


def login_of(url: RedisUrl) -> Login | None:
    return Login(url) if url.password or "password_file" in url.options else None


class _Cluster(RedisCluster):
    async def aclose(self) -> None:
        """The library's leaves connections open after a command that failed."""
        await super().aclose()
        await self.nodes_manager.aclose()


def cluster_of(url: RedisUrl, *, timeout_seconds: float, connections: int) -> RedisCluster:
    """Follows slots that move. A command whose connection broke is sent once more, done or not: each must bear it.

    Args:
        timeout_seconds: of each connection and answer.
        connections: at most, to each node; past it a command fails.
    """
    tls: dict[str, Any] = {name: path for name, path in url.options.items() if name.startswith("ssl_")}
    return _Cluster(
        startup_nodes=[ClusterNode(host, port) for host, port in url.places()],
        require_full_coverage=False,
        credential_provider=login_of(url),
        max_connections=connections,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=Retry(NoBackoff(), 1),
        ssl=url.is_tls,
        **tls,
    )
