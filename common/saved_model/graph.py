"""saved_model.pb as plain values: its graphs with their tags, signatures and operations.

The messages are a small copy of TensorFlow's (protos/saved_model.proto), so that the registry and the command line can
read what TensorFlow wrote without having it.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from common.errors import InvalidInput
from protos import saved_model_pb2, tfserving_pb2

SERVE = "serve"
"""The tag of what is meant to be served."""
MODEL_FILE = "saved_model.pb"
_TRIED_FROM_BYTES = 16 << 20
_MOST_READ_BYTES = 2 << 30
_TRIAL_SECONDS = 120.0
_LOADERS_OWN = "__saved_model_"
"""Signatures that begin so are the loader's, and no client calls them."""
Proto = saved_model_pb2.SavedModel
GraphProto = saved_model_pb2.MetaGraphDef


@dataclass(frozen=True)
class Tensor:
    """One input or output of a signature.

    Attributes:
        dtype: TensorFlow's name of the type: float32, int64, string, ...
        shape: -1 for a size that is not fixed; None when not even the rank is known.
    """

    dtype: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        sizes = "?" if self.shape is None else ", ".join("n" if size < 0 else str(size) for size in self.shape)
        return f"{self.dtype} [{sizes}]"


@dataclass(frozen=True)
class Signature:
    """What a client may call.

    Attributes:
        method: predict, classify, regress, or what else stands there.
        inputs, outputs: by name, in its order.
    """

    method: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


@dataclass(frozen=True)
class Graph:
    """One graph of a SavedModel.

    Attributes:
        signatures: those that can be called, by name, in its order.
        operations: how often each stands in the graph and its functions.
        assets: names of the files below assets/.
        producer: the version of TensorFlow that wrote it.
    """

    tags: tuple[str, ...]
    signatures: Mapping[str, Signature]
    operations: Mapping[str, int]
    assets: tuple[str, ...]
    producer: str


def read(content: bytes) -> Proto:
    """saved_model.pb as its message. Raises InvalidInput: it is none, holds no graph, or would take more than 2 GiB
    beside its bytes."""
    _check_memory(content)
    try:
        found = Proto.FromString(content)
    except DecodeError as error:
        raise InvalidInput(f"{MODEL_FILE} ({len(content)} bytes) is not a SavedModel: {error}") from error
    if not found.meta_graphs:
        raise InvalidInput(f"{MODEL_FILE} ({len(content)} bytes) holds no graph")
    return found


def _check_memory(content: bytes) -> None:
    """Empty messages are two bytes each, and fifty times as many once they are read: another process tries."""
    if len(content) < _TRIED_FROM_BYTES:
        return
    most = _MOST_READ_BYTES + 3 * len(content)
    command = [sys.executable, "-m", "common.saved_model.trial", str(most)]
    try:
        tried = subprocess.run(command, input=content, capture_output=True, timeout=_TRIAL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise InvalidInput(f"{MODEL_FILE} ({len(content)} bytes) was not read within {_TRIAL_SECONDS:g} s") from error
    if tried.returncode:
        raise InvalidInput(
            f"{MODEL_FILE} ({len(content)} bytes) is not a SavedModel, or takes more than {_MOST_READ_BYTES >> 20} MiB "
            f"beside its bytes to be read"
        )


def graphs_of(saved_model: Proto) -> tuple[Graph, ...]:
    """Its graphs, in their order."""
    return tuple(graph_of(graph) for graph in saved_model.meta_graphs)


def tagged(saved_model: Proto, tags: tuple[str, ...] = (SERVE,)) -> GraphProto:
    """The graph that has exactly these tags, in any order, as TensorFlow's loader finds it. Raises InvalidInput: there
    is none; the sentence says which there are. Or there are several, and loaders differ in the one that they take."""
    named = [graph for graph in saved_model.meta_graphs if set(graph.meta_info_def.tags) == set(tags)]
    if len(named) > 1:
        raise InvalidInput(f"{len(named)} graphs of the SavedModel are tagged {','.join(tags)}; one is served")
    if named:
        return named[0]
    found = "; ".join(",".join(graph.meta_info_def.tags) or "no tag" for graph in saved_model.meta_graphs)
    raise InvalidInput(f"no graph of the SavedModel is tagged {','.join(tags)}; its graphs are tagged: {found}")


def signatures_of(graph: GraphProto) -> dict[str, Signature]:
    """Those that can be called, in order of name: not the loader's own."""
    return {
        name: Signature(
            signature.method_name.rpartition("/")[2], _tensors(signature.inputs), _tensors(signature.outputs)
        )
        for name, signature in sorted(graph.signature_def.items())
        if not name.startswith(_LOADERS_OWN)
    }


def nodes_of(graph: GraphProto) -> Iterator[saved_model_pb2.NodeDef]:
    """Of the graph itself and of all its functions."""
    yield from graph.graph_def.node
    for function in graph.graph_def.library.function:
        yield from function.node_def


def operations_of(graph: GraphProto) -> Counter[str]:
    """How often each operation is used; calls of the graph's own functions are not counted as operations."""
    functions = {function.signature.name for function in graph.graph_def.library.function}
    return Counter(node.op for node in nodes_of(graph) if node.op not in functions)


def dtype_name(dtype: int) -> str:
    """1 -> "float32": TensorFlow's names, as in Python."""
    try:
        name = tfserving_pb2.DataType.Name(dtype).removeprefix("DT_").lower()
    except ValueError:
        return f"type {dtype}"
    return {"float": "float32", "double": "float64", "half": "float16"}.get(name, name)


def shape_of(shape: tfserving_pb2.TensorShapeProto) -> tuple[int, ...] | None:
    return None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)


def graph_of(graph: GraphProto) -> Graph:
    """As plain values."""
    return Graph(
        tags=tuple(graph.meta_info_def.tags),
        signatures=signatures_of(graph),
        operations=dict(sorted(operations_of(graph).items())),
        assets=tuple(asset.filename for asset in graph.asset_file_def),
        producer=graph.meta_info_def.tensorflow_version,
    )


def _tensors(infos: Mapping[str, tfserving_pb2.TensorInfo]) -> dict[str, Tensor]:
    return {name: Tensor(dtype_name(info.dtype), shape_of(info.tensor_shape)) for name, info in sorted(infos.items())}
