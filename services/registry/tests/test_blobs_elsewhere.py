"""A registry whose files are at a URL: published, read back, restarted, collected and backed up as from its folder."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest

from common.errors import Conflict, DataLoss, InvalidInput
from common.registry.client import RegistryClient
from common.registry.files import pieces_at
from common.storage import place_of
from protos import registry_pb2 as pb
from protos import registry_pb2_grpc
from services.registry.backup import back_up, main
from services.registry.store.blobs import Blobs
from services.registry.store.shelf import claim
from services.registry.tests.over_the_wire import publish, register_all
from testing import plain_http
from testing.az_server import AZURE, az_container
from testing.forked import ForkedProcess
from testing.registry_server import RegistryServer
from testing.s3_server import s3_bucket

pytestmark = pytest.mark.covers("fs-gfile", "fs-remote")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.mark.parametrize("storage", ["bucket", "hdfs_url"])
def test_a_registry_keeps_its_files_elsewhere(
    storage: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{request.getfixturevalue(storage)}/registry"
    server = RegistryServer(tmp_path / "data", {"REGISTRY_BLOBS": url})
    server.start()
    try:
        client = RegistryClient(server.address)
        register_all(client)
        publish(client, tmp_path / "work")
        client.close()
        server.kill()
        server.start()
        client = RegistryClient(server.address)
        files = client.get_version("m", 1).files
        client.download(files, tmp_path / "got")  # verifies each digest
        client.close()
    finally:
        server.stop()
    kept = {file.name for file in place_of(url).walk()} - {"owner"}
    assert kept == {file.digest for file in files}
    notes = [path for path in (tmp_path / "data" / "blobs").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in notes) < 20 * len(notes), "a note has the size in digits"
    assert back_up(tmp_path / "data", tmp_path / "copy") == len(kept)
    assert main([str(tmp_path / "copy"), "--verify"]) == 0, "the copy has the files themselves"
    (place_of(url) / files[0].digest[:2] / files[0].digest).write(b"other bytes", overwrite=True)
    assert main([str(tmp_path / "data"), "--verify"]) == 1
    assert f"{files[0].digest} is damaged" in capsys.readouterr().out


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a store that signs."""
    with {"s3": s3_bucket, "az": az_container}[request.param]() as url:
        yield url


@pytest.mark.parametrize("store", ["s3", AZURE], indirect=True)
def test_a_replica_reads_files_from_the_store_itself_with_urls_that_the_registry_signs(
    store: str, tmp_path: Path
) -> None:
    url = f"{store}/signed"
    settings = {"REGISTRY_BLOBS": url, "REGISTRY_PRESIGNED_SECONDS": "60"}
    server = RegistryServer(tmp_path / "data", settings)
    server.start()
    try:
        client = RegistryClient(server.address)
        register_all(client)
        publish(client, tmp_path / "work")
        files = client.get_version("m", 1).files
        with grpc.insecure_channel(server.address) as channel:
            stub = registry_pb2_grpc.RegistryServiceStub(channel)
            (answer,) = stub.DownloadFile(pb.DownloadFileRequest(digest=files[0].digest, accepts_url=True))
            (whole,) = stub.DownloadFile(pb.DownloadFileRequest(digest=files[0].digest))
        assert (answer.data, whole.url) == (b"", "")
        assert hashlib.sha256(plain_http.get(answer.url).content).hexdigest() == files[0].digest
        assert b"".join(pieces_at(answer.url, 3, timeout_seconds=10)) == whole.data[3:]
        received = client.download(files, tmp_path / "got")
        assert {kind: count for kind, count in client.received().items() if count} == {"presigned_bytes": received}
        assert received == sum(file.size_bytes for file in files)
        (place_of(url) / files[0].digest[:2] / files[0].digest).write(b"other bytes", overwrite=True)
        with pytest.raises(DataLoss, match="came with digest"):
            client.download(files, tmp_path / "again")
        (place_of(url) / files[0].digest[:2] / files[0].digest).remove()
        with pytest.raises(DataLoss, match="is not there, though the registry knows the file") as lost:
            client.download(files, tmp_path / "again")
        assert urlsplit(answer.url).query not in str(lost.value)
        client.close()
    finally:
        server.stop()


def test_presigned_urls_need_a_storage_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="memory:// has no presigned URLs"):
        claim(tmp_path / "a", f"memory://{tmp_path.name}/plain", presigned_seconds=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint=http://127.0.0.1:1/a;SharedAccessSignature=sig=a")
        with pytest.raises(InvalidInput, match="the credentials of az:// sign no URLs: Either user_delegation_key or"):
            place_of("az://container/file").presigned(60)
    with pytest.raises(
        InvalidInput, match="REGISTRY_PRESIGNED_SECONDS is 60, expected 0, or 60 and more with REGISTRY_BLOBS"
    ):
        claim(tmp_path / "b", "", presigned_seconds=60)


def test_files_elsewhere_are_taken_up_verified_and_removed(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/kept"
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    shelf = claim(tmp_path, url)
    assert shelf is not None
    blobs = Blobs(tmp_path, max_file_bytes=100, shelf=shelf)
    assert blobs.receive(digest, 5, 0, [b"hel", b"lo"]) == 5
    assert (b"".join(blobs.read(digest, 2)), blobs.received_bytes(digest), blobs.digests()) == (
        b"llo", (5, True), [digest],
    )  # fmt: skip
    (tmp_path / "blobs" / digest[:2] / digest).unlink()
    assert blobs.missing([digest]) == [digest]
    assert claim(tmp_path, url) is not None, "the next start notes what is there"
    assert blobs.missing([digest]) == []
    there = place_of(url) / digest[:2] / digest
    there.write(b"other", overwrite=True)
    with pytest.raises(DataLoss, match="is damaged"):
        list(blobs.read(digest))
    there.remove()
    with pytest.raises(DataLoss, match=r"is not in memory://"):
        list(blobs.read(digest))
    there.write(b"hello")
    assert blobs.remove(digest, unused_since=2e9) == 5
    assert (blobs.digests(), there.exists()) == ([], True), "its bytes are deleted later"
    assert claim(tmp_path, url) is not None
    assert blobs.digests() == [], "also by a start in between"
    assert not blobs.sweep(-1), "there was no time"
    assert blobs.sweep(60)
    assert not there.exists()
    assert blobs.receive(digest, 5, 0, [b"hello"]) == 5
    assert blobs.remove(digest, unused_since=2e9) == 5
    assert blobs.receive(digest, 5, 0, [b"hello"]) == 5, "stored again before it was swept"
    assert blobs.sweep(60)
    assert b"".join(blobs.read(digest)) == b"hello"


def test_a_place_belongs_to_one_registry_and_a_registry_to_one_place(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/owned"
    claim(tmp_path / "one", url)
    with pytest.raises(Conflict, match="holds the files of another registry"):
        claim(tmp_path / "two", url)
    with pytest.raises(Conflict, match="set REGISTRY_BLOBS to it"):
        claim(tmp_path / "one", "")
    with pytest.raises(Conflict, match="and REGISTRY_BLOBS is"):
        claim(tmp_path / "one", f"{url}/else")
    (tmp_path / "old" / "blobs" / "ab").mkdir(parents=True)
    (tmp_path / "old" / "blobs" / "ab" / "abc").write_bytes(b"x")
    with pytest.raises(Conflict, match="only a new registry"):
        claim(tmp_path / "old", f"{url}/new")
    with pytest.raises(InvalidInput, match="REGISTRY_DATA_DIR is local"):
        claim(tmp_path / "three", str(tmp_path))


def test_an_unknown_scheme_ends_the_start_and_the_known_ones_are_listed(tmp_path: Path) -> None:
    environment = RegistryServer(tmp_path / "data", {"REGISTRY_BLOBS": "s4://bucket/registry"}).environment()
    log_path = tmp_path / "log"
    process = ForkedProcess("services.registry.__main__:main", environment=environment, log_path=log_path)
    assert process.wait(timeout=60) == 1
    assert "unknown scheme 's4'; known are file, memory, s3, gs, az" in log_path.read_text()
