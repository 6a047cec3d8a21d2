"""What preprocessing layers have learned beside their variables: vocabularies and bin boundaries, as checkpoint arrays.

    layers/<name>/words, word_lengths, idf    StringLookup and TextVectorization that adapt (words as UTF-8 bytes)
    layers/<name>/numbers, idf                IntegerLookup that adapts
    layers/<name>/boundaries                  Discretization that adapts
    model/<path>                              Normalization that adapts: variables like any other

A vocabulary or boundaries given in the module's code belong to the code and are not stored.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.keras_internals import layers_of, lookup_of

PREFIX = "layers/"
Arrays = dict[str, NDArray[Any]]
_Lookup = (keras.layers.StringLookup, keras.layers.IntegerLookup, keras.layers.TextVectorization)


def adaptable(network: keras.Model) -> dict[str, keras.layers.Layer]:
    """The layers that learn from data before training, by name."""
    found: dict[str, keras.layers.Layer] = {}
    inner: set[int] = set()
    for layer in _layers(network):
        if isinstance(layer, keras.layers.TextVectorization):
            inner.add(id(lookup_of(layer)))
        if id(layer) not in inner and _adapts(layer):
            found[layer.name if layer.name not in found else f"{layer.name}-{len(found)}"] = layer
    return found


def adapt(
    network: keras.Model,
    function: Callable[[keras.Model, tf.data.Dataset], object],
    specs: Mapping[str, tf.TensorSpec],
    blocks: Callable[[], Iterator[Mapping[str, tf.Tensor]]],
) -> None:
    """Calls a module's own adapt(network, dataset); the dataset may be gone over several times.

    Args:
        specs: of the network's inputs.
        blocks: gives the inputs of the round's trained examples, block by block, in their order.
    """

    def batches() -> Iterator[dict[str, tf.Tensor]]:
        for columns in blocks():
            yield {name: columns[name] for name in specs}

    function(network, tf.data.Dataset.from_generator(batches, output_signature=dict(specs)))


def capture(network: keras.Model) -> Arrays:
    """Equal layers give equal arrays; a layer that has not been adapted gives none."""
    arrays: Arrays = {}
    for name, layer in adaptable(network).items():
        arrays |= {f"{PREFIX}{name}/{part}": array for part, array in _captured(layer)}
    return arrays


def constants(network: keras.Model) -> Arrays:
    """What a graph of the network holds as constants although a round has learned it: of every layer that adapts."""
    normal = [layer for layer in adaptable(network).values() if isinstance(layer, keras.layers.Normalization)]
    return capture(network) | {
        variable.path: np.asarray(variable.value.numpy()) for layer in normal for variable in layer.variables
    }


def restore(network: keras.Model, arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """Puts back what is there, after the variables are; returns the names of adaptable layers of which nothing is."""
    missing = []
    for name, layer in adaptable(network).items():
        prefix = f"{PREFIX}{name}/"
        parts = {path.removeprefix(prefix): array for path, array in arrays.items() if path.startswith(prefix)}
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
            if not all(f"model/{variable.path}" in arrays for variable in layer.variables):
                missing.append(name)
        elif parts and not _are_equal(dict(_captured(layer)), parts):
            _restore(layer, parts)
        elif not parts:
            missing.append(name)
    return tuple(missing)


def holds(network: keras.Model, arrays: Mapping[str, NDArray[Any]]) -> bool:
    """Whether these are what the layers have learned, so that what was traced with it stays good."""
    own = capture(network)
    for layer in adaptable(network).values():
        if isinstance(layer, keras.layers.Normalization):
            own |= {f"model/{variable.path}": variable.value.numpy() for variable in layer.variables}
    given = {path: array for path, array in arrays.items() if path.startswith(PREFIX) or path in own}
    return _are_equal(own, given)


def _are_equal(some: Mapping[str, NDArray[Any]], others: Mapping[str, NDArray[Any]]) -> bool:
    return some.keys() == others.keys() and all(np.array_equal(some[path], array) for path, array in others.items())


def _layers(network: keras.Model) -> Iterator[keras.layers.Layer]:
    yield from layers_of(network)


def _adapts(layer: keras.layers.Layer) -> bool:
    if isinstance(layer, keras.layers.TextVectorization):
        return lookup_of(layer).input_vocabulary is None
    if isinstance(layer, keras.layers.StringLookup | keras.layers.IntegerLookup):
        return layer.input_vocabulary is None
    if isinstance(layer, keras.layers.Normalization):
        return layer.input_mean is None
    return isinstance(layer, keras.layers.Discretization) and layer.num_bins is not None


def _captured(layer: keras.layers.Layer) -> list[tuple[str, NDArray[Any]]]:
    if isinstance(layer, keras.layers.Discretization):
        return [] if layer.bin_boundaries is None else [("boundaries", np.array(layer.bin_boundaries, np.float64))]
    if not isinstance(layer, _Lookup):
        return []
    words = layer.get_vocabulary(include_special_tokens=False)
    lookup = lookup_of(layer) if isinstance(layer, keras.layers.TextVectorization) else layer
    if not words:
        return []
    if isinstance(layer, keras.layers.IntegerLookup):
        parts = [("numbers", np.array([int(word) for word in words], np.int64))]
    else:
        encoded = [str(word).encode() for word in words]
        parts = [
            ("words", np.frombuffer(b"".join(encoded), np.uint8)),
            ("word_lengths", np.array([len(word) for word in encoded], np.int64)),
        ]
    if lookup.output_mode == "tf_idf":
        special = len(layer.get_vocabulary()) - len(words)
        parts.append(("idf", np.asarray(lookup.idf_weights_const.numpy())[special : special + len(words)]))
    return parts


def _restore(layer: keras.layers.Layer, parts: Mapping[str, NDArray[Any]]) -> None:
    if isinstance(layer, keras.layers.Discretization):
        layer.bin_boundaries = parts["boundaries"].tolist()
        return
    if "numbers" in parts:
        words: list[Any] = parts["numbers"].tolist()
    else:
        content, ends = parts["words"].tobytes(), np.cumsum(parts["word_lengths"]).tolist()
        words = [content[start:end].decode() for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    if "idf" in parts:
        layer.set_vocabulary(words, idf_weights=parts["idf"])
    else:
        layer.set_vocabulary(words)
