"""A catalog in PostgreSQL: one registry of several leads, another takes over, a superseded one writes nothing.

The other tests of the catalog run on it by `make test-postgres`.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from common.errors import InvalidInput, Unavailable
from common.registry.client import RegistryClient
from services.registry.backup import main as back_up
from services.registry.store.postgres import lead, open_engine, url_of
from services.registry.tests.building import Clock, leadership_of, new_catalog
from services.registry.tests.over_the_wire import next_plan, publish, register_all, write_version
from testing.postgres_server import PostgresServer
from testing.registry_server import RegistryServer
from testing.rows import each_row
from testing.s3_server import s3_bucket
from testing.waiting import wait_until

pytestmark = pytest.mark.needs("initdb", "postgres")


@pytest.fixture
def two(postgres: PostgresServer, tmp_path: Path) -> Iterator[tuple[RegistryServer, RegistryServer]]:
    """Two registries of one database and one bucket; the first leads, the second is not started yet."""
    with s3_bucket() as bucket:
        settings = {
            "REGISTRY_DATABASE": postgres.url(postgres.new_database()),
            "REGISTRY_DATABASE_PASSWORD_FILE": str(postgres.password_file),
            "REGISTRY_BLOBS": f"{bucket}/files",
        }
        servers = (RegistryServer(tmp_path / "one", settings), RegistryServer(tmp_path / "two", settings))
        servers[0].start()
        yield servers
        for server in servers:
            if server.process is not None:
                server.stop()


def _readiness(server: RegistryServer) -> tuple[int, dict[str, str]]:
    """(status, conditions); 0 while nothing answers."""
    try:
        with urllib.request.urlopen(f"{server.url}/readyz", timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, {}


def test_a_registry_that_stands_by_takes_over_with_all_that_was_acknowledged(
    two: tuple[RegistryServer, RegistryServer], tmp_path: Path
) -> None:
    first, second = two
    client = RegistryClient(first.address)
    register_all(client)
    published = publish(client, tmp_path / "work")
    client.plan_round(next_plan(client))
    held = client.lease_round("trainer", ttl_seconds=600.0)
    assert held is not None

    second.begin()
    wait_until(lambda: "standby" in json.dumps(_readiness(second)[1]), "the second stands by")
    assert _readiness(second)[0] == 503
    with closing(HTTPConnection("127.0.0.1", second.http_port, timeout=30)) as connection:
        connection.request("GET", "/v1/models/m")
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["error"]["kind"]) == (503, "Unavailable")
        assert answer.will_close, "or its client would never come to the one that leads"
    first.kill()
    client.close()
    wait_until(lambda: _readiness(second)[0] == 200, "the second leads")

    with closing(RegistryClient(second.address)) as client:
        assert client.get_version("m", 1) == published
        client.download(published.files, tmp_path / "got")  # verifies each digest
        draft = write_version(tmp_path / "next", b"next")
        client.upload(tmp_path / "next", draft.files)
        assert client.register_version(held, draft).version == 2, "the lease of before still counts"
    first.begin()
    wait_until(lambda: "standby" in json.dumps(_readiness(first)[1]), "the first stands by now")


def test_a_leader_whose_connection_ends_steps_down_and_stands_by_as_the_same_process(
    two: tuple[RegistryServer, RegistryServer], postgres: PostgresServer
) -> None:
    leader, second = two
    second.begin()
    wait_until(lambda: "standby" in json.dumps(_readiness(second)[1]), "the second stands by")
    database = leader.settings["REGISTRY_DATABASE"].rpartition("/")[2]
    with postgres.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])
    wait_until(lambda: _readiness(second)[0] == 200, "the second leads")
    wait_until(lambda: "standby" in json.dumps(_readiness(leader)[1]), "the first stands by")
    assert leader.process is not None
    assert leader.process.poll() is None
    second.kill()
    wait_until(lambda: _readiness(leader)[0] == 200, "the first leads again")


def test_a_superseded_registry_writes_nothing(postgres: PostgresServer, tmp_path: Path, clock: Clock) -> None:
    database = postgres.new_database()
    before = leadership_of(postgres, database)
    catalog = new_catalog(tmp_path / "before", clock, leadership=before)
    with postgres.connect() as connection:  # what a lost machine's connection comes to
        lock = "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE "
        connection.execute((lock + "locktype = 'advisory' AND d.datname = %s").encode(), [database])
    after = leadership_of(postgres, database)
    assert after.owner == before.owner
    with pytest.raises(Unavailable, match="another registry leads"):
        catalog.change_model("m", "pause", by="ann", reason="")
    assert before.lost.is_set()
    assert catalog.get_model("m").paused == ""
    for leadership in (after, before):
        leadership.close()


def test_while_one_leads_another_waits_and_says_so(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    leading = leadership_of(postgres, database)
    told: list[str] = []
    engine = open_engine(url_of(postgres.url(database), postgres.password_file))
    with pytest.raises(Unavailable, match="stopped"):
        lead(engine, "other", is_stopped=lambda _: len(told) == 2, say=told.append)
    assert told == ["standby: another registry leads"] * 2
    assert leading.place_of("ci") is None
    leading.keep_place("ci", 5)
    leading.keep_place("ci", 7)
    leading.close()
    again = lead(engine, "other", is_stopped=lambda _: False, say=told.append)
    assert (again.owner, again.secret, again.place_of("ci")) == (leading.owner, leading.secret, 7)
    with pytest.raises(Unavailable, match="another registry leads"):
        leading.keep_place("ci", 9)
    again.close()


@each_row(
    ("address", "named"),
    [
        ("postgresql://me:secret@host/db", "REGISTRY_DATABASE_PASSWORD_FILE"),
        ("mysql://me@host/db", "postgresql://user@host:port/database"),
        ("postgresql://me@host", "postgresql://user@host:port/database"),
        ("host", "no URL"),
    ],
)
def test_another_address_is_refused_and_no_password_is_shown(address: str, named: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        url_of(address, None)
    assert named in refused.value.message
    assert "secret" not in refused.value.message


def test_a_catalog_moves_from_a_file_into_postgres_and_back(
    two: tuple[RegistryServer, RegistryServer], postgres: PostgresServer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    alone = RegistryServer(tmp_path / "alone")
    alone.start()
    with closing(RegistryClient(alone.address)) as client:
        register_all(client)
        published = [publish(client, tmp_path / "work") for _ in range(2)]
    alone.stop()
    two[0].stop()
    changed = {
        "REGISTRY_DATABASE": postgres.url(postgres.new_database()),
        "REGISTRY_BLOBS": f"{two[0].settings['REGISTRY_BLOBS']}-moved",
    }
    settings = {**two[0].settings, **changed}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert back_up([str(alone.data_dir), "--into-database"]) == 0
    assert back_up([str(alone.data_dir), "--into-database"]) == 1, "it is not empty any more"

    moved = RegistryServer(tmp_path / "moved", settings)
    moved.start()
    with closing(RegistryClient(moved.address)) as client:
        assert [client.get_version("m", number) for number in (1, 2)] == published
        third = publish(client, tmp_path / "work")
        assert third.version == 3
        assert back_up([str(moved.data_dir), str(tmp_path / "copy")]) == 0
    moved.stop()
    assert back_up([str(tmp_path / "copy"), "--verify"]) == 0
    for name in settings:
        monkeypatch.delenv(name)
    restored = RegistryServer(tmp_path / "copy")
    restored.start()
    with closing(RegistryClient(restored.address)) as client:
        assert client.get_version("m", 3) == third
        assert publish(client, tmp_path / "work").version == 4
    restored.stop()
