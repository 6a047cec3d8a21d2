"""Arrays by path in numpy's npz files: one file, or shards with an index.

    checkpoint/weights.npz                       all of them, where they fit into one shard
    checkpoint/weights-00001-of-00003.npz, ...   otherwise: arrays in order of path, each whole in one shard
    checkpoint/tables.data                       another name of a file of the version's export that has big arrays
    checkpoint/index.json                        {"shards": {name: {"bytes", "sha256", "tensors": [paths]}},
                                                  "tables": {path: {"dtype", "shape", "offset"}}}: in tables.data

Equal arrays give equal bytes, so a shard in which nothing has changed has the digest that it had. What tables.data has
is in no shard: of a big table a version moves and stores its bytes once.
"""

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.counted import counted
from common.errors import DataLoss
from common.registry.files import digest_of
from common.whole_files import whole_file, write_whole

WHOLE, TABLES, INDEX = "weights.npz", "tables.data", "index.json"
_EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)
_PIECE_BYTES = 1024 * 1024
_SHARDS = "weights-*-of-*.npz"
Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Elsewhere:
    """Arrays that a file beside the checkpoint has: `offsets` in it by path, in bytes."""

    file: Path = Path()
    offsets: Mapping[str, int] = field(default_factory=dict)


def write(folder: Path, arrays: Arrays, *, shard_bytes: int, elsewhere: Elsewhere | None = None) -> None:
    """Weights that `folder` held are gone afterwards; each file is written aside first.

    Args:
        elsewhere: what need not be written; the file gets a second name here.
    """
    (folder / TABLES).unlink(missing_ok=True)
    tables = dict(elsewhere.offsets) if elsewhere and _linked(elsewhere.file, folder / TABLES) else {}
    groups = _groups({path: one for path, one in arrays.items() if path not in tables}, shard_bytes)
    names = (
        [WHOLE] if len(groups) == 1 else [f"weights-{n:05}-of-{len(groups):05}.npz" for n in range(1, len(groups) + 1)]
    )
    shards = {}
    for name, paths in zip(names, groups, strict=True):
        write_one(folder / name, {path: arrays[path] for path in paths})
        if len(names) > 1 or tables:
            shards[name] = {
                "bytes": (folder / name).stat().st_size,
                "sha256": digest_of(folder / name),
                "tensors": paths,
            }
    for path in [*folder.glob(_SHARDS), folder / WHOLE]:
        if path.name not in names:
            path.unlink(missing_ok=True)
    (folder / INDEX).unlink(missing_ok=True)
    if shards:
        index: dict[str, Any] = {"shards": shards}
        if tables:
            index["tables"] = {
                path: {"dtype": arrays[path].dtype.str, "shape": list(arrays[path].shape), "offset": tables[path]}
                for path in sorted(tables)
            }
        content = json.dumps(index, sort_keys=True, indent=2).encode() + b"\n"
        write_whole(folder / INDEX, content, flush=False)


def _linked(file: Path, name: Path) -> bool:
    """False where the file system has no second names."""
    name.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, name)
    except OSError:
        return False
    return True


def write_one(path: Path, arrays: Arrays) -> None:
    """numpy's npz of all of them, uncompressed, written aside; equal arrays give equal bytes, since its dates are fixed
    (np.savez stamps the current time). Not flushed to the disk: readers look at a file's digest or checksums."""
    with whole_file(path, flush=False) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            array, header = np.asarray(arrays[name], order="C"), io.BytesIO()
            np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
            entry = zipfile.ZipInfo(f"{name}.npy", _EPOCH_OF_ZIP)
            entry.file_size = header.tell() + array.nbytes
            with archive.open(entry, "w") as member:
                member.write(header.getvalue())
                content = array.reshape(-1).view(np.uint8).data
                for start in range(0, array.nbytes, _PIECE_BYTES):
                    member.write(content[start : start + _PIECE_BYTES])


def read(folder: Path) -> dict[str, NDArray[np.generic]]:
    """Raises DataLoss, OSError, ValueError or zipfile.BadZipFile where a file is missing or not what `write` writes."""
    if not (folder / INDEX).exists():
        return _arrays((folder / WHOLE).read_bytes())
    index = json.loads((folder / INDEX).read_bytes())
    shards = index["shards"]
    found: dict[str, NDArray[np.generic]] = {}
    for name, said in sorted(shards.items()):
        content = (folder / name).read_bytes() if (folder / name).exists() else None
        if content is None or hashlib.sha256(content).hexdigest() != said["sha256"]:
            what = "is missing" if content is None else "is damaged"
            held = ", ".join(said["tensors"][:3]) + (" ..." if len(said["tensors"]) > 3 else "")
            raise DataLoss(
                f"shard {name} of {len(shards)} {what}; it holds {counted(len(said['tensors']), 'tensor')}: {held}"
            )
        found |= _arrays(content)
    found |= {path: _table(folder / TABLES, **place) for path, place in index.get("tables", {}).items()}
    return {path: found[path] for path in sorted(found)}


def _groups(arrays: Arrays, limit: int) -> list[list[str]]:
    """Paths in order, as many to a shard as fit; an array over the limit has one alone."""
    groups: list[list[str]] = [[]]
    size = 0
    for path in sorted(arrays):
        if groups[-1] and size + arrays[path].nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += arrays[path].nbytes
    return groups


def _arrays(content: bytes) -> dict[str, NDArray[np.generic]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {path: stored[path] for path in stored.files}


def _table(file: Path, *, dtype: str, shape: list[int], offset: int) -> NDArray[np.generic]:
    count = math.prod(shape)
    found: NDArray[np.generic] = np.fromfile(file, np.dtype(dtype), count, offset=offset)
    if len(found) != count:
        raise DataLoss(f"{file.name} ends before the table of shape {shape} at {offset}")
    return found.reshape(shape)
