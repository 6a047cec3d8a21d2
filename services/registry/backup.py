"""A copy of the registry while it runs, and a check of one: `python -m services.registry.backup DATA_DIR TARGET`.

The catalog is copied first, at one moment (SQLite's backup), and the files that it names after it: files never change,
so what the catalog of that moment refers to is still there, unless garbage collection has come in between. Then it is
taken again. Files that are kept at a URL (REGISTRY_BLOBS) are copied from there. To restore, make TARGET the DATA_DIR
of a registry. `--verify DIR` checks every file of a copy, or of the DATA_DIR of a registry that is stopped, against its
digest. Exit status 1: something is missing or damaged. TARGET and the DIR of `--verify` may be URLs
(common/storage.py).
"""

import argparse
import hashlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine

from common.counted import counted
from common.errors import Conflict, DataLoss, HeadraceError, NotFound
from common.storage import LOCAL, Place, place_of
from services.registry.store.blobs import CHUNK_BYTES
from services.registry.store.shelf import elsewhere_of, path_of
from services.registry.versions.collection import needed_digests

_CATALOG = "catalog.sqlite"
_TRIES = 3
_LOCK_TIMEOUT_SECONDS = 30.0


def back_up(data_dir: Path, target: Path) -> int:
    """Copies the registry in `data_dir` to `target`, a new folder; returns the number of files beside the catalog.

    A crash leaves a folder TARGET.part, which the next call replaces.

    Raises:
        NotFound: there is no registry. Conflict: the target exists.
        DataLoss: files that the catalog names are not there, at each of three tries.
    """
    if not (data_dir / _CATALOG).is_file():
        raise NotFound(f"there is no registry in {data_dir}: {_CATALOG} is missing")
    if target.exists():
        raise Conflict(f"{target} exists; name a new folder")
    aside = target.with_name(target.name + ".part")
    for _ in range(_TRIES):
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "blobs").mkdir(parents=True)
        _copy_catalog(data_dir / _CATALOG, aside / _CATALOG)
        needed = _needed(aside / _CATALOG)
        if all(_copy_blob(data_dir, aside, digest) for digest in sorted(needed)):
            aside.rename(target)
            return len(needed)
    raise DataLoss(f"files that the catalog in {data_dir} names are not there; `--verify` tells which")


def back_up_to(data_dir: Path, target: Place) -> int:
    """The same to a folder of any storage. A crash leaves files there and no catalog, so that it is no copy yet.

    Raises:
        As back_up.
    """
    if target.is_local:
        return back_up(data_dir, Path(target.path))
    if (target / _CATALOG).exists():
        raise Conflict(f"{target} exists; name a new folder")
    with tempfile.TemporaryDirectory(prefix="headrace-backup-") as directory:
        count = back_up(data_dir, Path(directory) / "copy")
        copy = Place(LOCAL, directory) / "copy"
        for file in (copy / "blobs").walk():
            there = target / "blobs" / file.parent.name
            there.make_dirs()
            file.copy(there / file.name, overwrite=True)
        target.make_dirs()
        (copy / _CATALOG).copy(target / _CATALOG)
    return count


def verify(directory: Path) -> tuple[int, list[str]]:
    """(files looked at, a sentence for each that is missing or damaged). Raises NotFound: there is no registry."""
    if not (directory / _CATALOG).is_file():
        raise NotFound(f"there is no registry in {directory}: {_CATALOG} is missing")
    faults = []
    needed = sorted(_needed(directory / _CATALOG))
    for digest in needed:
        blob = _place_of(directory, digest)
        if not blob.is_file():
            faults.append(f"{digest} is missing")
            continue
        found = _digest_of(blob)
        if found != digest:
            faults.append(f"{digest} is damaged: its bytes hash to {found}")
    return len(needed), faults


def _copy_catalog(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT_SECONDS)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)


def _needed(catalog: Path) -> set[str]:
    engine = create_engine(f"sqlite:///{catalog}")
    try:
        with engine.connect() as connection:
            return needed_digests(connection)
    finally:
        engine.dispose()


def _copy_blob(data_dir: Path, target: Path, digest: str) -> bool:
    copy = path_of(target, digest)
    copy.parent.mkdir(exist_ok=True)
    try:
        _place_of(data_dir, digest).copy(place_of(copy))
    except NotFound:
        return False
    return True


def _digest_of(blob: Place) -> str:
    hashed = hashlib.sha256()
    with blob.open() as file:
        while chunk := file.read(CHUNK_BYTES):
            hashed.update(chunk)
    return hashed.hexdigest()


def _place_of(directory: Path, digest: str) -> Place:
    """Of a file of a registry or of a copy, wherever its files are."""
    elsewhere = elsewhere_of(directory)
    return place_of(path_of(directory, digest)) if elsewhere is None else elsewhere.place / digest[:2] / digest


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", help="the registry's REGISTRY_DATA_DIR")
    parser.add_argument("target", nargs="?", help="a new folder, by path or URL")
    parser.add_argument("--verify", action="store_true", help="check data_dir instead of copying it")
    parsed = parser.parse_args(arguments)
    if parsed.verify == (parsed.target is not None):
        parser.error("give a TARGET to copy to, or --verify")
    try:
        if parsed.verify:
            with place_of(parsed.data_dir).as_local() as directory:
                count, faults = verify(directory)
            print("\n".join([*faults, f"{counted(count, 'file')}, {len(faults)} missing or damaged"]))
            return 1 if faults else 0
        stored = back_up_to(Path(parsed.data_dir), place_of(parsed.target))
        print(f"catalog and {counted(stored, 'file')} in {parsed.target}")
    except HeadraceError as error:
        print(f"backup: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
