"""Arrays by path in numpy's npz files: one file, or shards with an index.

    checkpoint/weights.npz                       all of them, where they fit into one shard
    checkpoint/weights-00001-of-00003.npz, ...   otherwise: arrays in order of path, each whole in one shard
    checkpoint/index.json                        {"shards": {name: {"bytes", "sha256", "tensors": [paths]}}}

Equal arrays give equal bytes, so a shard in which nothing has changed has the digest that it had.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.counted import counted
from common.errors import DataLoss
from common.whole_files import write_whole

WHOLE, INDEX = "weights.npz", "index.json"
_EPOCH_OF_ZIP = (1980, 1, 1, 0, 0, 0)
_SHARDS = "weights-*-of-*.npz"
Arrays = Mapping[str, NDArray[np.generic]]


def write(folder: Path, arrays: Arrays, *, shard_bytes: int) -> None:
    """Whatever `folder` held of weights is gone afterwards; each file is written aside first."""
    groups = _groups(arrays, shard_bytes)
    names = (
        [WHOLE] if len(groups) == 1 else [f"weights-{n:05}-of-{len(groups):05}.npz" for n in range(1, len(groups) + 1)]
    )
    shards = {}
    for name, paths in zip(names, groups, strict=True):
        content = _npz({path: arrays[path] for path in paths})
        write_whole(folder / name, content)
        shards[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "tensors": paths}
    for path in [*folder.glob(_SHARDS), folder / WHOLE]:
        if path.name not in names:
            path.unlink(missing_ok=True)
    (folder / INDEX).unlink(missing_ok=True)
    if len(names) > 1:
        write_whole(folder / INDEX, json.dumps({"shards": shards}, sort_keys=True, indent=2).encode() + b"\n")


def write_one(path: Path, arrays: Arrays) -> None:
    """All of them in one file, written aside; equal arrays give equal bytes."""
    write_whole(path, _npz(arrays))


def read(folder: Path) -> dict[str, NDArray[np.generic]]:
    """Raises DataLoss, OSError, ValueError or zipfile.BadZipFile where a file is missing or not what `write` writes."""
    if not (folder / INDEX).exists():
        return _arrays((folder / WHOLE).read_bytes())
    shards = json.loads((folder / INDEX).read_bytes())["shards"]
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


def _npz(arrays: Arrays) -> bytes:
    """numpy's npz, uncompressed, with fixed dates: np.savez stamps the current time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(arrays):
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asarray(arrays[path], order="C"), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{path}.npy", _EPOCH_OF_ZIP), content.getbuffer())
    return buffer.getvalue()
