"""Images that are changed at random before each step (`training.augment`), by Keras's layers.

Draws follow from the round's seed, the model's step and the layer's place, so nothing of them is in a checkpoint: a
round that is resumed, and its rebuild, change each batch as the round did.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from common.definition.batches import MIXING
from common.definition.keras_names import AUGMENTATIONS, Named
from common.schema import Feature
from services.trainer.families.heads import ByHead
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Columns
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.keras_internals import calls_of
from services.trainer.learn.optimizers import inner_of
from services.trainer.shards.bits import is_seed, keyed

_DRAWS = 1024
"""Of one layer in one step, at most."""


class Augmentation:
    """Raises:
    DefinitionFailedError: the network lacks the feature, a layer refuses its options, or labels cannot be mixed.
    """

    def __init__(self, model: BuiltModel, optimizer: keras.optimizers.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._seed = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._layers: dict[str, list[keras.layers.Layer]] = {}
        section = model.definition.training.augment
        for name, named in section.items():
            if name not in model.wiring.columns:
                raise DefinitionFailedError(
                    f"{model.definition.module}: training.augment names {name}, which the network does not take"
                )
            with blame_definition(str(model.definition.module), doing=f"augment of {name}"):
                self._layers[name] = _layers(named, model.schema.feature(name))
        if any(layer.name in MIXING for layers in section.values() for layer in layers):
            self._check_labels()

    def begin(self, seed: int) -> None:
        self._seed.assign(seed % 2**32)

    def __call__(self, columns: Columns, labels: ByHead) -> tuple[Columns, ByHead]:
        """Of a batch."""
        changed = dict(columns)
        number = 0
        for name, layers in self._layers.items():
            for layer in layers:
                number = self._seed_layer(layer, number)
                given = {"images": changed[name]}
                if isinstance(layer, keras.layers.MixUp | keras.layers.CutMix):
                    given["labels"], widths = _joined(labels)
                    found = layer(given, training=True)
                    labels = _apart(found["labels"], widths, labels)
                else:
                    found = {"images": layer(given["images"], training=True)}
                changed[name] = found["images"]
            changed[name] = tf.ensure_shape(changed[name], columns[name].shape)
        return changed, labels

    def facts(self) -> dict[str, list[str]]:
        """By feature, the layers with the options that the definition gives."""
        section = self._model.definition.training.augment
        return {name: [layer.label for layer in layers] for name, layers in section.items()}

    def _seed_layer(self, layer: keras.layers.Layer, number: int) -> int:
        """Sets its generators; the number of the next generator."""
        counter = tf.cast(calls_of(inner_of(self._optimizer)).value, tf.int64) * _DRAWS % 2**32
        for variable in filter(is_seed, layer.variables):
            state = tf.cast(tf.stack([self._seed.read_value(), counter]), variable.dtype)
            variable.assign(keyed(variable, state, number))
            number += 1
        return number

    def _check_labels(self) -> None:
        for head in self._model.heads:
            if not head.label_spec.dtype.is_floating or head.task == "ranking" or self._model.has_weights:
                raise DefinitionFailedError(
                    f"training: augment: mix_up and cut_mix mix labels; head {head.name} ({head.task}) needs labels of "
                    f"float32 in every event, and events that weigh the same"
                )


def _layers(named: Sequence[Named], feature: Feature) -> list[keras.layers.Layer]:
    found: list[keras.layers.Layer] = []
    height, width, _ = feature.seen_shape
    for layer in named:
        entry, options = AUGMENTATIONS[layer.name], dict[str, Any](layer.options)
        if feature.image is not None and "value_range" in entry.options:
            options.setdefault("value_range", feature.image.scale)
        found.append(getattr(keras.layers, entry.keras_name)(**options, seed=0, dtype="float32"))
        if layer.name == "random_crop":  # the network takes images of one size
            found.append(keras.layers.Resizing(height, width, dtype="float32"))
    return found


def _joined(labels: ByHead) -> tuple[tf.Tensor, list[int]]:
    """float32 [n, columns of all heads], and how many each has."""
    parts = [value if value.shape.rank == 2 else value[:, tf.newaxis] for value in labels.values()]
    return tf.concat(parts, axis=1), [int(part.shape[1]) for part in parts]


def _apart(joined: tf.Tensor, widths: Sequence[int], labels: ByHead) -> dict[str, tf.Tensor]:
    parts = tf.split(joined, widths, axis=1)
    return {
        name: tf.reshape(part, tf.shape(before)) for (name, before), part in zip(labels.items(), parts, strict=True)
    }
