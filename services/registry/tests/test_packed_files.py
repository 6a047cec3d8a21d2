"""Of large files that came as patches the registry keeps the patches, and every file is read back whole."""

import hashlib
import io
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BufferedRandom
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.errors import DataLoss, InvalidInput, NotFound
from common.registry.patches import patch_between, patched
from services.registry.store.blobs import Blobs
from services.registry.store.folder import assemble

_BYTES = 4 * 1024 * 1024 + 100
_LATER = 4e9
"""Every file was last read before."""
_MOST_DIFFERENT = 60_000


@dataclass
class World:
    """A registry's files, what they are by digest, and the order in which they came."""

    directory: Path
    content: dict[str, bytes] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open_again()
        self.generator = np.random.default_rng(7)

    def open_again(self) -> None:
        self.blobs = Blobs(self.directory, max_file_bytes=_BYTES)

    def receive(self, content: bytes, base: str = "") -> str:
        digest = hashlib.sha256(content).hexdigest()
        if base:
            patch = patch_between(io.BytesIO(self.content[base]), io.BytesIO(content), _BYTES)
            assert patch is not None
            named = digest if len(self.order) % 2 else ""  # the digest may be left to the registry
            assert self.blobs.receive_patch(named, _BYTES, base, [patch]) == digest
        else:
            self.blobs.receive(digest, _BYTES, 0, [content])
        self.content[digest] = content
        self.order.append(digest)
        return digest

    def first(self) -> str:
        return self.receive(self.generator.bytes(_BYTES))

    def next(self, base: str) -> str:
        """A file of which some rows and the last bytes are others than the base's."""
        changed = bytearray(self.content[base])
        for place in (*self.generator.integers(0, _BYTES - 64, 20), _BYTES - 3):
            changed[place : place + 3] = self.generator.bytes(3)
        return self.receive(bytes(changed), base)

    def chain(self, count: int) -> Sequence[str]:
        digests = [self.first()]
        while len(digests) < count:
            digests.append(self.next(digests[-1]))
        return digests

    def remove(self, digest: str) -> None:
        assert self.blobs.remove(digest, unused_since=_LATER) is not None
        self.blobs.sweep(10.0)
        del self.content[digest]
        self.order.remove(digest)

    def check(self) -> None:
        assert set(self.blobs.digests()) == set(self.content)
        for digest, content in self.content.items():
            assert self.blobs.size_of(digest) == _BYTES
            assert b"".join(self.blobs.read(digest)) == content

    def stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_chain_costs_its_first_and_its_newest_file_and_patches_and_is_read_back_whole(world: World) -> None:
    digests = world.chain(6)
    count, saved_bytes = world.blobs.packed()
    assert (count, world.stored_bytes() <= 2 * _BYTES + _MOST_DIFFERENT) == (5, True)
    assert 5 * _BYTES - _MOST_DIFFERENT < saved_bytes < 5 * _BYTES
    assert world.blobs.missing([*digests, "0" * 64]) == ["0" * 64]
    world.open_again()
    assert world.stored_bytes() <= _BYTES + _MOST_DIFFERENT, "what was at hand is gone"
    world.check()
    assert world.blobs.packed() == (0, 0)
    assert world.blobs.pack(unused_since=0) == 0, "they were read a moment ago"
    assert world.blobs.pack(unused_since=_LATER) == 4 * _BYTES, "the newest that was read stays whole"


def test_the_next_file_is_made_in_the_bytes_of_the_newest(world: World) -> None:
    first, second = world.chain(2)
    (at_hand,) = (world.directory / "uploads").iterdir()
    inode = at_hand.stat().st_ino
    third = world.next(second)
    (at_hand,) = (world.directory / "uploads").iterdir()
    assert at_hand.stat().st_ino == inode
    fork = world.next(second)
    assert len(list((world.directory / "uploads").iterdir())) == 2, "of two chains"
    at_hand.write_bytes(bytes(_BYTES))  # damaged meanwhile
    patch = patch_between(io.BytesIO(world.content[third]), io.BytesIO(world.content[first]), _BYTES)
    assert patch is not None
    with pytest.raises(InvalidInput, match="hash to"):
        world.blobs.receive_patch("0" * 64, _BYTES, third, [patch])
    world.next(third)
    world.check()
    world.remove(fork)
    assert [path.stem for path in (world.directory / "uploads").iterdir()] == [world.order[-1]]


def test_a_replica_that_left_versions_out_gets_their_patches_as_one(world: World) -> None:
    digests = world.chain(5)
    world.remove(digests[2])
    found = world.blobs.patch_of(digests[4], ["0" * 64, digests[1], digests[0]])
    assert found is not None
    assert found[0] == digests[1]
    made = io.BytesIO()
    file = cast(BufferedRandom, made)
    assert patched(file, io.BytesIO(world.content[digests[1]]), found[1], _BYTES) == digests[4]
    assert world.blobs.packed()[0] == 3, "no file was put together for it"


def test_what_was_removed_serves_those_that_are_made_of_it_and_goes_with_them(world: World) -> None:
    first, second, third, fourth = world.chain(4)
    world.blobs.pack(unused_since=_LATER)
    for digest in (first, third):
        world.remove(digest)
        world.open_again()
        with pytest.raises(NotFound):
            list(world.blobs.read(digest))
    world.check()
    world.remove(fourth)
    world.remove(second)
    assert world.stored_bytes() == 0


def test_a_long_chain_begins_anew_and_one_of_removed_files_is_cut(world: World) -> None:
    digests = world.chain(35)
    world.blobs.pack(unused_since=_LATER)
    assert world.blobs.packed()[0] == 33, "of 33 files the first is whole, of two more the first is whole, too"
    for digest in digests[:20]:
        world.remove(digest)
    before = world.stored_bytes()
    world.blobs.pack(unused_since=_LATER)
    assert list((world.directory / "bases").iterdir()) == []
    assert world.stored_bytes() <= before
    world.check()


@pytest.mark.parametrize("damage", ["base", "patch", "missing base"])
def test_a_file_that_cannot_be_put_together_is_refused_and_named(world: World, damage: str) -> None:
    first, second, _ = world.chain(3)
    world.blobs.pack(unused_since=_LATER)
    base = world.directory / "blobs" / first[:2] / first
    patch = world.directory / "blobs" / second[:2] / f"{second}.patch"
    if damage == "missing base":
        base.unlink()
    else:
        path = base if damage == "base" else patch
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(DataLoss, match=second):
        list(world.blobs.read(second))
    with pytest.raises(DataLoss, match=second):
        assemble(world.directory, second, world.directory / "copy")


def test_a_whole_file_that_had_not_reached_the_disk_is_made_of_its_patch_again(world: World) -> None:
    first, second = world.chain(2)
    (world.directory / "blobs" / second[:2] / second).write_bytes(bytes(_BYTES))
    world.open_again()
    world.check()
    assert world.blobs.patch_of(second, [first]) is not None


def test_a_replica_gets_the_patch_that_the_trainer_sent(world: World) -> None:
    first = world.first()
    content = world.content[first][:-1] + b"!"
    computed = patch_between(io.BytesIO(world.content[first]), io.BytesIO(content), _BYTES)
    assert computed is not None
    sent = zlib.compress(zlib.decompress(computed), 9)
    assert sent != computed
    digest = hashlib.sha256(content).hexdigest()
    world.blobs.receive_patch(digest, _BYTES, first, [sent])
    assert world.blobs.patch_of(digest, ["0" * 64, first]) == (first, sent)
    world.blobs.remove(first, unused_since=_LATER)
    assert world.blobs.patch_of(digest, [first]) == (first, sent), "the replica still has the base"


def test_a_patch_of_another_file_leaves_nothing(world: World) -> None:
    first = world.first()
    patch = patch_between(io.BytesIO(world.content[first]), io.BytesIO(bytes(1) + world.content[first][1:]), _BYTES)
    assert patch is not None
    with pytest.raises(InvalidInput, match="hash to"):
        world.blobs.receive_patch("0" * 64, _BYTES, first, [patch])
    assert world.stored_bytes() == _BYTES


def test_a_file_that_comes_again_as_it_was_makes_no_ring(world: World) -> None:
    first, second, third = world.chain(3)
    again = patch_between(io.BytesIO(world.content[third]), io.BytesIO(world.content[second]), _BYTES)
    assert again is not None
    world.blobs.receive_patch(second, _BYTES, third, [again])
    back = patch_between(io.BytesIO(world.content[third]), io.BytesIO(world.content[first]), _BYTES)
    assert back is not None
    world.blobs.receive_patch(first, _BYTES, third, [back])
    world.blobs.pack(unused_since=_LATER)
    world.check()


def test_a_file_that_comes_again_whole_after_it_was_removed_outlives_a_start(world: World) -> None:
    _, second, _ = world.chain(3)
    content = world.content[second]
    world.remove(second)
    world.receive(content)
    world.open_again()
    world.check()


class Files(RuleBasedStateMachine):
    """Files come, also again, are packed, read and removed in any order, with restarts between them."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="packed-files-")
        self.world = World(Path(self._folder.name))
        self.removed: list[bytes] = []

    @initialize()
    def begin(self) -> None:
        self.world.first()

    @rule(at=st.integers(0, 100))
    def come(self, at: int) -> None:
        order = self.world.order
        self.world.next(order[at % len(order)]) if order else self.world.first()

    @rule()
    def pack(self) -> None:
        self.world.blobs.pack(unused_since=_LATER)

    @precondition(lambda self: len(self.world.order) > 1)
    @rule(at=st.integers(0, 100))
    def remove(self, at: int) -> None:
        digest = self.world.order[at % len(self.world.order)]
        self.removed.append(self.world.content[digest])
        self.world.remove(digest)

    @precondition(lambda self: self.removed)
    @rule()
    def come_again(self) -> None:
        self.world.receive(self.removed.pop())

    @rule()
    def start_again(self) -> None:
        self.world.open_again()

    @invariant()
    def are_here(self) -> None:
        assert set(self.world.blobs.digests()) == set(self.world.content)

    def teardown(self) -> None:
        self.world.check()
        for digest in list(self.world.order):
            self.world.remove(digest)
        assert self.world.stored_bytes() == 0
        self._folder.cleanup()


TestFiles = Files.TestCase
TestFiles.settings = settings(max_examples=12, stateful_step_count=12, deadline=None)
