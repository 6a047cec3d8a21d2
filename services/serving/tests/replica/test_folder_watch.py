"""Versions in folders: which count, when they count, and what a policy takes of them."""

import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.storage import place_of
from services.serving.options.model_server_config import ConfiguredModel, VersionPolicy, models_of, single_model_config
from services.serving.replica.sources.folder_watch import FolderWatch, Found
from services.serving.replica.sources.version_folders import missing_part, versions_in
from testing.rows import each_row

_DEADLINE_SECONDS = 60.0
_GROWING_SECONDS = 2.5
_GRAPH = b"... saver_filename:0 ..."


def write_version(base: Path, name: str, *, graph: bytes = _GRAPH) -> Path:
    """A folder like a SavedModel's."""
    version = base / name
    (version / "variables").mkdir(parents=True)
    (version / "variables/variables.data-00000-of-00001").write_bytes(b"weights")
    (version / "variables/variables.index").write_bytes(b"index")
    (version / "saved_model.pb").write_bytes(graph)
    return version


class Watcher:
    def __init__(self, poll_seconds: float, mirrors_dir: Path) -> None:
        self.found: queue.SimpleQueue[Found] = queue.SimpleQueue()
        self.watch = FolderWatch(poll_seconds=poll_seconds, mirrors_dir=mirrors_dir, on_found=self.found.put)
        self.watch.start()

    def wait_for(self, holds: Callable[[Found], bool]) -> Found:
        while True:
            found = self.found.get(timeout=_DEADLINE_SECONDS)
            if holds(found):
                return found

    def wait_versions(self, **expected: tuple[int, ...]) -> Found:
        return self.wait_for(lambda found: found.versions == expected)


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[float], Watcher]]:
    started: list[Watcher] = []

    def begin(poll_seconds: float = 0.1) -> Watcher:
        started.append(Watcher(poll_seconds, tmp_path_factory.mktemp("mirrors")))
        return started[-1]

    yield begin
    for watcher in started:
        watcher.watch.stop()


@pytest.mark.covers("srv-version-policy")
@each_row(
    ("policy", "taken"),
    [
        (VersionPolicy(), (10,)), (VersionPolicy(count=2), (10, 9)), (VersionPolicy("all"), (10, 9, 2)),
        (VersionPolicy("specific", versions=(2, 9, 77)), (9, 2)), (VersionPolicy(count=9), (10, 9, 2)),
    ],
)  # fmt: skip
def test_a_policy_takes_versions_newest_first(policy: VersionPolicy, taken: tuple[int, ...]) -> None:
    assert policy.select([2, 9, 10]) == taken


def test_only_folders_whose_whole_name_is_a_number_are_versions(tmp_path: Path) -> None:
    for name in ("1", "002", "2", "v3", "4.tmp", "-5", "x6", ".7", "9223372036854775808", "9223372036854775807"):
        (tmp_path / name).mkdir()
    (tmp_path / "8").write_text("no folder")
    found, notes = versions_in(tmp_path)
    assert sorted(found) == [1, 2, 2**63 - 1]
    assert len(notes) == 1
    assert "the same version" in notes[0]


@each_row(
    ("gone", "missing"),
    [
        ("saved_model.pb", "saved_model.pb"), ("variables", "variables/variables.index"),
        ("variables/variables.index", "variables/variables.index"),
        ("variables/variables.data-00000-of-00001", "1 of 1 files variables/variables.data-*"),
    ],
)  # fmt: skip
def test_what_a_version_lacks_is_named(tmp_path: Path, gone: str, missing: str) -> None:
    version = write_version(tmp_path, "1")
    assert missing_part(version, platform="tensorflow") == ""
    path = version / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert missing_part(version, platform="tensorflow") == missing


def test_a_shard_that_is_not_there_yet_is_missed(tmp_path: Path) -> None:
    version = write_version(tmp_path, "1")
    data = version / "variables/variables.data-00000-of-00001"
    data.rename(data.with_name("variables.data-00000-of-00003"))
    assert missing_part(version, platform="tensorflow") == "2 of 3 files variables/variables.data-*"


def test_a_graph_without_variables_is_whole_by_itself_and_so_is_any_file_of_another_platform(tmp_path: Path) -> None:
    version = write_version(tmp_path, "1", graph=b"no saver")
    shutil.rmtree(version / "variables")
    assert missing_part(version, platform="tensorflow") == ""
    (version / "saved_model.pb").rename(version / "table.json")
    assert missing_part(version, platform="lookup_table") == ""


@pytest.mark.covers("srv-lifecycle")
def test_versions_come_and_go(start: Callable[[float], Watcher], tmp_path: Path) -> None:
    watcher = start(0.1)
    watcher.watch.watch({"m": ConfiguredModel("m", tmp_path)})
    empty = watcher.wait_versions(m=())
    assert "there is no version" in empty.problems["m"]
    write_version(tmp_path, "1")
    watcher.wait_versions(m=(1,))
    version = write_version(tmp_path, "2")
    assert watcher.wait_versions(m=(2,)).directories == {("m", 2): version}
    shutil.rmtree(version)
    watcher.wait_versions(m=(1,))
    shutil.rmtree(tmp_path / "1")
    watcher.wait_versions(m=())


def test_a_version_that_is_being_copied_is_not_taken_before_it_is_whole_and_quiet(
    start: Callable[[float], Watcher], tmp_path: Path
) -> None:
    write_version(tmp_path, "1")
    watcher = start(0.5)
    watcher.watch.watch({"m": ConfiguredModel("m", tmp_path)})
    watcher.wait_versions(m=(1,))
    version = tmp_path / "2"
    version.mkdir()
    watcher.wait_for(lambda found: "version 2 is not taken yet: it lacks saved_model.pb" in found.problems.get("m", ""))
    (version / "saved_model.pb").write_bytes(_GRAPH)
    watcher.wait_for(lambda found: "it lacks variables/variables.index" in found.problems.get("m", ""))
    (version / "variables").mkdir()
    (version / "variables/variables.index").write_bytes(b"index")
    watcher.wait_for(lambda found: "it lacks 1 of 1 files" in found.problems.get("m", ""))
    (version / "variables/variables.data-00000-of-00001").write_bytes(b"weights")
    taken = watcher.wait_versions(m=(2,))
    assert taken.problems == {}


def test_a_version_whose_files_still_grow_is_not_taken(start: Callable[[float], Watcher], tmp_path: Path) -> None:
    version = write_version(tmp_path, "1")
    is_growing, pause = threading.Event(), threading.Event()
    is_growing.set()

    def grow() -> None:
        with (version / "variables/variables.data-00000-of-00001").open("ab") as file:
            until = time.monotonic() + _GROWING_SECONDS
            while time.monotonic() < until:
                file.write(b"more")
                file.flush()
                pause.wait(0.02)
        is_growing.clear()

    grower = threading.Thread(target=grow)
    grower.start()
    watcher = start(1.0)
    watcher.watch.watch({"m": ConfiguredModel("m", tmp_path)})
    waiting = watcher.wait_versions(m=())
    assert waiting.problems["m"].startswith("version 1 is not taken yet: its files change")
    assert not waiting.is_settled
    watcher.wait_versions(m=(1,))
    assert not is_growing.is_set()
    grower.join()


def test_a_version_that_failed_gets_another_chance_when_its_files_change(
    start: Callable[[float], Watcher], tmp_path: Path
) -> None:
    version = write_version(tmp_path, "1")
    watcher = start(0.2)
    watcher.watch.watch({"m": ConfiguredModel("m", tmp_path)})
    watcher.wait_versions(m=(1,))
    (version / "saved_model.pb").write_bytes(b"other bytes while it runs are its own affair")
    watcher.watch.note_failed({("m", 1)})
    watcher.wait_versions(m=())
    watcher.wait_versions(m=(1,))


def test_a_folder_that_cannot_be_read_costs_no_model_anything(
    start: Callable[[float], Watcher], tmp_path: Path
) -> None:
    write_version(tmp_path / "a", "1")
    write_version(tmp_path / "b", "1")
    watcher = start(0.1)
    watcher.watch.watch({name: ConfiguredModel(name, tmp_path / name) for name in "abc"})
    first = watcher.wait_versions(a=(1,), b=(1,), c=())
    assert "cannot read its folder" in first.problems["c"]
    (tmp_path / "a").rename(tmp_path / "away")
    write_version(tmp_path / "b", "2")
    both = watcher.wait_versions(a=(1,), b=(2,), c=())
    assert "cannot read its folder" in both.problems["a"]


def test_a_poll_of_0_looks_once_per_configuration_and_a_negative_one_never(
    start: Callable[[float], Watcher], tmp_path: Path
) -> None:
    write_version(tmp_path / "m", "1")
    once, never = start(0.0), start(-1.0)
    models = {"m": ConfiguredModel("m", tmp_path / "m")}
    never.watch.watch(models)
    once.watch.watch(models)
    once.wait_versions(m=(1,))
    write_version(tmp_path / "m", "2")
    write_version(tmp_path / "other", "1")
    observer = start(0.1)
    observer.watch.watch(models)
    observer.wait_versions(m=(2,))
    assert once.found.empty()
    once.watch.watch(models | {"other": ConfiguredModel("other", tmp_path / "other")})
    once.wait_versions(m=(2,), other=(1,))
    assert never.found.empty()


def test_pipes_and_circles_of_links_stop_nobody(tmp_path: Path, start: Callable[..., Watcher]) -> None:
    base = tmp_path / "m"
    for number in ("1", "2"):
        write_version(base, number)
    for name in ("a", "b"):
        (base / "1" / name).symlink_to(base / "1")
    (base / "2" / "variables" / "variables.index").unlink()
    os.mkfifo(base / "2" / "variables" / "variables.index")
    watcher = start()
    watcher.watch.watch({"m": ConfiguredModel("m", base, policy=VersionPolicy("all"))})
    found = watcher.wait_versions(m=(1,))
    assert (
        "version 2 is not taken yet: variables/variables.index is no file but a device or pipe" in found.problems["m"]
    )


@pytest.mark.covers("fs-remote", "srv-hot-reload")
def test_versions_of_another_storage_are_copied_kept_and_removed_with_theirs(
    tmp_path: Path, start: Callable[[float], Watcher]
) -> None:
    there = place_of(f"memory://{tmp_path.name}/models")
    there.make_dirs()

    def put(number: str, *, without: str = "") -> None:
        version = write_version(tmp_path / "made", number)
        if without:
            (version / without).unlink()
        place_of(version).copy_tree(there / number)

    put("1")
    model = models_of(single_model_config("m", str(there)), platforms=["tensorflow"])["m"]
    watcher = start(0.1)
    watcher.watch.watch({"m": model})
    first = watcher.wait_versions(m=(1,)).directories["m", 1]
    assert (first / "variables/variables.index").read_bytes() == b"index"
    put("2", without="variables/variables.index")
    waiting = watcher.wait_for(lambda found: "lacks variables/variables.index" in found.problems.get("m", ""))
    assert waiting.versions == {"m": (1,)}, "the one that is whole stays"
    (there / "2" / "variables" / "variables.index").write(b"index")
    assert watcher.wait_versions(m=(2,)).directories["m", 2].parent == first.parent
    (there / "2").remove(with_content=True)
    (there / "1").remove(with_content=True)
    assert "there is no version in memory://" in watcher.wait_versions(m=()).problems["m"]
    assert [path for path in first.parent.iterdir() if path.name.isdecimal()] == []
    there.remove(with_content=True)
    put("3")
    watcher.wait_versions(m=(3,))
    there.remove(with_content=True)
    assert watcher.wait_for(lambda found: "cannot read its folder" in found.problems.get("m", "")).versions == {
        "m": (3,)
    }
