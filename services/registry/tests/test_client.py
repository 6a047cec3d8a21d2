"""The client: files arrive whole or not at all, calls outlast a restart, errors are the six."""

import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from common.errors import DataLoss, InvalidInput, NotFound, Overloaded, Unavailable
from common.process.pace import Pace
from common.registry.catalog import FileEntry
from common.registry.client import RegistryClient, manifest_of
from common.registry.files import FileTransfer, write_gently
from common.registry.patches import patch_between, patched
from protos import registry_pb2 as pb
from protos import registry_pb2_grpc
from services.registry.tests.building import definition, next_plan
from services.registry.tests.over_the_wire import publish, register_all
from testing.registry_server import RegistryServer
from testing.rows import each_row
from testing.waiting import wait_until

Connect = Callable[[], RegistryClient]


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    server = RegistryServer(tmp_path_factory.mktemp("registry"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(keeper: RegistryServer) -> Iterator[RegistryClient]:
    """Of a registry without files: tests that look at files alone share it, and its folder is emptied before each. It
    remembers the patches that it made."""
    for path in (path for kept in ("blobs", "uploads") for path in (keeper.data_dir / kept).rglob("*")):
        if path.is_file():
            path.unlink()
    with closing(RegistryClient(keeper.address)) as opened:
        yield opened


def _folder(directory: Path, **contents: bytes) -> tuple[FileEntry, ...]:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return manifest_of(directory)


def _blob(registry: RegistryServer, digest: str) -> Path:
    return registry.data_dir / "blobs" / digest[:2] / digest


def test_a_manifest_names_every_file_with_its_size_and_digest(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "two").write_bytes(b"22")
    (tmp_path / "a").write_bytes(b"")
    assert manifest_of(tmp_path) == (
        FileEntry("a", 0, hashlib.sha256(b"").hexdigest()),
        FileEntry("b/c/two", 2, hashlib.sha256(b"22").hexdigest()),
    )
    assert [entry.path for entry in manifest_of(tmp_path, "saved_model")] == ["saved_model/a", "saved_model/b/c/two"]


def test_only_missing_files_travel_either_way(client: RegistryClient, tmp_path: Path) -> None:
    files = _folder(tmp_path / "from", a=b"1" * 1000, b=b"2" * 10, same=b"2" * 10, empty=b"")
    assert client.upload(tmp_path / "from", files) == 1010
    assert client.upload(tmp_path / "from", files) == 0
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "a").write_bytes(b"1" * 1000)
    (tmp_path / "to" / "b").write_bytes(b"3" * 10)
    assert client.download(files, tmp_path / "to") == 20
    assert manifest_of(tmp_path / "to") == files
    assert client.download(files, tmp_path / "to") == 0


def test_a_small_file_goes_in_one_call_of_one_message(tmp_path: Path) -> None:
    sent: list[pb.UploadFileRequest] = []
    (file,) = files = _folder(tmp_path, a=b"1" * 1000)
    stub: Any = SimpleNamespace(UploadFile=lambda messages, timeout: sent.extend(messages))  # knows no other call
    assert FileTransfer(stub, timeout_seconds=1.0).upload(tmp_path, files, [file.digest], {}) == 1000
    assert sent == [pb.UploadFileRequest(digest=file.digest, size_bytes=1000, data=b"1" * 1000)]


def test_a_download_keeps_to_its_pace(client: RegistryClient, tmp_path: Path) -> None:
    files = _folder(tmp_path / "from", a=b"1" * 1_000_000, b=b"2" * 1_000_000)
    client.upload(tmp_path / "from", files)
    waited: list[float] = []
    client.download(files, tmp_path / "to", pace=Pace(lambda: 1e9, now=lambda: 0.0, sleep=waited.append))
    assert max(waited) == pytest.approx(2_000_000 / 1e9)


@each_row("size", [0, 1, 32 * 1024, 100_001])
def test_a_file_is_written_in_pieces_and_whole(size: int) -> None:
    class Reluctant(io.BytesIO):
        """Takes no more than 1,000 bytes at a time, as a file may."""

        def write(self, data: Any) -> int:
            assert len(data) <= 32 * 1024
            return super().write(data[:1000])

    data = os.urandom(size)
    out = Reluctant()
    write_gently(out, data)
    assert out.getvalue() == data


def test_a_damaged_file_is_reported_and_never_appears(
    keeper: RegistryServer, client: RegistryClient, tmp_path: Path
) -> None:
    files = _folder(tmp_path / "from", good=b"good", bad=b"x" * 3_000_000)
    client.upload(tmp_path / "from", files)
    damaged = next(file for file in files if file.path == "bad")
    _blob(keeper, damaged.digest).write_bytes(b"y" + b"x" * 2_999_999)
    with pytest.raises(DataLoss, match=f"file {damaged.digest} is damaged"):
        client.download([damaged], tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_a_file_that_changed_after_its_manifest_is_refused(client: RegistryClient, tmp_path: Path) -> None:
    files = _folder(tmp_path, a=b"before")
    (tmp_path / "a").write_bytes(b"after!")
    with pytest.raises(InvalidInput, match="hash to"):
        client.upload(tmp_path, files)
    (tmp_path / "a").unlink()
    with pytest.raises(InvalidInput, match="there is no file a"):
        client.upload(tmp_path, files)


def test_an_upload_begins_anew_after_foreign_bytes(
    keeper: RegistryServer, client: RegistryClient, tmp_path: Path
) -> None:
    (file,) = _folder(tmp_path / "from", a=os.urandom(2_000_000))
    part = keeper.data_dir / "uploads" / f"{file.digest}.part"
    part.write_bytes(b"not of this file")
    client.upload(tmp_path / "from", [file])
    assert _blob(keeper, file.digest).read_bytes() == (tmp_path / "from" / "a").read_bytes()


@each_row("path", ["../escaped", "/tmp/escaped", "a/../../escaped", ""])
def test_nothing_is_written_outside_the_folder(client: RegistryClient, tmp_path: Path, path: str) -> None:
    (file,) = _folder(tmp_path / "from", a=b"1")
    client.upload(tmp_path / "from", [file])
    with pytest.raises(InvalidInput, match="not a relative path"):
        client.download([replace(file, path=path)], tmp_path / "to")
    assert not (tmp_path / "escaped").exists()


def test_values_survive_the_wire(connect: Connect, tmp_path: Path) -> None:
    client = connect()
    register_all(client)
    assert client.get_definition(client.get_model("m").definition_digest) == definition()
    plan = replace(next_plan(client), seed=2**64 - 1, configuration={"a": [1, {"b": None}]})
    planned = client.plan_round(plan)
    assert planned.plan == plan
    assert client.list_rounds("m") == [planned]
    assert client.get_round("m", planned.round_id) == planned
    for model, round_id in (("m", "m-999999"), ("another", planned.round_id)):
        with pytest.raises(NotFound):
            client.get_round(model, round_id)
    lease = client.lease_round("trainer", ttl_seconds=60.0, models=["m"])
    assert lease is not None
    assert client.lease_round("other", ttl_seconds=60.0, models=["m"]) is None
    assert client.release_round(lease, reason="stopping").reason == "stopping"
    lease = client.lease_round("trainer", ttl_seconds=60.0)
    assert lease is not None
    assert client.fail_round(lease, reason="broken").state == "failed"
    version = publish(client, tmp_path)
    assert client.get_version("m", 1) == version
    assert client.list_versions("m") == [replace(version, files=())]
    assert client.set_alias("m", "shadow", 1, by="ada", reason="x").aliases == {"production": 1, "shadow": 1}
    assert [change.alias for change in client.alias_history("m")] == ["production", "shadow"]


def test_a_call_made_while_the_registry_restarts_is_answered(registry: RegistryServer, connect: Connect) -> None:
    client = connect()
    register_all(client)
    registry.kill()
    names: list[str] = []
    thread = threading.Thread(target=lambda: names.append(client.get_model("m").name))
    thread.start()
    registry.start()
    thread.join(timeout=60)
    assert names == ["m"]


def test_a_registry_that_is_away_is_unavailable(free_port: int) -> None:
    client = RegistryClient(f"127.0.0.1:{free_port}", timeout_seconds=0.3)
    with pytest.raises(Unavailable, match=f"the registry at 127.0.0.1:{free_port}"):
        client.list_models()
    with pytest.raises(Unavailable):
        client.rollback("m", by="ada", reason="")
    with pytest.raises(Unavailable):
        next(client.watch())
    client.close()


def test_a_closed_client_is_unavailable_at_once_also_where_it_was_waiting(registry: RegistryServer) -> None:
    client = RegistryClient(registry.address)
    ended: list[Exception] = []

    def follow() -> None:
        try:
            for _ in client.watch():
                heard.set()
        except Unavailable as error:
            ended.append(error)

    heard = threading.Event()
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert heard.wait(timeout=60)
    client.close()
    thread.join(timeout=60)
    assert len(ended) == 1
    for call in (client.list_models, lambda: client.rollback("m", by="a", reason=""), lambda: next(client.watch())):
        with pytest.raises(Unavailable, match="is closed"):
            call()


def test_a_watch_ends_with_unavailable_when_the_registry_dies(registry: RegistryServer, connect: Connect) -> None:
    client = connect()
    register_all(client)
    watch = client.watch()
    assert [next(watch).kind for _ in range(2)] == ["stream", "model"]
    registry.kill()
    with pytest.raises(Unavailable):
        list(watch)
    registry.start()
    assert next(client.watch(1)).kind == "model"


def test_a_closed_watch_gives_back_its_place(tmp_path: Path) -> None:
    registry = RegistryServer(tmp_path / "registry", {"REGISTRY_MAX_WATCHERS": "1"})
    registry.start()
    client = RegistryClient(registry.address)
    watch = client.watch()
    next(watch)
    newer = client.watch()
    next(newer)
    with pytest.raises(Overloaded, match="1 watchers are connected, and a newer watcher has this place"):
        list(watch)
    newer.close()  # type: ignore[attr-defined]  # it is a generator

    def is_free() -> bool:
        again = client.watch()
        try:
            return next(again).kind == "heartbeat"
        except Overloaded:
            return False

    wait_until(is_free, "the place's return")
    client.close()
    registry.stop()


def _tables(*, rows: int, touched: int) -> tuple[bytes, bytes]:
    """A table of 32 float32 a row, of which a round touched some rows; an odd length, as a bundle has."""
    random = np.random.default_rng(1)
    before = random.standard_normal((rows, 32), np.float32)
    after = before.copy()
    after[random.choice(rows, touched, replace=False)] += 1
    return before.tobytes() + b"end", after.tobytes() + b"END"


def _two_tables(client: RegistryClient, tmp_path: Path, *, touched: int) -> tuple[FileEntry, FileEntry]:
    """In the registry, the first also in tmp_path/to."""
    before, after = _tables(rows=40_000, touched=touched)
    old, new = files = _folder(tmp_path / "from", a_before=before, b_after=after)
    client.upload(tmp_path / "from", files)
    client.download([old], tmp_path / "to")
    return old, new


def test_a_table_with_few_touched_rows_comes_as_a_patch(client: RegistryClient, tmp_path: Path) -> None:
    old, new = _two_tables(client, tmp_path, touched=400)
    before = client.received()
    received = client.download([new], tmp_path / "to", bases={old.digest: tmp_path / "to" / old.path})
    assert received < 400 * 3 * 64
    assert client.received() == {**before, "patch_bytes": received}
    assert manifest_of(tmp_path / "to") == (old, new)


def test_a_big_file_on_this_machine_is_read_where_the_registry_has_it(
    client: RegistryClient, keeper: RegistryServer, tmp_path: Path
) -> None:
    (file,) = _folder(tmp_path / "from", a=_tables(rows=40_000, touched=0)[0])
    client.upload(tmp_path / "from", [file])
    assert client.download([file], tmp_path / "to") == file.size_bytes
    assert {kind for kind, count in client.received().items() if count} == {"copied_bytes"}
    assert manifest_of(tmp_path / "to") == (file,)
    with _blob(keeper, file.digest).open("r+b") as blob:
        blob.write(b"damaged")
    with pytest.raises(DataLoss, match="damaged: its bytes hash to"):
        client.download([file], tmp_path / "again")
    _blob(keeper, file.digest).unlink()
    with pytest.raises(NotFound):
        client.download([file], tmp_path / "again")


def test_a_table_with_few_touched_rows_goes_as_a_patch_of_what_the_registry_has(
    client: RegistryClient, keeper: RegistryServer, tmp_path: Path
) -> None:
    before, after = _tables(rows=40_000, touched=400)
    old, new = _folder(tmp_path / "from", a_before=before, b_after=after)
    client.upload(tmp_path / "from", [old])
    sent = client.upload(tmp_path / "from", [old, new], bases={old.digest: tmp_path / "from" / old.path})
    assert sent < 400 * 3 * 64
    assert not _blob(keeper, new.digest).exists(), "the patch stands for it"
    client.download([new], tmp_path / "back")
    assert (tmp_path / "back" / new.path).read_bytes() == after


def test_a_patch_may_go_before_its_file_has_a_digest(client: RegistryClient, tmp_path: Path) -> None:
    before, after = _tables(rows=40_000, touched=400)
    old, new, same = _folder(tmp_path / "from", a_before=before, b_after=after, c_same=before)
    bases = {old.digest: tmp_path / "from" / old.path}
    unnamed = [replace(new, digest=""), replace(same, digest="")]
    assert client.upload_ahead(tmp_path / "from", unnamed, bases=bases) == 0, "the registry has no base yet"
    client.upload(tmp_path / "from", [old])
    assert 0 < client.upload_ahead(tmp_path / "from", unnamed, bases=bases) < 400 * 3 * 64
    client.download([new], tmp_path / "back")
    assert (tmp_path / "back" / new.path).read_bytes() == after
    assert client.upload(tmp_path / "from", [old, new, same], bases=bases) == 0


@pytest.mark.parametrize("fault", ["unknown", "damaged"])
def test_a_file_goes_whole_when_its_base_is_not_what_the_registry_has(
    client: RegistryClient, keeper: RegistryServer, tmp_path: Path, fault: str
) -> None:
    before, after = _tables(rows=40_000, touched=400)
    old, new = _folder(tmp_path / "from", a_before=before, b_after=after)
    if fault == "damaged":
        client.upload(tmp_path / "from", [old])
        with _blob(keeper, old.digest).open("r+b") as file:
            file.write(b"damaged")
    sent = client.upload(tmp_path / "from", [new], bases={old.digest: tmp_path / "from" / old.path})
    assert sent == new.size_bytes
    assert _blob(keeper, new.digest).read_bytes() == after


@pytest.mark.parametrize("base", ["damaged", "unknown", "touched all over"])
def test_a_file_comes_whole_when_its_base_is_of_no_use(client: RegistryClient, tmp_path: Path, base: str) -> None:
    old, new = _two_tables(client, tmp_path, touched=20_000 if base == "touched all over" else 400)
    path = tmp_path / "to" / old.path
    if base == "damaged":
        with path.open("r+b") as file:
            file.write(b"damaged")
    bases = {"0" * 64 if base == "unknown" else old.digest: path}
    assert client.download([new], tmp_path / "to", bases=bases) == new.size_bytes
    assert (client.received()["patch_bytes"] > 0) == (base == "damaged")
    assert manifest_of(tmp_path / "to")[1] == new


def test_a_damaged_file_in_the_registry_is_refused_as_a_patch_too(
    client: RegistryClient, keeper: RegistryServer, tmp_path: Path
) -> None:
    old, new = _two_tables(client, tmp_path, touched=401)
    with _blob(keeper, new.digest).open("r+b") as file:
        file.write(b"damaged")
    with pytest.raises(DataLoss, match="damaged"):
        client.download([new], tmp_path / "to", bases={old.digest: tmp_path / "to" / old.path})
    assert not (tmp_path / "to" / new.path).exists()


def test_a_patch_that_is_cut_or_forged_is_refused(tmp_path: Path) -> None:
    before, after = _tables(rows=40_000, touched=400)
    patch = patch_between(io.BytesIO(before), io.BytesIO(after), len(after))
    assert patch is not None
    with (tmp_path / "made").open("w+b") as file:
        assert patched(file, io.BytesIO(before), patch, len(after)) == hashlib.sha256(after).hexdigest()
    assert (tmp_path / "made").read_bytes() == after
    for wrong in (patch[:1000], b"forged" + patch):
        with (tmp_path / "made").open("w+b") as file, pytest.raises(DataLoss):
            patched(file, io.BytesIO(before), wrong, len(after))


class _Counted(io.BytesIO):
    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.read_bytes += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        self.read_bytes += count
        return count


def test_files_without_anything_in_common_are_compared_at_some_places_only() -> None:
    random = np.random.default_rng(1)
    old, new = (_Counted(random.bytes(5 << 20)) for _ in range(2))
    assert patch_between(old, new, 5 << 20) is None
    assert old.read_bytes + new.read_bytes < 64 * 1024


class ElsewhereRegistry(registry_pb2_grpc.RegistryServiceServicer):
    """Names a path and a URL for a file, and gives its bytes to a caller that takes neither."""

    def __init__(self, content: bytes, *, path: Path) -> None:
        self._content, self._path = content, path

    def DownloadFile(  # noqa: N802
        self, request: pb.DownloadFileRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.FileChunk]:
        if request.accepts_path:
            yield pb.FileChunk(path=str(self._path))
        elif request.accepts_url:
            yield pb.FileChunk(url="http://store.invalid/file")  # a name that nobody knows here
        else:
            for start in range(request.offset, len(self._content), 1 << 20):
                yield pb.FileChunk(data=self._content[start : start + (1 << 20)])


@pytest.mark.parametrize("there", ["nothing", "a link", "a pipe", "other bytes"])
def test_files_come_from_the_registry_where_their_path_and_the_object_store_are_of_no_use(
    tmp_path: Path, there: str
) -> None:
    content, path = bytes(5 << 20), tmp_path / "there"
    if there == "a link":
        (tmp_path / "file").write_bytes(content)
        path.symlink_to(tmp_path / "file")
    if there == "a pipe":
        os.mkfifo(path)
    if there == "other bytes":
        path.write_bytes(b"1" + content[1:])
    server = grpc.server(futures.ThreadPoolExecutor(2))
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(ElsewhereRegistry(content, path=path), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = RegistryClient(f"127.0.0.1:{port}")
    file = FileEntry("a", len(content), hashlib.sha256(content).hexdigest())
    assert client.download([file], tmp_path / "to") == len(content)
    assert {kind: count for kind, count in client.received().items() if count} == {"whole_bytes": len(content)}
    client.close()
    server.stop(None).wait(10)
