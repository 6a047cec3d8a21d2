"""One suite for every backend of common/storage.py that needs no account: the same rules wherever a file is.

An object store has no folders: one is there while a file is in it. So the rule of the folder above is kept by the
others.
"""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.registry import _registry

from common.errors import Conflict, InvalidInput, NotFound, Unavailable
from common.storage import Place, place_of
from testing.az_server import AZURE, az_container
from testing.gs_server import gs_bucket
from testing.s3_server import s3_bucket

pytestmark = pytest.mark.covers("fs-gfile", "fs-remote")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(scope="module")
def google_bucket() -> Iterator[str]:
    with gs_bucket() as url:
        yield url


@pytest.fixture(scope="module")
def azure_container() -> Iterator[str]:
    with az_container() as url:
        yield url


@pytest.fixture(params=["local", "memory", "s3", "gs", AZURE, "webhdfs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    storages = {
        "local": lambda: str(tmp_path / "kept"),
        "memory": lambda: f"memory://{uuid.uuid4().hex}/kept",
        "s3": lambda: f"{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}",
        "gs": lambda: f"{request.getfixturevalue('google_bucket')}/{uuid.uuid4().hex}",
        "az": lambda: f"{request.getfixturevalue('azure_container')}/{uuid.uuid4().hex}",
        "webhdfs": lambda: f"{request.getfixturevalue('hdfs_url')}/{uuid.uuid4().hex}",
    }
    place = place_of(storages[request.param]())
    place.make_dirs()
    yield place
    if place.exists():
        place.remove(with_content=True)


def test_nothing_is_overwritten_unless_it_is_asked_for(folder: Place) -> None:
    file, other = folder / "a.txt", folder / "b.txt"
    file.write(b"one")
    other.write(b"two")
    with pytest.raises(Conflict, match=r"a\.txt is there already"):
        file.write(b"x")
    with pytest.raises(Conflict, match=r"a\.txt is there already"):
        other.copy(file)
    with pytest.raises(Conflict, match=r"a\.txt is there already"):
        other.rename(file)
    assert (file.read(), file.size()) == (b"one", 3)
    file.write(b"three", overwrite=True)
    other.rename(file, overwrite=True)
    assert (file.read(), other.exists()) == (b"two", False)


def test_what_another_writes_meanwhile_is_not_overwritten(folder: Place) -> None:
    file = folder / "a.txt"

    def late() -> None:
        with file.writer() as writer:
            writer.write(b"late")
            file.write(b"first")

    with pytest.raises(Conflict, match=r"a\.txt is there already"):
        late()
    assert file.read() == b"first"


def test_a_folder_needs_the_one_above_unless_all_are_asked_for(folder: Place) -> None:
    deep = folder / "a" / "b"
    if folder.scheme in ("s3", "gs", "az"):
        assert not deep.exists()
        (deep / "file").write(b"x")
        assert deep.is_dir()
        assert folder.is_dir()
        return
    with pytest.raises(NotFound):
        deep.make_dir()
    with pytest.raises(NotFound, match="there is no folder"):
        (deep / "file").write(b"")
    deep.make_dirs()
    deep.make_dirs()
    assert deep.is_dir()
    with pytest.raises(Conflict):
        deep.make_dir()


def test_a_walk_and_a_pattern_go_by_name(folder: Place) -> None:
    (folder / "b").make_dir()
    for name in ("z.csv", "b/c.csv", "a.csv", "a.txt", "_done"):
        (folder / name).write(name.encode())
    assert [str(one) for one in folder.walk()] == [
        str(folder / name) for name in ("_done", "a.csv", "a.txt", "z.csv", "b/c.csv")
    ]
    assert folder.sizes() == {"_done": 5, "a.csv": 5, "a.txt": 5, "z.csv": 5, "b/c.csv": 7}
    assert (folder / "none").sizes() == {}
    assert [one.name for one in (folder / "*.csv").matching()] == ["a.csv", "z.csv"]
    assert [one.name for one in folder.matching()] == ["a.csv", "a.txt", "z.csv"]
    with pytest.raises(NotFound, match="there is no file"):
        (folder / "*.parquet").matching()


def test_a_folder_that_holds_something_is_not_removed_by_accident(folder: Place) -> None:
    (folder / "a").write(b"x")
    with pytest.raises(Conflict, match="is not empty"):
        folder.remove()
    (folder / "a").remove()
    with pytest.raises(NotFound):
        (folder / "a").remove()
    with pytest.raises(NotFound):
        (folder / "a").open()


def test_a_write_that_fails_leaves_nothing(folder: Place) -> None:
    def half() -> None:
        with (folder / "a").writer() as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert not folder.exists() or folder.children() == []


def test_a_tree_is_copied_between_storages(folder: Place, tmp_path: Path) -> None:
    (folder / "b").make_dir()
    (folder / "a").write(b"one")
    (folder / "b" / "c").write(b"two")
    with folder.as_local() as local:
        assert (local / "b" / "c").read_bytes() == b"two"
    assert folder.copy_tree(place_of(tmp_path / "copy")) == 2
    assert (tmp_path / "copy" / "a").read_bytes() == b"one"


def test_a_name_node_that_does_not_answer_is_unavailable_and_none_is_refused(free_port: int) -> None:
    with pytest.raises(Unavailable, match=f"webhdfs://127.0.0.1:{free_port}/a.csv cannot be reached"):
        place_of(f"webhdfs://127.0.0.1:{free_port}/a.csv").read()
    for wrong in ("webhdfs:///a.csv", "webhdfs://node:http/a.csv"):
        with pytest.raises(InvalidInput, match="names no name node, expected webhdfs://HOST:PORT/PATH"):
            place_of(wrong)


def test_an_unknown_scheme_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(InvalidInput, match=r"unknown scheme 's4'; known are file, memory, s3, gs, az, webhdfs"):
        place_of("s4://bucket/a.csv")


def test_a_storage_whose_package_is_not_installed_is_refused_with_the_way_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(_registry, "gs", raising=False)  # where another test has imported it
    with pytest.raises(InvalidInput, match=r"pip install 'headrace\[gs\]'; here it is not installed"):
        place_of("gs://bucket/a.csv")
