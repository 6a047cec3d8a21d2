"""The registry as a process: killed, restarted, stopped, raced for, on a full disk."""

import hashlib
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from common.errors import InvalidInput, Unavailable
from common.process.rpc_client import open_channel
from common.registry.catalog import FileEntry
from common.registry.client import RegistryClient, manifest_of
from protos import registry_pb2 as pb
from protos import registry_pb2_grpc
from services.registry.tests.building import SCHEMA, next_plan, secret_of
from services.registry.tests.over_the_wire import publish, register_all, write_version
from testing.forked import ForkedProcess
from testing.registry_server import RegistryServer
from testing.rows import each_row
from testing.waiting import wait_until

Connect = Callable[[], RegistryClient]
MIB = 1024 * 1024


def _half_uploaded(registry: RegistryServer, content: bytes) -> tuple[threading.Thread, threading.Event]:
    """An upload that has sent half of the bytes and goes on only when the event is set."""
    digest = hashlib.sha256(content).hexdigest()
    go_on = threading.Event()

    def pieces() -> Iterator[pb.UploadFileRequest]:
        half = len(content) // 2
        yield pb.UploadFileRequest(digest=digest, size_bytes=len(content), data=content[:half])
        go_on.wait(timeout=60)
        yield pb.UploadFileRequest(data=content[half:])

    def upload() -> None:
        with open_channel(registry.address) as channel:
            try:
                registry_pb2_grpc.RegistryServiceStub(channel).UploadFile(pieces(), timeout=60)
            except grpc.RpcError:
                return

    thread = threading.Thread(target=upload)
    thread.start()
    part = registry.data_dir / "uploads" / f"{digest}.part"
    wait_until(lambda: part.exists() and part.stat().st_size == len(content) // 2, "half the upload")
    return thread, go_on


def test_killed_in_an_upload_it_shows_no_partial_version_and_the_upload_is_taken_up_again(
    registry: RegistryServer, connect: Connect, tmp_path: Path
) -> None:
    client = connect()
    register_all(client)
    client.plan_round(next_plan(client))
    lease = client.lease_round("trainer", ttl_seconds=600.0)
    assert lease is not None
    draft = write_version(tmp_path / "version", os.urandom(4 * MIB))
    large = next(file for file in draft.files if file.path == "checkpoint/state")
    thread, go_on = _half_uploaded(registry, (tmp_path / "version" / large.path).read_bytes())

    with pytest.raises(InvalidInput, match="has not been uploaded"):
        client.register_version(lease, draft)
    registry.kill()
    go_on.set()
    thread.join(timeout=60)
    registry.start()

    assert client.list_versions("m") == []
    assert client.get_model("m").aliases == {}
    with pytest.raises(InvalidInput, match="has not been uploaded"):
        client.register_version(lease, draft)
    others = sum(file.size_bytes for file in draft.files if file is not large)
    assert client.upload(tmp_path / "version", draft.files) == 2 * MIB + others, "only what was missing"
    version = client.register_version(lease, draft)
    assert client.download(version.files, tmp_path / "copy") == sum(file.size_bytes for file in draft.files)
    assert manifest_of(tmp_path / "copy") == version.files


def _entries(directory: Path) -> list[tuple[str, int, str]]:
    return [
        (path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(directory.glob("file-*"))
    ]


def test_a_restart_keeps_everything(registry: RegistryServer, connect: Connect, tmp_path: Path) -> None:
    client = connect()
    register_all(client)
    publish(client, tmp_path / "1")
    publish(client, tmp_path / "2")
    client.set_alias("m", "shadow", 1, by="ada", reason="compare")
    client.rollback("m", by="ada", reason="bad")
    client.plan_round(next_plan(client))
    held = client.lease_round("a", ttl_seconds=600.0, secret=secret_of("a"))
    assert held is not None
    held = client.renew_lease(held, ttl_seconds=600.0, progress={"examples": 7})
    client.put_resume_point(held, state={"step": 1}, files=client.get_version("m", 1).files)
    before = _everything(client)

    registry.kill()
    registry.start()

    assert _everything(client) == before
    client.renew_lease(held, ttl_seconds=600.0, progress={})
    assert client.lease_round("b", ttl_seconds=600.0) is None
    assert client.lease_round("a", ttl_seconds=600.0) is None, "without the secret"
    again = client.lease_round("a", ttl_seconds=600.0, secret=secret_of("a"))
    assert again is not None
    assert again.resume_point is not None
    assert again.token > held.token
    assert again.resume_point.state == {"step": 1}


def _everything(client: RegistryClient) -> tuple[object, ...]:
    versions = [client.get_version("m", version.version) for version in client.list_versions("m")]
    changes = []
    for change in client.watch():
        if change.kind == "heartbeat":
            break
        changes.append(change)
    digest = client.get_model("m").definition_digest
    return (
        client.list_streams(),
        client.list_models(),
        client.list_rounds("m"),
        versions,
        client.alias_history("m"),
        client.get_definition(digest),
        changes,
    )


def test_a_full_disk_is_reported_and_the_upload_goes_on_when_there_is_room(
    registry: RegistryServer, connect: Connect, tmp_path: Path
) -> None:
    (tmp_path / "file-0").write_bytes(os.urandom(3 * MIB))
    (file,) = (FileEntry(*entry) for entry in _entries(tmp_path))
    assert registry.process is not None
    resource.prlimit(registry.process.pid, resource.RLIMIT_FSIZE, (2 * MIB, resource.RLIM_INFINITY))
    client = RegistryClient(registry.address, timeout_seconds=3.0)
    with pytest.raises(Unavailable, match="cannot be stored: File too large"):
        client.upload(tmp_path, [file])
    client.close()
    assert list((registry.data_dir / "blobs").glob("??/*")) == []
    resource.prlimit(registry.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert 0 < connect().upload(tmp_path, [file]) < 3 * MIB


def test_a_change_that_finds_no_room_is_refused_and_leaves_no_trace(registry: RegistryServer, connect: Connect) -> None:
    setup = connect()
    register_all(setup)
    wal_bytes = (registry.data_dir / "catalog.sqlite-wal").stat().st_size
    assert registry.process is not None
    resource.prlimit(registry.process.pid, resource.RLIMIT_FSIZE, (wal_bytes, resource.RLIM_INFINITY))
    client = RegistryClient(registry.address, timeout_seconds=3.0)
    with pytest.raises(Unavailable, match="the catalog cannot be read or written"):
        client.register_stream("t", json.dumps(SCHEMA))
    client.close()
    assert [stream.name for stream in setup.list_streams()] == ["s"]
    resource.prlimit(registry.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    setup.register_stream("t", json.dumps(SCHEMA))
    registry.kill()
    registry.start()
    assert [stream.name for stream in setup.list_streams()] == ["s", "t"]
    assert [change.name for change, _ in zip(setup.watch(), range(3), strict=False)] == ["s", "m", "t"]


def test_it_stops_when_asked_to_though_watchers_are_connected(registry: RegistryServer, connect: Connect) -> None:
    watch = connect().watch()
    assert next(watch).kind == "heartbeat"
    assert registry.stop() == 0
    with pytest.raises(Unavailable):
        list(watch)


def test_all_its_threads_give_way_to_predictions_on_the_same_machine(
    registry: RegistryServer, connect: Connect
) -> None:
    register_all(connect())
    assert registry.process is not None
    threads = [int(task.name) for task in Path(f"/proc/{registry.process.pid}/task").iterdir()]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {min(own + 10, 19)}


def test_a_folder_has_one_registry_at_a_time(registry: RegistryServer) -> None:
    assert registry.data_dir.stat().st_mode & 0o777 == 0o700
    second = RegistryServer(registry.data_dir)
    assert _refused(second) == 1
    assert "another registry runs on" in _log(second)


@each_row(
    ("name", "value", "match"),
    [
        ("REGISTRY_DATADIR", "/tmp", "unknown setting REGISTRY_DATADIR"),
        ("REGISTRY_DATA_DIR", "/proc/nowhere", "data folder /proc/nowhere cannot be used"),
    ],
)
def test_a_setting_that_cannot_be_meant_stops_the_start(tmp_path: Path, name: str, value: str, match: str) -> None:
    server = RegistryServer(tmp_path, {name: value})
    assert _refused(server) == (1 if name == "REGISTRY_DATA_DIR" else 2)
    assert match in _log(server)


@each_row("content", [b"this is no database, and long enough to be told from one" * 100, None])
def test_a_catalog_that_cannot_be_read_stops_the_start(tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        (tmp_path / "catalog.sqlite").mkdir()
    else:
        (tmp_path / "catalog.sqlite").write_bytes(content)
    server = RegistryServer(tmp_path)
    assert _refused(server) == 1
    assert "cannot run: the catalog" in _log(server)
    assert "Traceback" not in _log(server)


def _refused(server: RegistryServer) -> int:
    """The status with which its start ends."""
    process = ForkedProcess("services.registry.__main__:main", environment=server.environment(), log_path=_path(server))
    return process.wait(timeout=60)


def _log(server: RegistryServer) -> str:
    return _path(server).read_text()


def _path(server: RegistryServer) -> Path:
    return server.data_dir.with_suffix(".log")
