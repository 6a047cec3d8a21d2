"""Versions on disk: whole or absent, each file once, what is used is never removed."""

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import DataLoss, Unavailable
from common.process.pace import Pace
from common.registry.patches import BLOCK_BYTES, blocks_of, patch_beside
from services.serving.replica.sources.version_files import VersionFiles
from services.serving.tests.support.registry_in_memory import BIG_BYTES, MemoryRegistry


@pytest.fixture
def registry() -> MemoryRegistry:
    found = MemoryRegistry()
    for version in (1, 2, 3, 4):
        found.versions["m", version] = {
            "saved_model/saved_model.pb": b"the same graph",
            "saved_model/variables/data": b"weights %d" % version,
            "checkpoint/data": b"not served",
        }
    return found


@pytest.fixture
def files(tmp_path: Path, registry: MemoryRegistry) -> VersionFiles:
    return VersionFiles(tmp_path, registry)


def test_only_the_saved_model_comes_and_what_is_on_disk_already_does_not_come_again(
    files: VersionFiles, registry: MemoryRegistry
) -> None:
    first, second = files.fetch("m", 1), files.fetch("m", 2)
    assert sorted(path.relative_to(first).as_posix() for path in first.rglob("*") if path.is_file()) == [
        "saved_model.pb", "variables/data",
    ]  # fmt: skip
    assert (first / "variables/data").read_bytes() == b"weights 1"
    assert (second / "variables/data").read_bytes() == b"weights 2"
    assert len(registry.downloaded) == 3
    assert registry.bases[0] == []
    assert sorted(registry.bases[1]) == sorted(registry.downloaded[:2])  # what a patch may be of
    files.fetch("m", 1)
    assert len(registry.downloaded) == 3


def test_beside_a_version_lies_what_it_changes_of_each_of_the_versions_before_it(
    tmp_path: Path, registry: MemoryRegistry
) -> None:
    path = "variables/variables.data-00000-of-00001"
    content = bytearray(BIG_BYTES)
    contents: list[bytes] = []
    for version in range(1, 7):
        content[version * 64] = version
        contents.append(bytes(content))
        registry.versions["m", version] = {"saved_model/saved_model.pb": b"g", f"saved_model/{path}": contents[-1]}
    files = VersionFiles(tmp_path, registry)
    folders = [files.fetch("m", version) for version in range(1, 7)]
    assert not patch_beside(folders[0]).exists()
    newest = patch_beside(folders[-1]).read_bytes()
    for before in contents[1:5]:  # four patches
        target = io.BytesIO(before)
        places, blocks = blocks_of(newest, len(content))
        for place, block in zip(places, blocks, strict=True):
            target.seek(int(place) * BLOCK_BYTES)
            target.write(block.tobytes())
        assert target.getvalue() == contents[-1]
    files.clean(used=set(), kept_versions=1)
    assert {path.name for path in (tmp_path / "versions/m").iterdir()} == {"6", "6.json", "6.patch"}
    assert len(list((tmp_path / "files").iterdir())) == 2


def test_a_version_whose_patch_cannot_be_kept_is_fetched_all_the_same(tmp_path: Path, registry: MemoryRegistry) -> None:
    data = "saved_model/variables/variables.data-00000-of-00001"
    for version in (1, 2):
        registry.versions["m", version] = {
            "saved_model/saved_model.pb": b"g",
            data: bytes([version]) + bytes(BIG_BYTES),
        }
    files = VersionFiles(tmp_path, registry)
    files.fetch("m", 1)
    content = registry.versions["m", 2][data]
    (tmp_path / f"files/.{hashlib.sha256(content).hexdigest()}.patch").mkdir()  # no file can be written there
    assert (files.fetch("m", 2) / data.removeprefix("saved_model/")).read_bytes() == content


def cut(version: Path) -> None:
    (version / "variables/data").write_bytes(b"weigh")


def change(version: Path) -> None:
    (version / "variables/data").write_bytes(b"weights 7")


def lose(version: Path) -> None:
    (version / "saved_model.pb").unlink()


def add(version: Path) -> None:
    (version / "assets.extra").mkdir()
    (version / "assets.extra/op.so").write_bytes(b"code")


def swap(version: Path) -> None:
    other = version.with_name("2")
    aside = version.rename(version.with_name("aside"))
    other.rename(version)
    aside.rename(other)


@pytest.mark.parametrize("damage", [cut, change, lose, add, swap])
def test_a_version_on_disk_that_is_not_what_its_manifest_says_is_fetched_again(
    files: VersionFiles, registry: MemoryRegistry, damage: Callable[[Path], None]
) -> None:
    files.fetch("m", 2)
    damage(files.fetch("m", 1))
    found = files.fetch("m", 1)
    assert {path.relative_to(found).as_posix(): path.read_bytes() for path in found.rglob("*") if path.is_file()} == {
        "saved_model.pb": b"the same graph",
        "variables/data": b"weights 1",
    }
    assert (files.fetch("m", 2) / "variables/data").read_bytes() == b"weights 2"


def test_a_damaged_file_is_not_taken_over_into_another_version(
    files: VersionFiles, registry: MemoryRegistry, tmp_path: Path
) -> None:
    (files.fetch("m", 1) / "saved_model.pb").write_bytes(b"another graph!")
    assert (files.fetch("m", 2) / "saved_model.pb").read_bytes() == b"the same graph"


def test_without_the_registry_what_is_whole_is_there_and_what_is_damaged_is_not(
    files: VersionFiles, registry: MemoryRegistry, tmp_path: Path
) -> None:
    first, second = files.fetch("m", 1), files.fetch("m", 2)
    cut(second)
    registry.is_away = True
    assert files.fetch("m", 1) == first
    with pytest.raises(Unavailable, match=r"2 of m is damaged here \(variables/data has 5 bytes, expected 9\)"):
        files.fetch("m", 2)
    assert [files.holds("m", version) for version in (1, 2, 3)] == [True, True, False]
    (tmp_path / "versions/m/1.json").write_bytes((tmp_path / "versions/m/2.json").read_bytes())
    assert not files.holds("m", 1)


def test_all_downloads_keep_to_one_pace(tmp_path: Path, registry: MemoryRegistry) -> None:
    pace = Pace(lambda: 0.0)
    files = VersionFiles(tmp_path, registry, pace=pace)
    files.fetch("m", 1)
    files.fetch("m", 2)
    assert registry.paces == [pace, pace]


def test_a_version_without_a_saved_model_is_refused(files: VersionFiles, registry: MemoryRegistry) -> None:
    registry.versions["m", 9] = {"checkpoint/data": b"x"}
    with pytest.raises(DataLoss, match=r"version 9 of m has no saved_model/saved_model.pb"):
        files.fetch("m", 9)


def test_an_interrupted_fetch_leaves_no_version_and_is_taken_up_again(
    files: VersionFiles, registry: MemoryRegistry, tmp_path: Path
) -> None:
    registry.is_away = True
    with pytest.raises(Unavailable):
        files.fetch("m", 1)
    assert not (tmp_path / "versions/m/1").exists()
    registry.is_away = False
    assert (files.fetch("m", 1) / "saved_model.pb").is_file()


def test_cleaning_keeps_what_is_used_and_the_last_few_and_files_that_they_share(
    files: VersionFiles, tmp_path: Path
) -> None:
    for version in (1, 2, 3, 4):
        os.utime(files.fetch("m", version), (version, version))
    assert sorted(files.clean(used={("m", 1)}, kept_versions=2)) == [("m", 2)]
    left = {"1", "1.json", "3", "3.json", "4", "4.json"}
    assert {path.name for path in (tmp_path / "versions/m").iterdir()} == left
    contents = {path.read_bytes() for path in (tmp_path / "files").iterdir()}
    assert contents == {b"the same graph", b"weights 1", b"weights 3", b"weights 4"}


def test_cleaning_removes_what_a_crash_left_half_done(files: VersionFiles, tmp_path: Path) -> None:
    files.fetch("m", 1)
    (tmp_path / "versions/m/2.partial").mkdir()
    (tmp_path / "versions/m/2.json").write_bytes(b"{}")
    (tmp_path / "files/orphan").write_bytes(b"x")
    assert files.clean(used=set(), kept_versions=1) == []
    assert {path.name for path in (tmp_path / "versions/m").iterdir()} == {"1", "1.json"}
    assert not (tmp_path / "files/orphan").exists()


def test_a_model_name_cannot_lead_out_of_the_folder(
    files: VersionFiles, registry: MemoryRegistry, tmp_path: Path
) -> None:
    registry.versions["../x", 1] = registry.versions["m", 1]
    assert files.fetch("../x", 1).resolve().is_relative_to(tmp_path / "versions")
