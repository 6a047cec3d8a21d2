"""The transform: raw tensors to ids and numbers. The same graph in training, evaluation and every export.

Ids are int32 [n, values], -1 where there is none; numbers are float32 [n, columns]. Everything is plain tensor
arithmetic on constants of the definition and on variables of what was fitted (fitted.py): no lookup tables, no assets,
so a frozen graph needs no initialisation. TensorFlow's kernels decide the edge cases: Bucketize puts a boundary into
the upper bucket, string_to_hash_bucket_fast is Fingerprint64.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf

from common.definition.feature_sources import has_any_length, values_of_cross
from common.definition.features import (
    Bucketized,
    Categorical,
    Crossed,
    Embedding,
    FeatureSpec,
    Hashed,
    Identity,
    Indicator,
    Numeric,
    Quantiles,
    Text,
    Vocabulary,
)
from common.schema import Schema
from services.trainer.features.cutting import listed, pieces_of
from services.trainer.features.fitted import FittedValues, buckets, word_arrays, word_ids
from services.trainer.features.parsing import Raw, is_padding
from services.trainer.features.plausible import FARTHEST
from services.trainer.features.statistics import Statistics, known_words
from services.trainer.features.steps import applied

_SEPARATOR = "\x1f"
_BUCKETIZED = (tf.int32, tf.int64, tf.float32, tf.float64)
"""What the kernel takes."""
_NO_SCOPE = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class Transformed:
    """Attributes:
    columns: by feature name, what the network takes.
    refused: by feature name, bool [n]: the example breaks the feature's rule (`error`).
    outside: by feature name, int64 scalar: values without an id of their own (out of vocabulary, out of range).
    present: for the same features, int64 scalar: how many values there are.
    """

    columns: dict[str, tf.Tensor]
    refused: dict[str, tf.Tensor]
    outside: dict[str, tf.Tensor]
    present: dict[str, tf.Tensor] = field(default_factory=dict)


class Transform:
    """Holds the specs that a network needs, what was fitted of them and the schema; stateless otherwise."""

    def __init__(
        self, specs: Mapping[str, FeatureSpec], needed: Iterable[str], statistics: Statistics, schema: Schema
    ) -> None:
        """`needed`: what the network takes; an embedding or indicator stands for its ids."""
        names = list(needed)
        below = set().union(*({name} | _features_below(specs, ids_of(specs, name)) for name in names))
        self._take(specs, names, FittedValues(specs, below, statistics), schema)

    def part(self, needed: Iterable[str]) -> "Transform":
        """What makes some of the same columns, from the same variables."""
        made = object.__new__(Transform)
        made._take(self._specs, list(needed), self.fitted, self._schema)
        return made

    def apart(self, context: Collection[str]) -> tuple["Transform", "Transform"]:
        """What makes the columns of these raw features alone, and what makes the others."""
        alone = [name for name in self._names if self._raw_below(name) <= set(context)]
        return self.part(alone), self.part([name for name in self._names if name not in alone])

    def _take(
        self, specs: Mapping[str, FeatureSpec], names: Sequence[str], fitted: FittedValues, schema: Schema
    ) -> None:
        self._specs, self._names, self._schema, self.fitted = specs, names, schema, fitted
        self._weighted = {weights_name(name): specs[name] for name in names if is_weighted(specs[name])}
        self.outputs = sorted({ids_of(specs, name) for name in names} | self._weighted.keys())
        self.raw_names = sorted(set().union(*map(self._raw_below, names)))
        vocabularies = [spec.ids if isinstance(spec, Text) else spec for spec in specs.values()]
        self._given_words = {
            spec.name: word_arrays(known_words(spec, {}), len(spec.words))
            for spec in vocabularies
            if isinstance(spec, Vocabulary) and spec.words
        }

    def _raw_below(self, name: str) -> set[str]:
        """The raw features that a network's feature is made of."""
        weights = weights_of(self._specs[name])
        return raw_names_of(self._specs, ids_of(self._specs, name)) | ({weights} if weights else set())

    def __call__(self, raw: Raw) -> Transformed:
        """Applies every rule but refuses nothing itself."""
        done = Transformed({}, {}, {})
        for name in self.outputs:
            with tf.name_scope(f"features/{_NO_SCOPE.sub('_', name)}"):  # by which TensorBoard groups the graph's nodes
                if name in self._weighted:
                    done.columns[name] = self._weights(self._weighted[name], raw, done)
                else:
                    self._compute(name, raw, done)
        return Transformed(
            {name: done.columns[name] for name in self.outputs}, done.refused, done.outside, done.present
        )

    def strict(self, raw: Raw) -> dict[str, tf.Tensor]:
        """The columns; running it fails with InvalidArgument when an example breaks a rule (serving)."""
        done = self(raw)
        checks = [
            tf.debugging.Assert(tf.logical_not(tf.reduce_any(refused)), [f"input {self._rule_in_words(name)}"])
            for name, refused in done.refused.items()
        ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            return {name: tf.identity(column) for name, column in done.columns.items()}

    def width(self, name: str) -> int | None:
        """Values or columns per example; None for any number."""
        if name in self._weighted:
            spec = self._weighted[name]
            raw = weights_of(spec)
            return self._schema.feature(raw).seen_count if raw else self.width(ids_of(self._specs, spec.name))
        return width_of(self._specs, name, self._schema)

    def _rule_in_words(self, name: str) -> str:
        """`"INPUT": the value …`: serving adds the row and the value (services/serving/batching/broken_rules.py)."""
        if name in self._weighted:
            spec = self._weighted[name]
            ids = str(self._specs[ids_of(self._specs, spec.name)].of)
            return f'"{weights_of(spec)}": its weights are not one for each value of {ids}'
        if name in self._specs:
            return f'"{self._specs[name].of}": {_rule_in_words(self._specs[name])}'
        owner = name.rpartition(".")[0]
        given = self._specs[owner].of if owner in self._specs else owner
        if name.endswith(".size"):
            return f'"{given}": the value is larger than a float32 can hold'
        return f'"{given}": the value has too many words to be answered with the others; send it alone'

    def _weights(self, spec: FeatureSpec, raw: Raw, done: Transformed) -> tf.Tensor:
        """float32, the shape of the ids; 0.0 where a list is filled up."""
        ids = self._compute(ids_of(self._specs, spec.name), raw, done)
        name = weights_of(spec)
        if name is None:
            return tf.where(ids >= 0, tf.gather(self.fitted.of(spec.name, "weights"), tf.maximum(ids, 0)), 0.0)
        values = _two_dimensional(raw[name])
        if not self._schema.feature(name).is_variable_length:
            return tf.cast(values, tf.float32)
        missing = is_padding(values)
        source = raw[str(self._specs[ids_of(self._specs, spec.name)].of)]
        counts = [tf.reduce_sum(tf.cast(~absent, tf.int32), axis=1) for absent in (missing, is_padding(source))]
        done.refused[weights_name(spec.name)] = tf.not_equal(counts[0], counts[1])
        weights = tf.where(missing, 0.0, tf.cast(values, tf.float32))[:, : tf.shape(ids)[1]]
        return tf.pad(weights, [[0, 0], [0, tf.shape(ids)[1] - tf.shape(weights)[1]]])

    def _compute(self, name: str, raw: Raw, done: Transformed) -> tf.Tensor:
        if name in done.columns:
            return done.columns[name]
        spec = self._specs[name]
        if isinstance(spec, Numeric):
            done.columns[name] = self._numbers(spec, raw, done)
        elif isinstance(spec, Bucketized | Quantiles):
            values = _two_dimensional(raw[spec.of])
            values = values if values.dtype in _BUCKETIZED else tf.cast(values, tf.float32)
            done.columns[name] = self._buckets(spec, values)
        elif isinstance(spec, Crossed):
            texts, absent = self._combined([self._member(member, raw, done) for member in spec.of])
            joined = tf.strings.join(texts, separator=_SEPARATOR)
            ids = tf.cast(tf.strings.to_hash_bucket_fast(joined, spec.bins), tf.int32)
            done.columns[name] = (
                ids if absent is None else tf.ensure_shape(tf.where(absent, -1, ids), [None, self.width(name)])
            )
        elif isinstance(spec, Text):
            pieces, done.refused[f"{name}.length"] = listed(pieces_of(spec.cut, raw[spec.of]))
            done.columns[name] = self._ids(spec.ids, pieces, is_padding(pieces), done)
        elif isinstance(spec, Vocabulary | Identity | Hashed):
            values = _two_dimensional(raw[spec.of])
            done.columns[name] = self._ids(spec, values, self._absent(spec.of, values), done)
        return done.columns[name]

    def _numbers(self, spec: Numeric, raw: Raw, done: Transformed) -> tf.Tensor:
        given = _two_dimensional(raw[spec.of])
        values = tf.cast(given, tf.float32)
        if given.dtype == tf.float64:
            done.refused[f"{spec.name}.size"] = tf.reduce_any(tf.math.is_inf(values), axis=1)
        if spec.clip is not None:
            values = tf.clip_by_value(values, *spec.clip)
        if spec.log:
            values = tf.sign(values) * tf.math.log1p(tf.abs(values))
        values = applied(spec.steps, values)
        if self._schema.feature(spec.of).is_variable_length:
            values = tf.where(is_padding(given), np.nan, values)
        if spec.normalize == "none":
            return values
        normalized = (values - self.fitted.of(spec.name, "offset")) * self.fitted.of(spec.name, "scale")
        return tf.clip_by_value(normalized, -FARTHEST, FARTHEST)  # what statistics leave out must not flood the network

    def _buckets(self, spec: Bucketized | Quantiles, values: tf.Tensor) -> tf.Tensor:
        if isinstance(spec, Bucketized):
            return tf.raw_ops.Bucketize(input=values, boundaries=list(spec.boundaries))
        return buckets(values, self.fitted.of(spec.name, "boundaries"), self.fitted.of(spec.name, "count"))

    def _ids(
        self, spec: Vocabulary | Identity | Hashed, values: tf.Tensor, absent: tf.Tensor, done: Transformed
    ) -> tf.Tensor:
        if isinstance(spec, Hashed):
            ids = tf.cast(tf.strings.to_hash_bucket_fast(_text(values), spec.bins), tf.int32)
            return tf.where(absent, -1, ids)
        ids, outside = self._word_ids(spec, values) if isinstance(spec, Vocabulary) else _identity_ids(spec, values)
        outside = tf.logical_and(outside, tf.logical_not(absent))
        done.outside[spec.name] = tf.reduce_sum(tf.cast(outside, tf.int64))
        done.present[spec.name] = tf.reduce_sum(tf.cast(tf.logical_not(absent), tf.int64))
        rule = spec.oov if isinstance(spec, Vocabulary) else spec.out_of_range
        if rule == "error":
            done.refused[spec.name] = tf.reduce_any(outside, axis=1)
        return tf.where(absent, -1, ids)

    def _word_ids(self, spec: Vocabulary, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        words = _text(values)
        ids = self._known_ids(spec, words)
        outside = ids < 0
        if spec.oov == "bucket":
            bucket = tf.cast(tf.strings.to_hash_bucket_fast(words, spec.oov_buckets), tf.int32)
            ids = tf.where(outside, spec.max_words + bucket, ids)
        return ids, outside

    def _known_ids(self, spec: Vocabulary, words: tf.Tensor) -> tf.Tensor:
        parts = ("fingerprints", "words", "ids")
        if spec.words is None:
            return word_ids(words, *(self.fitted.of(spec.name, part) for part in parts))
        given = self._given_words[spec.name]
        return word_ids(words, *(tf.constant(given[part]) for part in parts))

    def _absent(self, raw_name: str, values: tf.Tensor) -> tf.Tensor:
        """What pads a feature of any length; elsewhere every value is a value."""
        if not self._schema.feature(raw_name).is_variable_length:
            return tf.zeros_like(values, tf.bool)
        return is_padding(values)

    def _member(self, member: str, raw: Raw, done: Transformed) -> tuple[tf.Tensor, tf.Tensor]:
        """Its texts, and where there is none: what fills a list up, or a value of a list without an id."""
        if member not in self._specs:
            values = _two_dimensional(raw[member])
            return _text(values), self._absent(member, values)
        ids = self._compute(member, raw, done)
        return _text(ids), tf.logical_and(ids < 0, self.width(member) != 1)

    @staticmethod
    def _combined(members: Sequence[tuple[tf.Tensor, tf.Tensor]]) -> tuple[list[tf.Tensor], tf.Tensor | None]:
        """The members' texts, each value of a list beside each of the others; None where no member is a list."""
        if all(texts.shape[1] == 1 for texts, _ in members):
            return [texts for texts, _ in members], None
        done, absent = [members[0][0]], members[0][1]
        for texts, is_absent in members[1:]:
            before, width = tf.shape(absent)[1], tf.shape(texts)[1]
            done = [tf.repeat(part, width, axis=1) for part in done] + [tf.tile(texts, [1, before])]
            absent = tf.logical_or(tf.repeat(absent, width, axis=1), tf.tile(is_absent, [1, before]))
        return done, absent


def width_of(specs: Mapping[str, FeatureSpec], name: str, schema: Schema) -> int | None:
    """Values or columns per example of a feature that is no embedding or indicator; None for any number."""
    spec = specs[name]
    if isinstance(spec, Text):
        return None
    if isinstance(spec, Crossed):
        return None if has_any_length(spec, specs, schema) else values_of_cross(spec, specs, schema)
    width = schema.feature(str(spec.of)).seen_count
    return spec.width(width) if isinstance(spec, Numeric) and width else width


def ids_of(specs: Mapping[str, FeatureSpec], name: str) -> str:
    """The feature that the transform computes for a network's feature: the ids of an embedding or indicator."""
    spec = specs[name]
    return spec.of if isinstance(spec, Embedding | Indicator) else name


def weights_of(spec: FeatureSpec) -> str | None:
    """The raw feature that weighs the ids of an embedding or indicator."""
    return spec.weights if isinstance(spec, Embedding | Indicator) else None


def is_weighted(spec: FeatureSpec) -> bool:
    """Whether the network gets a weight for each id: a raw feature's, or by how rare a word is."""
    return weights_of(spec) is not None or (isinstance(spec, Indicator) and spec.counts == "tf_idf")


def weights_name(name: str) -> str:
    """Of the column that holds the weights of a feature's ids."""
    return f"{name}.weights"


def raw_names_of(specs: Mapping[str, FeatureSpec], name: str) -> set[str]:
    """The raw features below a feature."""
    spec = specs[name]
    members = spec.of if isinstance(spec, Crossed) else (str(spec.of),)
    if isinstance(spec, Crossed | Embedding | Indicator):
        return {raw for member in members for raw in (raw_names_of(specs, member) if member in specs else {member})}
    return set(members)


def _features_below(specs: Mapping[str, FeatureSpec], name: str) -> set[str]:
    """The feature and those that it is made of, without raw ones."""
    spec = specs[name]
    members = [member for member in spec.of if member in specs] if isinstance(spec, Crossed) else []
    return {name}.union(*(_features_below(specs, member) for member in members))


def categorical(specs: Mapping[str, FeatureSpec], name: str) -> Categorical:
    """The categorical feature behind a name."""
    spec = specs[ids_of(specs, name)]
    assert isinstance(spec, Categorical)
    return spec


def _identity_ids(spec: Identity, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    outside = tf.logical_or(values < 0, values >= spec.size)
    if spec.out_of_range == "clip":
        return tf.cast(tf.clip_by_value(values, 0, spec.size - 1), tf.int32), outside
    return tf.cast(tf.where(outside, tf.constant(-1, tf.int64), values), tf.int32), outside


def _rule_in_words(spec: FeatureSpec) -> str:
    if isinstance(spec, Identity):
        return f"the value is not from 0 to {spec.size - 1}"
    return "the value is not in the vocabulary"


def _two_dimensional(values: tf.Tensor) -> tf.Tensor:
    """[n] or [n, ...] to [n, values]."""
    if values.shape.rank == 2:
        return values
    if values.shape.rank == 1:
        return values[:, tf.newaxis]
    return tf.reshape(values, [tf.shape(values)[0], int(np.prod(values.shape[1:]))])


def _text(values: tf.Tensor) -> tf.Tensor:
    return values if values.dtype == tf.string else tf.strings.as_string(values)
