"""Bytes to what a model sees of them: raw tensors by their dtype and shape, images decoded, resized and scaled.

The same graph in training and in every export, so that a prediction sees what training saw. No bytes at all decode to
zeros: that is what an absent optional tensor or image is. The doors refuse them elsewhere.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.kinds import ITEM_BYTES, ImageKind, TensorKind
from common.schema import Feature, Schema
from services.trainer.features.filling import checked, reason, rows_beyond
from services.trainer.features.parsing import Raw

_HIGHEST = 255.0
_MAKE_NO_GRAY = ("GIF", "BM")
"""How an image begins whose decoder knows colours only."""


def decoded(raw: Raw, features: Sequence[Feature]) -> dict[str, tf.Tensor]:
    """The raw tensors, with values [n, *seen shape] in place of the bytes of tensors and images.

    A tensor with a shape field is filled up with zeros to the largest size of the batch in each direction.
    """
    done = dict(raw)
    for feature in features:
        if feature.image is not None:
            done[feature.name] = _images(raw[feature.name], feature.image)
        elif feature.tensor is not None:
            sizes = raw[feature.tensor.shape_field] if feature.tensor.shape_field else None
            done[feature.name] = _tensors(raw[feature.name], feature.tensor, sizes)
    return done


class Decoder:
    """Decodes blocks of examples and finds out which of them have no values. Compiled once per schema."""

    def __init__(self, schema: Schema) -> None:
        self._features = [feature for feature in schema.features if feature.is_decoded]
        self._names = sorted({name for feature in self._features for name in _needed(feature)})
        self._call = tf.function(lambda raw: decoded(raw, self._features), autograph=False, reduce_retracing=True)

    @property
    def names(self) -> list[str]:
        """Of the features that it decodes."""
        return [feature.name for feature in self._features]

    def __call__(self, raw: Raw) -> tuple[dict[str, tf.Tensor], dict[int, str]]:
        """The raw tensors decoded, and {row: reason} of the rows that cannot be; those hold zeros."""
        if not self._features:
            return dict(raw), {}
        given = {name: raw[name] for name in self._names}
        broken = self._beyond(given)
        if not broken:
            try:
                return {**raw, **self._call(given)}, {}
            except tf.errors.InvalidArgumentError:
                broken = {row: why for row in range(len(given[self._names[0]])) if (why := self._fault(given, row))}
                if not broken:
                    raise
        found, more = self({**raw, **self._without(given, list(broken))})
        return found, broken | more

    def _without(self, given: Mapping[str, tf.Tensor], rows: Sequence[int]) -> dict[str, tf.Tensor]:
        """What is decoded, with nothing in these rows."""
        given = dict(given)
        for feature in self._features:
            given[feature.name] = _emptied(given[feature.name], rows)
            if feature.tensor and feature.tensor.shape_field:
                field = feature.tensor.shape_field
                given[field] = tf.tensor_scatter_nd_update(
                    given[field], [[row] for row in rows], tf.zeros_like(tf.gather(given[field], rows))
                )
        return given

    def _beyond(self, given: Mapping[str, tf.Tensor]) -> dict[int, str]:
        """The rows whose tensors are too large for the others (filling.py)."""
        beyond: dict[int, str] = {}
        for feature in self._features:
            if feature.tensor and feature.tensor.shape_field:
                sizes = given[feature.tensor.shape_field].numpy()
                for row in rows_beyond(sizes, ITEM_BYTES[feature.tensor.dtype]).tolist():
                    beyond.setdefault(row, reason(feature.name, sizes[row]))
        return beyond

    def _fault(self, given: Mapping[str, tf.Tensor], row: int) -> str:
        """Why one row cannot be decoded; empty where it can."""
        alone = {name: values[row : row + 1] for name, values in given.items()}
        for feature in self._features:
            try:
                decoded({name: alone[name] for name in _needed(feature)}, [feature])
            except tf.errors.InvalidArgumentError:
                kind = "image" if feature.image else "tensor"
                count = len(alone[feature.name].numpy()[0])
                return f"feature {feature.name}: its {count} bytes cannot be decoded as the {kind} that the schema says"
        return ""


def _needed(feature: Feature) -> tuple[str, ...]:
    field = feature.tensor.shape_field if feature.tensor else None
    return (feature.name,) if field is None else (feature.name, field)


def _emptied(values: tf.Tensor, rows: Sequence[int]) -> tf.Tensor:
    kept: NDArray[np.object_] = values.numpy().copy()
    kept[list(rows)] = b""
    return tf.constant(kept, tf.string)


def _tensors(values: tf.Tensor, kind: TensorKind, sizes: tf.Tensor | None) -> tf.Tensor:
    dtype = tf.as_dtype(kind.dtype)
    if sizes is None:
        shape = kind.shape or ()
        zeros = tf.constant(bytes(kind.byte_count or 0))
        whole = tf.where(tf.equal(tf.strings.length(values), 0), zeros, values)
        return tf.reshape(tf.io.decode_raw(whole, dtype), [tf.shape(values)[0], *shape])
    with tf.control_dependencies([checked(sizes, ITEM_BYTES[kind.dtype], "tensor")]):
        largest = tf.maximum(tf.reduce_max(sizes, axis=0), 0)  # of no rows at all it is the lowest number

    def padded(row: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        flat = tf.io.decode_raw(row[0], dtype)
        tensor = tf.reshape(flat, row[1])
        rest = largest - row[1]
        return tf.pad(tensor, tf.stack([tf.zeros_like(rest), rest], axis=1))

    rank = int(sizes.shape[1])
    whole = tf.cond(
        tf.shape(values)[0] > 0,
        lambda: tf.map_fn(padded, (values, sizes), fn_output_signature=tf.TensorSpec([None] * rank, dtype)),
        lambda: tf.zeros([0] * (rank + 1), dtype),
    )
    return tf.ensure_shape(whole, [None] * (rank + 1))


def _decoded_image(value: tf.Tensor, kind: ImageKind) -> tf.Tensor:
    """uint8 [rows, columns, channels] of one encoded image."""
    if kind.format == "jpeg":  # the accurate method is the same on every machine
        return tf.io.decode_jpeg(value, channels=kind.channels, dct_method="INTEGER_ACCURATE")
    if kind.format == "png":
        image = tf.io.decode_png(value, channels=kind.channels)
        return image if kind.channels < 4 else _opaque(image, value)
    if kind.channels == 3:
        return tf.io.decode_image(value, channels=3, expand_animations=False)

    def grays() -> tf.Tensor:
        return tf.image.rgb_to_grayscale(tf.io.decode_image(value, channels=3, expand_animations=False))

    def gray() -> tf.Tensor:
        return tf.io.decode_image(value, channels=1, expand_animations=False)

    starts = [tf.equal(tf.strings.substr(value, 0, len(start)), start) for start in _MAKE_NO_GRAY]
    return tf.cond(tf.logical_or(*starts), grays, gray)


def _opaque(image: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Where a PNG of 1, 2 or 4 bits has no alpha, decode_png fills in what is the highest of so many bits."""
    bits = tf.cast(tf.io.decode_raw(tf.strings.substr(value, 24, 1), tf.uint8)[0], tf.int32)
    highest = tf.cast(tf.bitwise.left_shift(1, tf.minimum(bits, 8)) - 1, tf.uint8)
    alpha = image[:, :, 3:]
    is_filled_in = tf.reduce_all(tf.equal(alpha, highest))
    return tf.concat([image[:, :, :3], tf.where(is_filled_in, tf.constant(255, tf.uint8), alpha)], axis=2)


def _images(values: tf.Tensor, kind: ImageKind) -> tf.Tensor:
    low, high = kind.scale

    def pixels(value: tf.Tensor) -> tf.Tensor:
        image = tf.ensure_shape(_decoded_image(value, kind), [None, None, kind.channels])
        return tf.cast(tf.image.resize(image, kind.shape[:2], method=kind.resize), tf.float32)

    def decoded_image(value: tf.Tensor) -> tf.Tensor:
        is_empty = tf.equal(tf.strings.length(value), 0)
        image = tf.cond(is_empty, lambda: tf.zeros(kind.shape, tf.float32), lambda: pixels(value))
        return tf.ensure_shape(image, kind.shape)

    images = tf.map_fn(decoded_image, values, fn_output_signature=tf.TensorSpec(kind.shape, tf.float32))
    return images * ((high - low) / _HIGHEST) + low
