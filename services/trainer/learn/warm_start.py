"""Where a model's first weights come from when not from its seed: a version of any model, or a file of its definition.

Arrays are found by path (`rename` maps paths there to paths here), rows of an estimator's tables by what they mean.
Optimizer slots start new. The bytes are fixed by the definition: a file's by its digest, a version's never change.
"""

import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from common.counted import counted
from common.definition import identity
from common.definition.identity import Run, VariableMeaning
from common.definition.training import is_meant
from common.definition.warm_start import WarmStart
from common.errors import InvalidInput
from services.trainer.families.port import Arrays, Carrying, Trainable
from services.trainer.learn.checkpoint import Checkpoint

_MODEL = "model/"
_NUMBERS = "fiub"
_UNREADABLE = (
    OSError, ValueError, EOFError, RuntimeError, KeyError, MemoryError, TypeError, OverflowError, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip
"""What numpy, h5py and zipfile raise for damaged files."""
_MOST_TIMES, _ALWAYS_READ_BYTES = 100, 64 * 1024 * 1024
"""The factor by which a file may grow when it is read, and the bytes to which every file may."""


@dataclass(frozen=True)
class Source:
    """Attributes:
    arrays: by path in the source, without kind.
    meaning: of the rows of its variables, by the same paths.
    words: of word vectors, row by row; `arrays` then holds one array, under "".
    is_by_place: paths are a layer's name and the place of a variable in it, as in hidden/0.
    """

    digest: str
    arrays: Arrays
    meaning: Mapping[str, VariableMeaning] = field(default_factory=dict)
    words: tuple[str, ...] | None = None
    is_by_place: bool = False


def source_of_version(checkpoint: Checkpoint, digest: str) -> Source:
    """What a version answers with: averages where it keeps them."""
    arrays = {path.removeprefix(_MODEL): array for path, array in checkpoint.arrays.items() if path.startswith(_MODEL)}
    averages = checkpoint.state.get("averages", {})
    arrays |= {path.removeprefix(_MODEL): checkpoint.arrays[average] for path, average in averages.items()}
    return Source(digest, arrays, identity.from_mapping(checkpoint.identity)[0])


def source_of_file(path: str, content: bytes) -> Source:
    """Raises InvalidInput: the file is not what its name says, or would take far more memory than it has bytes."""
    digest = hashlib.sha256(content).hexdigest()
    try:
        if path.endswith((".txt", ".vec")):
            return _word_vectors(path, content, digest)
        if path.endswith(".h5"):
            return Source(digest, _hdf5(content))
        if path.endswith(".keras"):
            return Source(digest, _keras(content), is_by_place=True)
        arrays = _npz(content)
        if arrays.keys() != {"words", "vectors"}:
            return Source(digest, arrays)
        words = tuple(w.decode() if isinstance(w, bytes) else str(w) for w in arrays["words"].tolist())
        if arrays["vectors"].dtype.kind not in _NUMBERS:
            raise ValueError(f"vectors holds {arrays['vectors'].dtype}, no numbers")
        return Source(digest, {"": arrays["vectors"]}, words=words)
    except _UNREADABLE as error:
        raise InvalidInput(f"warm_start: {path} cannot be read: {error}") from error


def start(
    training: Trainable, section: WarmStart, source: Source, after: Mapping[str, VariableMeaning]
) -> dict[str, Any]:
    """Puts the source's values into the model; optimizer and step stay as they are.

    Args:
        after: what the rows of the model's own variables mean.

    Returns:
        JSON-ready, for the version's lineage: source, digest, loaded, renamed and skipped paths, rows that moved or are
        new, one sentence each.

    Raises:
        InvalidInput: nothing fits, a pattern or a name means nothing, or a shape differs.
    """
    own = {path.removeprefix(_MODEL): array for path, array in training.captured().items() if path.startswith(_MODEL)}
    meant = {pattern: {path for path in own if is_meant(path, pattern)} for pattern in section.variables}
    if idle := [pattern for pattern, paths in meant.items() if not paths]:
        raise InvalidInput(f"warm_start: variables {', '.join(idle)} means none of {', '.join(sorted(own))}")
    wanted = set().union(*meant.values())
    if source.words is not None:
        source = _as_table(source, section, wanted, after, own)
    if source.is_by_place:
        source = _named(source, section, [path.removeprefix(_MODEL) for path in training.paths])
    renamed = _renamed(section, source, own)
    if section.file:
        _check_values(source)
    arrays = {here: source.arrays[there] for there, here in renamed.items() if here in wanted}
    if not arrays:
        raise InvalidInput(
            f"warm_start: {section.source} has none of {', '.join(sorted(wanted))}; it has "
            f"{', '.join(sorted(source.arrays))}; rename says which is which"
        )
    before = {renamed[path]: meaning for path, meaning in source.meaning.items() if path in renamed}
    carrying = Carrying(
        {path: meaning for path, meaning in before.items() if path in arrays and path in after},
        {path: meaning for path, meaning in after.items() if path in arrays and path in before},
    )
    try:
        report = training.carry({_MODEL + path: a for path, a in arrays.items()}, step=training.step, carrying=carrying)
    except InvalidInput as error:
        raise InvalidInput(f"warm_start from {section.source}: {error.message}") from error
    return {
        "from": section.source,
        "digest": source.digest,
        "loaded": sorted(arrays),
        "renamed": {there: here for there, here in sorted(renamed.items()) if here in arrays and here != there},
        "new": sorted(wanted - arrays.keys()),
        "skipped": sorted(there for there in source.arrays if renamed.get(there) not in arrays),
        "rows": list(report.get("rows", ())),
    }


def _renamed(section: WarmStart, source: Source, own: Arrays) -> dict[str, str]:
    """Path there to path here, without those there whose place another one takes by `rename`. Raises InvalidInput: a
    name that `rename` has is none there, or none here, or two take one place."""
    for names, paths, where in (
        (section.rename.keys(), source.arrays, f"{section.source} has none; it has"),
        (section.rename.values(), own, "the model has none; it has"),
    ):
        idle = sorted(name for name in names if not any(path == name or path.startswith(f"{name}/") for path in paths))
        if idle:
            raise InvalidInput(f"warm_start: rename says {', '.join(idle)}, and {where} {', '.join(sorted(paths))}")
    renamed = {path: section.renamed(path) for path in source.arrays}
    taken: dict[str, str] = {}
    for there, here in renamed.items():
        if there != here and taken.setdefault(here, there) != there:
            raise InvalidInput(f"warm_start: rename gives {here} both {taken[here]} and {there}")
    return {there: here for there, here in renamed.items() if taken.get(here, there) == there}


def _named(source: Source, section: WarmStart, own: Sequence[str]) -> Source:
    """hidden/0 as hidden/kernel where the model has such a layer. `own`: its paths, as Keras lists them."""
    arrays = dict[str, NDArray[np.generic]]()
    for path, array in source.arrays.items():
        layer, _, place = path.rpartition("/")
        names = [name for name in own if name.rpartition("/")[0] == section.renamed(layer)]
        is_there = place.isdigit() and int(place) < len(names)
        arrays[f"{layer}/{names[int(place)].rpartition('/')[2]}" if is_there else path] = array
    return replace(source, arrays=arrays)


def _as_table(
    source: Source, section: WarmStart, wanted: set[str], after: Mapping[str, VariableMeaning], own: Arrays
) -> Source:
    """Word vectors as the table of a vocabulary: its words name its rows."""
    tables = {
        path: next((run for run in after[path].axes[0] if run.label[0] == "word" and run.keys is not None), None)
        for path in wanted
        if path in after and len(after[path].axes) == 2
    }
    found = {path: run for path, run in tables.items() if run is not None}
    if len(found) != 1:
        raise InvalidInput(
            f"warm_start: word vectors start one table over a vocabulary; variables {', '.join(section.variables)} "
            f"means {', '.join(sorted(found)) or 'none'}"
        )
    ((path, run),) = found.items()
    vectors = np.asarray(source.arrays[""], np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != own[path].shape[1] or len(vectors) != len(source.words or ()):
        raise InvalidInput(
            f"warm_start: the vectors of {section.source} have shape {list(vectors.shape)}, {path} has rows of "
            f"{own[path].shape[1]}; set the embedding's dimension to the vectors' length"
        )
    words = Run(run.label, len(vectors), source.words)
    return Source(source.digest, {path: vectors}, {path: VariableMeaning(((words,), after[path].axes[1]))})


def _word_vectors(path: str, content: bytes, digest: str) -> Source:
    """As word2vec and GloVe write them; word2vec's first line says count and length."""
    lines = [line for line in content.decode().split("\n") if line.strip()]
    heading = lines[0].split() if lines else []
    if len(heading) == 2 and all(map(str.isdecimal, heading)):
        lines = lines[1:]
        if len(lines) != int(heading[0]):
            raise InvalidInput(
                f"warm_start: {path} says that it has {counted(int(heading[0]), 'word')}, and has {len(lines)}: is "
                "it whole?"
            )
    rows = [line.rstrip().rsplit(" ", len(lines[0].rstrip().split(" ")) - 1) for line in lines]
    lengths = {len(row) for row in rows}
    words = tuple(row[0] for row in rows)
    if len(lengths) != 1 or lengths == {1} or len(set(words)) != len(words):
        raise InvalidInput(f"warm_start: {path} must have a word and its numbers in every line, each word once")
    return Source(digest, {"": np.array([[float(v) for v in row[1:]] for row in rows], np.float32)}, words=words)


def _npz(content: bytes) -> dict[str, NDArray[np.generic]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        _check_size(sum(member.file_size for member in archive.infolist()), content)
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {name.removeprefix(_MODEL): stored[name] for name in stored.files}


def _keras(content: bytes) -> dict[str, NDArray[np.generic]]:
    """Layer's name and place of the variable to array. Nothing of the file is run: its weights are HDF5."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        _check_size(sum(member.file_size for member in archive.infolist()), content)
        weights = archive.read("model.weights.h5")
    names = dict[str, str]()

    def visit(path: str, item: object) -> None:
        if isinstance(item, h5py.Group) and isinstance(item.attrs.get("name"), str):
            names[path] = item.attrs["name"]

    with h5py.File(io.BytesIO(weights), "r") as file:
        file.visititems(visit)
    arrays = dict[str, NDArray[np.generic]]()
    for path, array in _hdf5(weights).items():
        if path.startswith("optimizer/"):
            continue
        group, _, place = path.rpartition("/")
        named = f"{names.get(group, group)}/{place}"
        if named in arrays:
            raise ValueError(f"two of its layers are called {names.get(group, group)}; save_weights keeps them apart")
        arrays[named] = array
    return arrays


def _hdf5(content: bytes) -> dict[str, NDArray[np.generic]]:
    """Datasets by their path in the file, as Keras's save_weights writes them: layers/dense/vars/0."""
    arrays: dict[str, NDArray[np.generic]] = {}

    def visit(name: str, item: object) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.external or item.is_virtual:
            raise ValueError(f"{name} takes its values from another file")
        if item.dtype.kind not in _NUMBERS:
            raise ValueError(f"{name} holds {item.dtype}, no numbers")
        part_bytes = math.prod(item.chunks or ()) * item.dtype.itemsize  # a packed part is unpacked whole
        _check_size(sum(array.nbytes for array in arrays.values()) + max(item.nbytes, part_bytes), content)
        arrays[name] = np.asarray(item[()])

    with h5py.File(io.BytesIO(content), "r") as file:
        file.visititems(visit)
    return arrays


def _check_size(read_bytes: int, content: bytes) -> None:
    """Raises ValueError where a file would grow without measure."""
    most = max(_ALWAYS_READ_BYTES, _MOST_TIMES * len(content))
    if read_bytes > most:
        raise ValueError(f"its {len(content)} bytes would become {read_bytes}, at most {most} are read")


def _check_values(source: Source) -> None:
    """Raises InvalidInput: words among the numbers, or values that no training could go on from."""
    for path, array in source.arrays.items():
        if array.dtype.kind not in _NUMBERS or not np.isfinite(np.asarray(array, np.float64)).all():
            raise InvalidInput(f"warm_start: {path or 'a vector'} holds values that are no finite numbers")
