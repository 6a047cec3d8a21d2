"""Redis over TLS, with a user whose password is in a file: both connections of serving."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import InvalidInput, Unavailable
from common.redis_url import RedisUrl
from services.serving.queue.blocking_redis import BlockingRedis
from services.serving.queue.redis_connection import connect, pack
from testing.rows import each_row
from testing.secure_redis import PASSWORD, secure_redis


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure_redis")


@pytest.fixture(scope="module")
def place(directory: Path) -> Iterator[str]:
    with secure_redis(directory) as found:
        yield found


async def _exchanged(url: str) -> object:
    connection = await connect(url, lambda: None)
    try:
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        connection.send(pack("ECHO", "x" * 100_000), answered.set_result, now=True)
        assert await answered == b"x" * 100_000
        return await connection.execute("ACL", "WHOAMI")
    finally:
        connection.close()


def test_both_connections_log_in_over_tls(place: str, directory: Path) -> None:
    url = f"rediss://reader@{place}&password_file={directory / 'password'}"
    blocking = BlockingRedis(url)
    assert blocking.call("ACL", "WHOAMI") == b"reader"
    assert blocking.exchange([["ECHO", "y" * 300_000], ["PING"]]) == [b"y" * 300_000, b"PONG"]
    assert b"db=1" in bytes(str(blocking.call("CLIENT", "INFO")), "utf-8")
    assert asyncio.run(_exchanged(url)) == b"reader"


def test_a_new_password_counts_at_the_next_connection(place: str, directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("wrong")
    redis = BlockingRedis(f"rediss://reader@{place}&password_file={path}")
    with pytest.raises(Unavailable, match="WRONGPASS"):
        redis.call("PING")
    path.write_text((directory / "password").read_text())
    assert redis.call("PING") == b"PONG"
    path.unlink()
    redis.close()
    with pytest.raises(Unavailable, match="cannot be read"):
        redis.call("PING")


@pytest.mark.parametrize("kind", ["plain", "of the machine's authorities"])
def test_a_wire_that_cannot_be_trusted_is_not_used(place: str, kind: str) -> None:
    url = f"redis://reader@{place.partition('?')[0]}" if kind == "plain" else f"rediss://{place.partition('?')[0]}"
    with pytest.raises(Unavailable):
        BlockingRedis(url, timeout_seconds=2.0).call("PING")
    with pytest.raises(Unavailable):
        asyncio.run(_exchanged(url))


@each_row(
    "url",
    ["http://u:{}@h", "redis://u:{}@h:port", "redis://u:{}@h/db", "redis://u:{}@h?ssl_ca_certs=a",
     "rediss://u:{}@h?nonsense=1", "rediss://u:{}@h?password_file=a", "unix://u:{}@/path?db=x"],
)  # fmt: skip
def test_what_is_refused_quotes_no_password(url: str) -> None:
    with pytest.raises(InvalidInput, match="REDIS_URL") as refused:
        RedisUrl.parse(url.format("hidden"))
    assert "hidden" not in refused.value.message


def test_a_password_is_in_no_text_of_the_url() -> None:
    found = RedisUrl.parse(f"redis://reader:{PASSWORD.replace('/', '%2F')}@h:1/2")
    assert (found.login(), found.database, found.port) == (("reader", PASSWORD), 2, 1)
    assert PASSWORD not in repr(found)
    assert "s3cret" not in repr(found)
