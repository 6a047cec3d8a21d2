"""Folders of versions, and whether a version is there whole. No state.

A version that is being copied must not be taken. Three things speak for a whole one: everything that saved_model.pb
needs is there; nothing in the folder changed between two looks; or nothing in it changed for some time by the files'
change times, which no copying program can set.
"""

import mmap
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from services.serving.options.platform_names import TENSORFLOW, TFLITE

_MOST_ENTRIES = 100_000
_MAX_INT64 = 2**63 - 1
_SAVED_MODEL_NAMES = ("saved_model.pb", "saved_model.pbtxt")
_RESTORES = (b"saver_filename", b"save/restore_all")
"""Operations of a graph that reads its variables from files (TensorFlow 2's and 1's savers)."""
_SHARD = re.compile(r"variables\.data-(\d{5})-of-(\d{5})")


@dataclass(frozen=True)
class Fingerprint:
    """The state of a folder, to compare with another."""

    entries: tuple[tuple[str, int, int], ...]
    """(path, size in bytes, change time in nanoseconds)."""
    odd: str = ""
    """Why nothing may be read from it, in words: a pipe has no end, a folder of links none either."""

    def changed_at(self) -> float:
        """Epoch seconds of the newest change."""
        return max((changed for _, _, changed in self.entries), default=0) / 1e9


def versions_in(base_path: Path) -> tuple[dict[int, Path], list[str]]:
    """The versions of a model, and sentences about left-out folders. Raises OSError: the folder is not there, or cannot
    be read."""
    found: dict[int, Path] = {}
    notes = []
    for path in sorted(base_path.iterdir()):
        if not (path.name.isascii() and path.name.isdecimal()) or int(path.name) > _MAX_INT64 or not path.is_dir():
            continue
        version = int(path.name)
        if version in found:
            notes.append(f"{path.name} and {found[version].name} are the same version; {path.name} is left out")
            continue
        found[version] = path
    return found, notes


def fingerprint(directory: Path) -> Fingerprint | None:
    """None when something disappears while it is looked at. Links are followed, each folder is looked at once."""
    entries: list[tuple[str, int, int]] = []
    folders, seen = [directory], set()
    try:
        while folders:
            folder = folders.pop()
            own = folder.stat()
            if (own.st_dev, own.st_ino) in seen:
                continue
            seen.add((own.st_dev, own.st_ino))
            entries.append((str(folder), 0, own.st_ctime_ns))
            with os.scandir(folder) as found:
                for entry in found:
                    status = entry.stat()
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(Path(entry.path))
                        continue
                    entries.append((entry.path, status.st_size, status.st_ctime_ns))
                    if not stat.S_ISREG(status.st_mode):
                        return Fingerprint(
                            (), f"{Path(entry.path).relative_to(directory)} is no file but a device or pipe"
                        )
            if len(entries) > _MOST_ENTRIES:
                return Fingerprint((), f"it holds more than {_MOST_ENTRIES} files")
    except OSError:
        return None
    return Fingerprint(tuple(sorted(entries)))


def missing_part(directory: Path, *, platform: str) -> str:
    """The missing part of a version, in words; "" for none."""
    if platform == TFLITE:
        return "" if any(directory.glob("*.tflite")) else "a *.tflite file"
    if platform != TENSORFLOW:
        return "" if any(directory.iterdir()) else "any file"
    graph = next((directory / name for name in _SAVED_MODEL_NAMES if (directory / name).is_file()), None)
    if graph is None:
        return "saved_model.pb"
    variables = directory / "variables"
    names = {path.name for path in variables.iterdir()} if variables.is_dir() else set()
    shards = [found for name in names if (found := _SHARD.fullmatch(name))]
    if not names and not _contains(graph, _RESTORES):
        return ""
    if "variables.index" not in names:
        return "variables/variables.index"
    expected = int(shards[0].group(2)) if shards else 1
    if len(shards) < expected:
        return f"{expected - len(shards)} of {expected} files variables/variables.data-*"
    return ""


def _contains(path: Path, words: tuple[bytes, ...]) -> bool:
    if not path.stat().st_size:
        return True  # Nothing was written to it yet.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(word) >= 0 for word in words)
