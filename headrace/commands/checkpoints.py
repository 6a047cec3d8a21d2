"""checkpoint show, export: what a version's next round starts from, tensor by tensor."""

import io
import json
import math
import re
import tempfile
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.counted import counted
from common.definition.row_labels import labels_of
from common.errors import DataLoss, InvalidInput, NotFound
from common.suggestions import did_you_mean
from headrace.commands.model_files import chosen_version
from headrace.commands.session import CommandApp, Session, print_table
from headrace.commands.terminal import echo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[np.generic]]

app = CommandApp(help="Look into the weights and state from which the next round starts.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="MODEL[@VERSION]")]
_TABLES, _INDEX = "checkpoint/tables.data", "checkpoint/index.json"
_WEIGHTS = re.compile(r"checkpoint/weights(-\d{5}-of-\d{5})?\.npz")
_MEANING, _STATE = "checkpoint/identity.json", "checkpoint/state.json"


@app.command()
def show(session: Session, name: Name) -> None:
    """List every tensor: weights, the optimizer's slots, statistics; with type, shape, norm and whether it is trained;
    and the rows of learned vocabularies."""
    stored = _read(session, name, beside=_STATE)
    title, arrays, shards = stored.title, stored.arrays, stored.shards
    found = {path: _facts(array) for path, array in arrays.items()}
    for path, facts in found.items() if len(set(shards.values())) > 1 else ():
        facts["shard"] = shards[path]
    for path, facts in found.items() if "frozen" in stored.beside else ():
        if path.startswith("model/"):
            facts["trainable"] = path not in stored.beside["frozen"]
    vocabularies = _vocabularies(arrays)

    def print_text() -> None:
        rows = [
            [
                path,
                facts["dtype"],
                facts["shape"],
                _shown(facts["norm"]),
                facts.get("trainable", "-"),
                facts.get("shard", "-"),
            ]
            for path, facts in found.items()
        ]
        columns = ("tensor", "dtype", "shape", ">norm", "trainable", "shard")
        print_table(title, columns, rows)
        for feature, counts in vocabularies.items():
            echo(f"{feature}: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
        slots = sum(path.startswith("optimizer/") for path in found)
        echo(
            f"{counted(len(found), 'tensor')}, {slots} of them the optimizer's, "
            f"{sum(a.nbytes for a in arrays.values()):,} bytes"
        )

    session.show({"version": title, "tensors": found, "vocabularies": vocabularies}, print_text)


@app.command()
def export(
    session: Session,
    name: Name,
    to: Annotated[Path, typer.Option("--to", metavar="PREFIX", help="Writes PREFIX.index and PREFIX.data-*.")],
    projector: Annotated[
        str,
        typer.Option(metavar="TABLE", help="Write an embedding table for TensorBoard's projector into the folder TO."),
    ] = "",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PATTERN", help="Tensors by path, as in model/hidden_*.")
    ] = None,
) -> None:
    """Write a checkpoint that tf.train.Checkpoint and tf.train.load_checkpoint read. Needs TensorFlow here.

    With --projector: vectors, words and projector_config.pbtxt of one table, without TensorFlow.
    """
    from headrace.local.inspect import run

    if projector and only:
        raise InvalidInput("--projector names one table; leave --only out")
    if projector:
        _export_table(session, name, projector, to)
        return
    stored = _read(session, name)
    title, arrays = stored.title, _chosen(stored, only or [])
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        import numpy as np

        source = Path(folder) / "weights.npz"
        with zipfile.ZipFile(source, "w") as file:  # np.savez takes no name with a slash as a keyword
            for path, array in arrays.items():
                with file.open(f"{path}.npy", "w") as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        run("checkpoint", source, to.absolute())
    session.show(
        {"version": title, "prefix": str(to), "tensors": len(arrays)},
        lambda: echo(f"{counted(len(arrays), 'tensor')} of {title} in {to}.index and {to}.data-00000-of-00001"),
    )


def _export_table(session: Session, name: str, table: str, to: Path) -> None:
    stored = _read(session, name, beside=_MEANING)
    title, arrays, meaning = stored.title, stored.arrays, stored.beside
    path = _table_path(arrays, table, title)
    vectors = arrays[path]
    labels = labels_of(meaning, path.removeprefix("model/"), len(vectors))
    to.mkdir(parents=True, exist_ok=True)
    (to / "vectors.tsv").write_text("".join("\t".join(map(repr, row)) + "\n" for row in vectors.tolist()))
    (to / "labels.tsv").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    config = (
        f'embeddings {{\n  tensor_name: "{table}"\n  tensor_path: "vectors.tsv"\n'
        f'  tensor_shape: {vectors.shape[0]}\n  tensor_shape: {vectors.shape[1]}\n  metadata_path: "labels.tsv"\n}}\n'
    )
    (to / "projector_config.pbtxt").write_text(config)
    session.show(
        {"version": title, "table": path, "rows": len(vectors), "dimension": int(vectors.shape[1]), "folder": str(to)},
        lambda: echo(f"{counted(len(vectors), 'row')} of {path} of {title}; see them: tensorboard --logdir {to}"),
    )


def _table_path(arrays: "Arrays", table: str, title: str) -> str:
    tables = [path for path, array in arrays.items() if path.startswith("model/") and array.ndim == 2]
    whole = [path for path in tables if table in (path, path.removeprefix("model/"))]
    found = whole or [path for path in tables if table in path.split("/") or f"{table}_table" in path.split("/")]
    if len(found) == 1:
        return found[0]
    known = ", ".join(path.removeprefix("model/") for path in tables) or "none"
    finding = f"{len(found)} tables are called {table}" if found else f"{title} has no table {table}"
    raise NotFound(f"{finding}; those with rows and columns are: {known}")


@dataclass(frozen=True)
class _Stored:
    """Attributes:
    arrays: in order of path.
    shards: the file that each is in.
    beside: what a JSON file beside the weights says, where it was asked for: the meaning of rows, or the state.
    """

    title: str
    arrays: "Arrays"
    shards: dict[str, str]
    beside: dict[str, Any]


def _chosen(stored: _Stored, patterns: list[str]) -> "Arrays":
    """Of the tensors those that a pattern means; all without patterns."""
    arrays = stored.arrays
    for pattern in patterns:
        if not any(fnmatchcase(path, pattern) for path in arrays):
            known = did_you_mean([pattern], arrays)
            raise NotFound(f"{stored.title} has no tensor {pattern}{known}; see checkpoint show")
    if not patterns:
        return arrays
    return {path: array for path, array in arrays.items() if any(fnmatchcase(path, given) for given in patterns)}


def _read(session: Session, name: str, *, beside: str = "") -> _Stored:
    try:
        import numpy as np
    except ImportError as error:
        raise InvalidInput("checkpoints are numpy's files: pip install 'headrace[client]'") from error
    client = session.client()
    version = chosen_version(client, name)
    entries = sorted((file for file in version.files if _WEIGHTS.fullmatch(file.path)), key=lambda file: file.path)
    title = f"{version.model}@{version.version}"
    if not entries:
        raise NotFound(f"{title} has no checkpoint/weights.npz; no round can start from it")
    arrays: Arrays = {}
    shards: dict[str, str] = {}
    for entry in entries:
        try:
            with np.load(io.BytesIO(client.file(entry)), allow_pickle=False) as file:
                arrays |= {path: file[path] for path in file.files}
                shards |= dict.fromkeys(file.files, entry.path.rpartition("/")[2])
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise DataLoss(f"{entry.path} of {title} cannot be read: {error}") from error
    by_path = {file.path: file for file in version.files}
    if _TABLES in by_path:  # services/trainer/learn/weights_files.py
        held = client.file(by_path[_TABLES])
        for path, place in json.loads(client.file(by_path[_INDEX]))["tables"].items():
            count = math.prod(place["shape"])
            table = np.frombuffer(held, place["dtype"], count, place["offset"])
            arrays[path], shards[path] = table.reshape(place["shape"]), _TABLES.rpartition("/")[2]
    found = json.loads(client.file(by_path[beside])) if beside in by_path else {}
    return _Stored(title, {path: arrays[path] for path in sorted(arrays)}, shards, found)


def _vocabularies(arrays: "Arrays") -> dict[str, dict[str, int]]:
    """By feature with a learned vocabulary: how many words have a row; where words are forgotten, also how many wait
    for one, and how many came and left in the last round (services/trainer/features/words.py writes these)."""
    found = dict[str, dict[str, int]]()
    for path in arrays:
        prefix, _, part = path.rpartition("/")
        if part != "word_lengths":
            continue
        counts = found[prefix.removeprefix("statistics/")] = {"rows": len(arrays[path])}
        if f"{prefix}/totals" in arrays:
            counts["candidates"] = len(arrays[f"{prefix}/candidate_lengths"])
            rounds, examples, *turned_over = (int(number) for number in arrays[f"{prefix}/totals"])
            counts |= dict(zip(("admitted", "expired", "evicted"), turned_over, strict=True))
            counts |= {"rounds": rounds, "examples": examples}
    return found


def _facts(array: "NDArray[np.generic]") -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": list(array.shape), "norm": _norm(array)}


def _norm(array: "NDArray[Any]") -> float | None:
    """Euclidean; None for what is no number."""
    import numpy as np

    return float(np.linalg.norm(array.astype(np.float64).ravel())) if array.dtype.kind in "biuf" else None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
