"""`training.bottleneck`: a model cut behind a layer whose base does not learn. Training takes what that layer returns.

The base is everything between the inputs and the layer. It runs as in inference, once per block of examples, and what
it returned is kept on disk: a file per digest of what went into the base, of its graph and of its variables. So a
second pass, attempt, round or model over the same examples reads it; one other byte anywhere is another file. Losing
the files loses time: what is computed again has the same bits.
"""

import hashlib
import os
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.model import Definition
from common.whole_files import whole_file
from services.trainer.families.compiled import Compiled
from services.trainer.families.model_fn import ModelFnNetwork
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.families.user_module import UserModule
from services.trainer.families.wiring import Wiring
from services.trainer.keras_internals import node_of, nodes_of

COLUMN = "bottleneck"
_MAX_BYTES = 2 * 1024**3
"""On disk, of all models of a trainer; the longest unread go first."""
Tensors = dict[str, tf.Tensor]


@dataclass
class Bottleneck:
    """Attributes:
    layer: its name.
    wiring: of the whole network, from the stream's inputs.
    beside: columns that the rest of the network takes beside what the layer returns.
    base: the network's inputs, arranged, to what the layer returns, float [n, ...].
    tail: [what the layer returned, *beside] to what the network returns.
    """

    layer: str
    wiring: Wiring
    beside: tuple[str, ...]
    base: keras.Model
    tail: keras.Model
    chunk_rows: int
    path: str
    directory: Path | None = None
    computed: int = 0
    read: int = 0
    seconds: float = 0.0
    _digest: str = ""
    _call: Any = field(default=None, repr=False)

    def begin_again(self) -> None:
        """For a further round: the base may have been given other weights."""
        self.computed, self.read, self.seconds, self._digest = 0, 0, 0.0, ""

    def columns_of(self, given: Tensors) -> Tensors:
        """What the tail takes, from the network's inputs by name."""
        began = time.monotonic()
        columns = {name: given[name] for name in self.beside}
        columns[COLUMN] = tf.constant(self._features(given))
        self.seconds += time.monotonic() - began
        return columns

    def report(self) -> dict[str, Any]:
        """For the lineage. Examples are counted each time that the base would have had to run over them."""
        return {"layer": self.layer, "base_digest": self.digest(), "computed": self.computed, "from_cache": self.read}

    def digest(self) -> str:
        """SHA-256 over what the base computes and with which numbers and libraries."""
        if not self._digest:
            graph = self._compiled().get_concrete_function().graph.as_graph_def()
            found = hashlib.sha256(f"{tf.__version__} {keras.__version__} {self.chunk_rows}".encode())
            found.update(repr(sorted(device.device_type for device in tf.config.list_physical_devices())).encode())
            found.update(graph.SerializeToString(deterministic=True))
            for variable in self.base.variables:
                found.update(f"{variable.path} {variable.shape} {variable.dtype}".encode())
                found.update(np.ascontiguousarray(variable.value.numpy()).tobytes())
            self._digest = found.hexdigest()
        return self._digest

    def _features(self, given: Tensors) -> NDArray[Any]:
        names = sorted(self._inputs_by_name())
        arrays = {name: given[name].numpy() for name in names}
        count = len(arrays[names[0]])
        file = self.directory / f"{self._digest_of(arrays)}.npz" if self.directory else None
        found = _read(file, self.base.outputs[0].dtype)
        if found is not None:
            self.read += count
            return found
        call = self._compiled()
        with blame_definition(self.path, doing=f"what is before bottleneck {self.layer}"):
            parts = [
                call({name: given[name][start : start + self.chunk_rows] for name in names}).numpy()
                for start in range(0, max(count, 1), self.chunk_rows)
            ]
        self.computed += count
        features = np.concatenate(parts)
        _keep(file, features)
        return features

    def _inputs_by_name(self) -> dict[str, keras.KerasTensor]:
        return {tensor.name: tensor for tensor in self.base.inputs}

    def _compiled(self) -> Any:
        if self._call is None:
            specs = {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in self._inputs_by_name().items()}
            names = [tensor.name for tensor in self.base.inputs]
            self._call = tf.function(
                lambda columns: self.base([columns[name] for name in names], training=False),
                input_signature=[specs],
                autograph=False,
            )
        return self._call

    def _digest_of(self, arrays: Mapping[str, NDArray[Any]]) -> str:
        found = hashlib.sha256(self.digest().encode())
        for name, array in arrays.items():
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            if array.dtype.kind == "O":  # words have no bytes of one length
                found.update(repr(array.tolist()).encode())
            else:
                found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()


def cut(
    definition: Definition, network: keras.Model, wiring: Wiring, module: UserModule, compiled: Compiled
) -> Bottleneck | None:
    """Where the definition asks for it. Raises DefinitionFailedError: the model cannot be cut there."""
    name, path = definition.training.bottleneck, str(definition.module)
    if not name:
        return None
    why = ""
    if isinstance(network, ModelFnNetwork):
        why = "model_fn has no layers that could be cut"
    elif compiled.has_train_step or compiled.computes_loss:
        why = "the module's own train_step or compute_loss takes the model's inputs"
    elif module.adapt is not None:
        why = "the module's adapt takes the model's inputs; give the layers their state in the code"
    if why:
        raise DefinitionFailedError(f"{path}: training.bottleneck is {name}, and {why}")
    return _cut(network, wiring, name, chunk_rows=definition.training.batch_size, path=path)


def _cut(network: keras.Model, wiring: Wiring, name: str, *, chunk_rows: int, path: str) -> Bottleneck:
    """Cuts the network behind a layer, and takes the base out of training. Raises DefinitionFailedError: there is no
    such cut."""
    tensor = _output_of(network, name, path)
    whole = network.outputs
    base_layers, base_inputs = _above([tensor], stop=())
    tail_layers, tail_inputs = _above(whole, stop=(tensor,))
    if id(tensor) not in {id(end) for end in tail_inputs}:
        raise DefinitionFailedError(f"{path}: no output depends on layer {name}, which training.bottleneck names")
    beside = [symbolic for symbolic in network.inputs if any(symbolic is end for end in tail_inputs)]
    if not base_layers:
        raise DefinitionFailedError(f"{path}: training.bottleneck is {name}, and there is nothing to compute before it")
    base_inputs = [symbolic for symbolic in network.inputs if any(symbolic is end for end in base_inputs)]
    base = keras.Model(base_inputs, tensor)
    resources = tf.train.TrackableView(base).descendants()
    if any(isinstance(resource, tf.saved_model.experimental.TrackableResource) for resource in resources):
        raise DefinitionFailedError(
            f"{path}: before bottleneck {name} is a layer with a lookup table; only numbers can be kept by their digest"
        )
    for layer in base_layers:
        layer.trainable = False
    if not any(layer.trainable_variables for layer in tail_layers if isinstance(layer, keras.layers.Layer)):
        raise DefinitionFailedError(f"{path}: nothing behind bottleneck {name} learns")
    return Bottleneck(
        layer=name,
        wiring=wiring,
        beside=tuple(symbolic.name for symbolic in beside),
        base=base,
        tail=keras.Model([tensor, *beside], keras.tree.pack_sequence_as(_structure(network), whole)),
        chunk_rows=chunk_rows,
        path=path,
    )


def tail_wiring(cut_at: Bottleneck) -> Wiring:
    """How the tail is called."""
    whole, first = cut_at.wiring, cut_at.tail.inputs[0]
    named = keras.KerasTensor(first.shape, first.dtype, name=COLUMN)
    inputs = [named, *(whole.columns[name] for name in cut_at.beside)]
    return Wiring(inputs, whole.names, whole.shapes, whole.taught, is_named=whole.is_named)


def _structure(network: keras.Model) -> Any:
    return network.outputs[0] if isinstance(network, keras.Sequential) else network.output


def _output_of(network: keras.Model, name: str, path: str) -> keras.KerasTensor:
    """What the layer of that name returns where the network calls it."""
    calls = nodes_of(network)
    if calls is None:
        raise DefinitionFailedError(
            f"{path}: training.bottleneck is {name}, and a subclassed model cannot be cut; build it with the "
            f"functional API"
        )
    nodes = [node for node in calls if not node.is_input]
    found = [node for node in nodes if node.operation.name == name]
    if len(found) != 1 or len(found[0].outputs) != 1:
        known = ", ".join(sorted({node.operation.name for node in nodes}))
        how = f"called {len(found)} times" if found else "none of the model's layers"
        how = "a layer of several outputs" if len(found) == 1 else how
        raise DefinitionFailedError(f"{path}: training.bottleneck is {name}, which is {how}: {known}")
    return found[0].outputs[0]


def _above(tensors: list[keras.KerasTensor], stop: tuple[keras.KerasTensor, ...]) -> tuple[list[Any], list[Any]]:
    """What computes the tensors: the operations, and the tensors at which it begins (inputs and those of `stop`)."""
    operations: dict[int, Any] = {}
    begins: dict[int, Any] = {}
    seen, left = set[int](), list(tensors)
    while left:
        tensor = left.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        node = node_of(tensor)
        if node.is_input or any(tensor is end for end in stop):
            begins[id(tensor)] = tensor
            continue
        operations[id(node.operation)] = node.operation
        left += node.input_tensors
    return list(operations.values()), list(begins.values())


def _read(file: Path | None, dtype: str) -> NDArray[Any] | None:
    """None where it is not there or damaged (each member of the archive has a CRC)."""
    if file is None or not file.exists():
        return None
    try:
        with np.load(file, allow_pickle=False) as stored:
            features: NDArray[Any] = stored["features"].view(tf.as_dtype(dtype).as_numpy_dtype)  # bfloat16 has no name
        os.utime(file)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return features


def _keep(file: Path | None, features: NDArray[Any]) -> None:
    """Written aside and renamed. A disk that takes no more costs the next round its time, and this one nothing."""
    if file is None or features.nbytes > _MAX_BYTES:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        _make_room(file.parent, features.nbytes)
        with whole_file(file, flush=False) as target:
            np.savez(target, features=features)


def _make_room(directory: Path, needed_bytes: int) -> None:
    """A crash of another process while it wrote may have left a part; it goes with the oldest."""
    files = sorted(directory.iterdir(), key=lambda file: file.stat().st_mtime)
    size = sum(file.stat().st_size for file in files) + needed_bytes
    for file in files:
        if size <= _MAX_BYTES:
            return
        size -= file.stat().st_size
        file.unlink(missing_ok=True)
