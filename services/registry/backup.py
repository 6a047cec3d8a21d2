"""A copy of the registry while it runs, and a check of a copy: `python -m services.registry.backup DATA_DIR TARGET`.

The catalog is copied first, at one moment (SQLite's backup; of PostgreSQL one transaction's rows, into a file of
SQLite), and the files that it names after it: files never change, so every file that the catalog of that moment names
is still there, unless garbage collection has come in between. Then it is taken again. Files that are kept at a URL
(REGISTRY_BLOBS) are copied from there. Where REGISTRY_DATABASE is set, DATA_DIR is that of the registry that leads. To
restore, make TARGET the DATA_DIR of a registry; or, with REGISTRY_DATABASE and REGISTRY_BLOBS set and no registry
running there, `DATA_DIR --into-database` copies its catalog into the empty database and its files to the URL. `--verify
DIR` checks every file of a copy, or of the DATA_DIR of a registry that is stopped, against its digest. Exit status 1:
something is missing or damaged. TARGET and the DIR of `--verify` may be URLs (common/storage.py).
"""

import argparse
import hashlib
import shutil
import sqlite3
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, create_engine, insert, select
from sqlalchemy.exc import DBAPIError

from common.counted import counted
from common.errors import Conflict, DataLoss, HeadraceError, NotFound, Unavailable
from common.storage import LOCAL, Place, place_of
from services.registry.settings import RegistrySettings
from services.registry.store.blobs import CHUNK_BYTES
from services.registry.store.database import Database
from services.registry.store.folder import assemble
from services.registry.store.postgres import lead, open_engine, reset_sequences, url_of
from services.registry.store.shelf import claim, elsewhere_of, path_of
from services.registry.store.tables import metadata, streams
from services.registry.versions.collection import needed_digests

_CATALOG = "catalog.sqlite"
_TRIES = 3
_ROWS = 1000
_LOCK_TIMEOUT_SECONDS = 30.0


def back_up(data_dir: Path, target: Path, database: URL | None = None) -> int:
    """Copies the registry in `data_dir` to `target`, a new folder; returns the number of files beside the catalog.

    Args:
        database: where the catalog is, if not in the folder.

    A crash leaves a folder TARGET.part, which the next call replaces.

    Raises:
        NotFound: there is no registry. Conflict: the target exists.
        DataLoss: files that the catalog names are not there, at each of three tries.
    """
    if not (database or (data_dir / _CATALOG).is_file()):
        raise NotFound(f"there is no registry in {data_dir}: {_CATALOG} is missing")
    if target.exists():
        raise Conflict(f"{target} exists; name a new folder")
    aside = target.with_name(target.name + ".part")
    for _ in range(_TRIES):
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "blobs").mkdir(parents=True)
        if database:
            _copy_from_postgres(database, aside / _CATALOG)
        else:
            _copy_catalog(data_dir / _CATALOG, aside / _CATALOG)
        needed = _needed(aside / _CATALOG)
        if all(_copy_blob(data_dir, aside, digest) for digest in sorted(needed)):
            aside.rename(target)
            return len(needed)
    raise DataLoss(f"files that the catalog in {data_dir} names are not there; `--verify` lists them")


def back_up_to(data_dir: Path, target: Place, database: URL | None = None) -> int:
    """The same to a folder of any storage. A crash leaves files there and no catalog, so that it is no copy yet. Raises
    what back_up raises."""
    if target.is_local:
        return back_up(data_dir, Path(target.path), database)
    if (target / _CATALOG).exists():
        raise Conflict(f"{target} exists; name a new folder")
    with tempfile.TemporaryDirectory(prefix="headrace-backup-") as directory:
        count = back_up(data_dir, Path(directory) / "copy", database)
        copy = Place(LOCAL, directory) / "copy"
        for file in (copy / "blobs").walk():
            there = target / "blobs" / file.parent.name
            there.make_dirs()
            file.copy(there / file.name, overwrite=True)
        target.make_dirs()
        (copy / _CATALOG).copy(target / _CATALOG)
    return count


def into_database(data_dir: Path, database: URL, blobs: str) -> int:
    """Copies the registry in `data_dir`, which does not run, into an empty database, and its files to a URL; returns
    the number of files.

    Raises:
        NotFound: there is no registry, or one of its files is missing. Conflict: a catalog is there, or another
            registry's files are. Unavailable: a registry leads there, or the database cannot be reached.
    """
    if not (data_dir / _CATALOG).is_file():
        raise NotFound(f"there is no registry in {data_dir}: {_CATALOG} is missing")
    needed = _needed(data_dir / _CATALOG)
    leadership = lead(open_engine(database), uuid.uuid4().hex, is_stopped=lambda _: True, report=lambda _: None)
    try:
        Database.in_file(data_dir / _CATALOG).close()  # with all columns of this release
        Database.in_postgres(leadership)
        with tempfile.TemporaryDirectory(prefix="headrace-backup-") as directory:
            claim(Path(directory), blobs, owner=leadership.owner)
        there = place_of(blobs)
        for digest in sorted(needed):
            (there / digest[:2]).make_dirs()
            with _whole(data_dir, digest) as file:
                file.copy(there / digest[:2] / digest, overwrite=True)
        with _opened(data_dir / _CATALOG) as source, leadership.engine.begin() as target:
            leadership.check(target)
            if target.execute(select(streams.c.name).limit(1)).first():
                raise Conflict("the database holds a catalog; name an empty database")
            _copy_rows(source, target)
            reset_sequences(target, metadata)
    finally:
        leadership.close()
    return len(needed)


def verify(directory: Path) -> tuple[int, list[str]]:
    """(files looked at, a sentence for each that is missing or damaged). Raises NotFound: there is no registry."""
    if not (directory / _CATALOG).is_file():
        raise NotFound(f"there is no registry in {directory}: {_CATALOG} is missing")
    faults = []
    needed = sorted(_needed(directory / _CATALOG))
    for digest in needed:
        try:
            with _whole(directory, digest) as file:
                found = _digest_of(file)
        except NotFound:
            faults.append(f"{digest} is missing")
        except DataLoss as error:
            faults.append(error.message)
        else:
            if found != digest:
                faults.append(f"{digest} is damaged: its bytes hash to {found}")
    return len(needed), faults


def _copy_catalog(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=_LOCK_TIMEOUT_SECONDS)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)


def _copy_from_postgres(database: URL, target: Path) -> None:
    Database.in_file(target).close()
    engine = open_engine(database)
    try:
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as source, _opened(target) as copy:
            _copy_rows(source, copy)
            copy.commit()
    except DBAPIError as error:
        raise Unavailable(f"the catalog cannot be read: {str(error.orig).strip()}") from error
    finally:
        engine.dispose()


def _copy_rows(source: Connection, target: Connection) -> None:
    for table in metadata.sorted_tables:
        rows = source.execution_options(yield_per=_ROWS).execute(select(table))
        for part in rows.mappings().partitions():
            target.execute(insert(table), [dict(row) for row in part])


@contextmanager
def _opened(catalog: Path) -> Iterator[Connection]:
    engine = create_engine(f"sqlite:///{catalog}")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _needed(catalog: Path) -> set[str]:
    with _opened(catalog) as connection:
        return needed_digests(connection)


def _copy_blob(data_dir: Path, target: Path, digest: str) -> bool:
    copy = path_of(target, digest)
    copy.parent.mkdir(exist_ok=True)
    try:
        with _whole(data_dir, digest) as file:
            file.copy(place_of(copy))
    except NotFound:
        return False
    return True


def _digest_of(blob: Place) -> str:
    hashed = hashlib.sha256()
    with blob.open() as file:
        while chunk := file.read(CHUNK_BYTES):
            hashed.update(chunk)
    return hashed.hexdigest()


@contextmanager
def _whole(directory: Path, digest: str) -> Iterator[Place]:
    """A file of a registry or of a copy, wherever its files are; a file with a patch is put together. Raises NotFound,
    DataLoss."""
    if elsewhere := elsewhere_of(directory):
        yield elsewhere.place / digest[:2] / digest
        return
    path = path_of(directory, digest)
    if path.exists():
        yield place_of(path)
        return
    with tempfile.TemporaryDirectory(prefix="headrace-backup-") as aside:
        whole = Path(aside) / digest
        try:
            assemble(directory, digest, whole)
        except FileNotFoundError:
            raise NotFound(f"file {digest} is missing") from None
        yield place_of(whole)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", help="the registry's REGISTRY_DATA_DIR")
    parser.add_argument("target", nargs="?", help="a new folder, by path or URL")
    parser.add_argument("--verify", action="store_true", help="check data_dir instead of copying it")
    parser.add_argument("--into-database", action="store_true", help="copy data_dir to REGISTRY_DATABASE")
    parsed = parser.parse_args(arguments)
    if [parsed.verify, parsed.into_database, parsed.target is not None].count(True) != 1:
        parser.error("give a TARGET to copy to, or --verify, or --into-database")
    try:
        settings = RegistrySettings.from_environment()
        database = url_of(settings.database, settings.database_password_file) if settings.database else None
        if parsed.into_database:
            if database is None or not settings.blobs:
                parser.error("--into-database needs REGISTRY_DATABASE and REGISTRY_BLOBS")
            stored = into_database(Path(parsed.data_dir), database, settings.blobs)
            print(f"catalog and {counted(stored, 'file')} in the database and at {settings.blobs}")
            return 0
        if parsed.verify:
            with place_of(parsed.data_dir).as_local() as directory:
                count, faults = verify(directory)
            print("\n".join([*faults, f"{counted(count, 'file')}, {len(faults)} missing or damaged"]))
            return 1 if faults else 0
        stored = back_up_to(Path(parsed.data_dir), place_of(parsed.target), database)
        print(f"catalog and {counted(stored, 'file')} in {parsed.target}")
    except HeadraceError as error:
        print(f"backup: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
