"""A file is complete and verified or not there, however its upload went."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import Conflict, DataLoss, InvalidInput, NotFound, Unavailable
from services.registry.store.blobs import CHUNK_BYTES, Blobs
from testing.waiting import at_once

CONTENT = b"0123456789" * 100
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path, max_file_bytes=5_000_000)


def _part(directory: Path, digest: str = DIGEST) -> Path:
    return directory / "uploads" / f"{digest}.part"


def _interrupted(content: bytes) -> Iterator[bytes]:
    yield content
    raise ConnectionError("the client is gone")


def test_a_file_can_be_read_back_once_it_is_complete(blobs: Blobs, tmp_path: Path) -> None:
    assert blobs.missing([DIGEST, DIGEST]) == [DIGEST]
    assert blobs.receive(DIGEST, len(CONTENT), 0, [CONTENT[:7], b"", CONTENT[7:]]) == len(CONTENT)
    assert b"".join(blobs.read(DIGEST)) == CONTENT
    assert b"".join(blobs.read(DIGEST, 990)) == CONTENT[990:]
    assert blobs.received_bytes(DIGEST) == (1000, True)
    assert blobs.missing([DIGEST]) == []
    assert (tmp_path / "blobs" / DIGEST[:2] / DIGEST).read_bytes() == CONTENT
    assert not _part(tmp_path).exists()


def test_an_interrupted_upload_is_taken_up_where_it_stopped(blobs: Blobs) -> None:
    with pytest.raises(Unavailable, match="ended after 10 of 1000 bytes"):
        blobs.receive(DIGEST, len(CONTENT), 0, [CONTENT[:10]])
    with pytest.raises(Unavailable):
        blobs.receive(DIGEST, len(CONTENT), 10, _interrupted(CONTENT[10:300]))
    assert blobs.received_bytes(DIGEST) == (300, False)
    assert blobs.missing([DIGEST]) == [DIGEST]
    with pytest.raises(NotFound):
        next(blobs.read(DIGEST))
    with pytest.raises(Conflict, match="only 300 bytes"):
        blobs.receive(DIGEST, len(CONTENT), 301, [CONTENT[301:]])
    blobs.receive(DIGEST, len(CONTENT), 200, [CONTENT[200:]])
    assert b"".join(blobs.read(DIGEST)) == CONTENT


def test_other_bytes_than_promised_are_removed(blobs: Blobs, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"sent as {DIGEST} hash to"):
        blobs.receive(DIGEST, len(CONTENT), 0, [CONTENT[::-1]])
    assert not _part(tmp_path).exists()
    with pytest.raises(InvalidInput, match="more came"):
        blobs.receive(DIGEST, 10, 0, [CONTENT])
    assert not _part(tmp_path).exists()
    assert blobs.missing([DIGEST]) == [DIGEST]


def test_a_wrong_digest_size_or_offset_is_refused(blobs: Blobs) -> None:
    for digest, size_bytes, offset, match in (
        ("../../etc/passwd", 1, 0, "not a SHA-256"),
        (DIGEST.upper(), 1, 0, "not a SHA-256"),
        (DIGEST, 5_000_001, 0, "at most 5000000"),
        (DIGEST, -1, 0, "at most"),
        (DIGEST, 10, 11, "offset 11"),
        (DIGEST, 10, -1, "offset -1"),
    ):
        with pytest.raises(InvalidInput, match=match):
            blobs.receive(digest, size_bytes, offset, [b"x"])
    for patched, bases in (("x" * 5000, []), ("../" + DIGEST, [DIGEST])):
        with pytest.raises(InvalidInput):
            blobs.patch_of(patched, bases)
    with pytest.raises(InvalidInput):
        blobs.missing(["x"])
    with pytest.raises(InvalidInput):
        next(blobs.read("x"))


def test_the_empty_file_is_a_file(blobs: Blobs) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    assert blobs.receive(digest, 0, 0, []) == 0
    assert list(blobs.read(digest)) == []
    assert blobs.received_bytes(digest) == (0, True)


@pytest.mark.parametrize("at", [0, 2 * CHUNK_BYTES - 1])
def test_a_file_whose_bytes_changed_never_arrives_whole(blobs: Blobs, tmp_path: Path, at: int) -> None:
    content = bytes(2 * CHUNK_BYTES)
    digest = hashlib.sha256(content).hexdigest()
    blobs.receive(digest, len(content), 0, [content])
    path = tmp_path / "blobs" / digest[:2] / digest
    damaged = bytearray(content)
    damaged[at] = 1
    path.write_bytes(damaged)
    for offset in (0, CHUNK_BYTES + 5):
        received = bytearray()
        with pytest.raises(DataLoss, match="is damaged"):
            received.extend(byte for chunk in blobs.read(digest, offset) for byte in chunk)
        assert len(received) < len(content) - offset


def test_a_second_upload_of_a_file_under_way_is_refused(blobs: Blobs) -> None:
    refused: list[str] = []

    def chunks() -> Iterator[bytes]:
        yield CONTENT[:500]
        with pytest.raises(Unavailable, match="another upload") as raised:
            blobs.receive(DIGEST, len(CONTENT), 0, [CONTENT])
        refused.append(str(raised.value))
        yield CONTENT[500:]

    blobs.receive(DIGEST, len(CONTENT), 0, chunks())
    assert len(refused) == 1
    assert b"".join(blobs.read(DIGEST)) == CONTENT
    assert blobs.receive(DIGEST, len(CONTENT), 0, _interrupted(b"")) == len(CONTENT), "nothing is read any more"


def test_a_silent_upload_loses_its_turn_to_the_next(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path, max_file_bytes=10_000, takeover_seconds=0.0)

    def chunks() -> Iterator[bytes]:
        yield CONTENT[:500]
        assert blobs.receive(DIGEST, len(CONTENT), 500, [CONTENT[500:]]) == len(CONTENT)
        yield b"the silent one wakes up"

    with pytest.raises(Unavailable, match="has taken over"):
        blobs.receive(DIGEST, len(CONTENT), 0, chunks())
    assert b"".join(blobs.read(DIGEST)) == CONTENT


def test_many_uploads_of_a_file_at_once_make_a_whole_file(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path, max_file_bytes=10_000, takeover_seconds=0.0)

    def upload(number: int) -> int:
        with suppress(Unavailable):
            return blobs.receive(DIGEST, len(CONTENT), 0, (CONTENT[i : i + 10] for i in range(0, 1000, 10)))
        return 0

    assert len(CONTENT) in at_once(6, upload), "whoever comes last finishes"
    assert b"".join(blobs.read(DIGEST)) == CONTENT


def test_a_disk_that_refuses_is_reported_and_nothing_partial_is_visible(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "uploads").rmdir()
    with pytest.raises(Unavailable, match="cannot be stored: No such file or directory"):
        blobs.receive(DIGEST, len(CONTENT), 0, [CONTENT])
    assert blobs.missing([DIGEST]) == [DIGEST]
    (tmp_path / "uploads").mkdir()
    blobs.receive(DIGEST, len(CONTENT), 0, [CONTENT])
    assert b"".join(blobs.read(DIGEST)) == CONTENT


def test_files_leave_the_catalog_room_on_the_disk(tmp_path: Path) -> None:
    full = Blobs(tmp_path, max_file_bytes=1 << 20, kept_free_bytes=1 << 62)
    with pytest.raises(Unavailable, match="bytes left, and 4611686018427387904 are kept for the catalog; make room"):
        full.receive(DIGEST, len(CONTENT), 0, [CONTENT])
    assert full.received_bytes(DIGEST) == (0, False)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200), st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=5))
def test_however_often_an_upload_breaks_off_the_file_comes_out_whole(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, breaks: list[tuple[float, float]]
) -> None:
    blobs = Blobs(tmp_path_factory.mktemp("blobs"), max_file_bytes=1000)
    digest = hashlib.sha256(content).hexdigest()
    for start, length in breaks:
        received, complete = blobs.received_bytes(digest)
        offset = int(start * received)
        sent = content[offset : offset + int(length * (len(content) - offset))]
        if not complete:
            with pytest.raises(Unavailable):
                blobs.receive(digest, len(content), offset, _interrupted(sent))
    received, _ = blobs.received_bytes(digest)
    blobs.receive(digest, len(content), received, [content[received:]])
    assert b"".join(blobs.read(digest)) == content
