"""Embedding tables as TensorBoard's projector reads them, beside a version's events.

projector_config.pbtxt      names the tables (ProjectorConfig of TensorBoard's plugin)
projector/<n>.tsv           the vectors of one, a row each
projector/<n>.labels.tsv    what each row is: a word, an id, the bin of a hash
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
from google.protobuf import text_format
from numpy.typing import NDArray
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from common.definition.row_labels import labels_of
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Model
from services.trainer.keras_internals import layers_of, table_of
from services.trainer.learn.checkpoint import Checkpoint

_MOST_BYTES = 16 * 1024 * 1024
"""Of the vectors and labels of all tables; those that no longer fit are left out, and the configuration's comments name
them."""
_LONGEST_LABEL = 80
_PREFIX = "model/"


def write(folder: Path, model: Model, final: Checkpoint, *, rows: int) -> None:
    """Nothing where the model has no table.

    Args:
        folder: of the version's events.
        rows: of each table at most, the first ones.
    """
    config, left_out, spent = ProjectorConfig(), list[str](), 0
    for number, (path, table) in enumerate(sorted(_tables(model, final), key=lambda found: found[1].size)):
        kept = table[:rows]
        labels = [label[:_LONGEST_LABEL] for label in labels_of(final.identity, path, len(table), most=rows)]
        vectors = list[str]()
        for row, label in zip(kept, labels, strict=True):
            vectors.append("\t".join(f"{value:.6g}" for value in row.tolist()) + "\n")
            spent += len(vectors[-1]) + len(label.encode()) + 1
            if spent > _MOST_BYTES:
                break
        if spent > _MOST_BYTES:
            left_out.append(path)
            continue
        (folder / "projector").mkdir(parents=True, exist_ok=True)
        embedding = config.embeddings.add(
            tensor_name=path, tensor_path=f"projector/{number}.tsv", metadata_path=f"projector/{number}.labels.tsv",
            tensor_shape=kept.shape,
        )  # fmt: skip
        (folder / embedding.tensor_path).write_text("".join(vectors))
        (folder / embedding.metadata_path).write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    if config.embeddings or left_out:
        remarks = "".join(f"# left out, as they are too large: {path}\n" for path in left_out)
        (folder / "projector_config.pbtxt").write_text(remarks + text_format.MessageToString(config))


def _tables(model: Model, final: Checkpoint) -> Iterator[tuple[str, NDArray[Any]]]:
    """By path, as the checkpoint's identity has it: rows that are looked up, of two numbers or more."""
    known: Mapping[str, Any] = final.identity["variables"]
    of_layers = {variable.path for variable in _embeddings(model)}
    for path, array in final.arrays.items():
        name = path.removeprefix(_PREFIX)
        if name == path or array.ndim != 2 or array.shape[1] < 2 or not array.shape[0]:
            continue
        if name in of_layers or _is_table(known.get(name)):
            yield name, array


def _embeddings(model: Model) -> Iterator[keras.Variable]:
    if isinstance(model, BuiltModel):
        for layer in layers_of(model.network, include_self=True):
            if isinstance(layer, keras.layers.Embedding) and layer.built:
                yield table_of(layer)


def _is_table(meaning: Mapping[str, Any] | None) -> bool:
    if meaning is None or meaning["is_kernel"]:
        return False
    return [run["label"][0] for run in meaning["axes"][1]] == ["dimension"]
