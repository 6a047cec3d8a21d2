"""two_tower as the port's Model: what is learned in a batch, how an item ranks, and what an export answers.

    serving_default   who asks (raw features of the user tower) to `items` [n, top_k] in the label's dtype, the nearest
                      first, and `scores` float32 [n, top_k]: cosines; past the last candidate "" or 0, and -1e9
    user_embedding    the same inputs to `embedding` float32 [n, dimension]
    item_embedding    the item to `embedding`; an unknown item has the vector that no id has

Candidates are the words of the item vocabulary; their vectors are computed once, for the export. The head's output is
the rank of the event's own item among the candidates, 1 for the nearest: of equal scores it is the last. An item that
is no candidate has rank 1e9.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.features import Vocabulary
from common.definition.model import Definition
from common.definition.parameters import EstimatorParameters
from common.definition.towers import TwoTower
from common.schema import Feature, Schema
from services.trainer.families.estimators.batch_tables import NO_TABLES, BatchTable
from services.trainer.families.estimators.layers import LookedUp, initializer_of, regularizer_of
from services.trainer.families.estimators.network import column_input, dense_columns, hidden_layers, regularizer_for
from services.trainer.families.heads import BuiltHead, ByHead, built_heads
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Columns, Signature
from services.trainer.families.wiring import wiring_of
from services.trainer.features.fitted import capacity, fitted_variable
from services.trainer.features.parsing import Raw
from services.trainer.features.statistics import Statistics
from services.trainer.features.transform import Transform, ids_of, is_weighted, weights_name
from services.trainer.features.words import Words

USER, ITEM, ITEM_ID = "user", "item", "item_id"
"""Outputs of the whole network: float32 [n, dimension] twice, int32 [n]."""
NO_RANK = 1e9
_LEAST_CANDIDATES = 64
"""Places for candidates, each of which costs every request; their number doubles."""
_FAR = -1e9
"""A logit or score that nothing reaches."""


@dataclass(frozen=True)
class Towers:
    """Attributes:
    network: both towers on the columns of both; its outputs are a dict of the three above.
    user, item: each tower alone, on its own columns; the same layers.
    """

    network: keras.Model
    user: keras.Model
    item: keras.Model


def build_towers(definition: Definition, transform: Transform, tables: Mapping[str, LookedUp]) -> Towers:
    """`tables`: by name, embedding tables to take in place of new ones."""
    parameters, towers = _parameters(definition)
    inputs = {name: column_input(definition.features, transform, name) for name in transform.outputs}
    shared = dict(tables)
    found = {}
    for side, names in ((USER, towers.user), (ITEM, towers.item)):
        columns = dense_columns(definition.features, parameters, names, inputs, shared)
        taken = {name: inputs[name] for name in _columns_of(definition, names)}
        found[side] = keras.Model(taken, _vectors(side, columns, parameters, towers.dimension), name=side)
    ids = keras.layers.Reshape((), name="item_row")(inputs[towers.candidates])
    outputs = {USER: found[USER].output, ITEM: found[ITEM].output, ITEM_ID: ids}
    return Towers(keras.Model(inputs, outputs, name="network"), found[USER], found[ITEM])


def _parameters(definition: Definition) -> tuple[EstimatorParameters, TwoTower]:
    parameters = definition.estimator_parameters
    assert parameters is not None
    assert parameters.towers is not None
    return parameters, parameters.towers


def _columns_of(definition: Definition, names: tuple[str, ...]) -> list[str]:
    specs = definition.features
    weighted = [weights_name(name) for name in names if is_weighted(specs[name])]
    return sorted({*(ids_of(specs, name) for name in names), *weighted})


def _vectors(
    side: str, columns: list[keras.KerasTensor], parameters: EstimatorParameters, dimension: int
) -> keras.KerasTensor:
    hidden = hidden_layers(columns, parameters, joined=f"{side}_columns", prefix=f"{side}_")
    vectors = keras.layers.Dense(
        dimension,
        use_bias=False,
        kernel_initializer=initializer_of(parameters.initializer),
        kernel_regularizer=regularizer_of(parameters.regularizer, regularizer_for(parameters)),
        name=f"{side}_output",
    )(hidden)
    return keras.layers.UnitNormalization(name=f"{side}_unit")(vectors)


class Candidates:
    """Items that can be answered, in order of their ids, as variables: of places past the last one nothing is used.

    Attributes:
        items: [capacity], in the label's dtype.
        count: int32 scalar.
        log_frequency: float32 [rows of the table]: logarithm of each item's share of the trained examples.
    """

    def __init__(self, spec: Vocabulary, item: Feature, statistics: Statistics) -> None:
        self._spec, self._item = spec, item
        items, count, logs = self._arrays(statistics)
        self.items = fitted_variable("candidates/items", items)
        self.count = fitted_variable("candidates/count", count)
        self.log_frequency = fitted_variable("candidates/log_frequency", logs)

    @property
    def capacity(self) -> int:
        return int(self.items.shape[0])

    @property
    def is_there(self) -> tf.Tensor:
        """bool [capacity]."""
        return tf.range(self.capacity) < self.count

    def raw(self) -> Raw:
        """What the item tower's transform takes, a row for each place."""
        return {self._item.name: tf.reshape(tf.convert_to_tensor(self.items), [self.capacity, *self._item.shape])}

    def have_room_for(self, statistics: Statistics) -> bool:
        return len(self._arrays(statistics)[0]) == self.capacity

    def restate(self, statistics: Statistics) -> None:
        for variable, array in zip((self.items, self.count, self.log_frequency), self._arrays(statistics), strict=True):
            variable.assign(array)

    def _arrays(self, statistics: Statistics) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        words, most = statistics[self._spec.name], self._spec.max_words
        assert isinstance(words, Words)
        size = capacity(len(words.words), most, least=_LEAST_CANDIDATES)
        is_number = self._item.dtype == "int64"
        items: NDArray[Any] = np.zeros(size, np.int64) if is_number else np.full(size, b"", object)
        items[: len(words.words)] = [int(word) for word in words.words] if is_number else words.words
        counts = np.array([word.times for word in words.ledger.known] if words.ledger else [], np.float64)
        logs = np.zeros(most, np.float32)
        logs[: len(counts)] = np.log(counts / counts.sum()) if len(counts) else 0.0
        return items, np.array(len(words.words), np.int32), logs


@dataclass(frozen=True)
class RetrievalModel(BuiltModel):
    """`by_user`, `by_item`: the transforms of each tower's own raw features."""

    towers: Towers = field(kw_only=True)
    by_user: Transform = field(kw_only=True)
    by_item: Transform = field(kw_only=True)
    candidates: Candidates = field(kw_only=True)

    @property
    def section(self) -> TwoTower:
        return _parameters(self.definition)[1]

    def outputs(self, columns: Columns, *, training: bool) -> dict[str, tf.Tensor]:
        """Ranks float32 [n] of the events' own items."""
        found = self.wiring.named(self.network(self.wiring.arranged(columns), training=training))
        ids, last = found[ITEM_ID], self.candidates.capacity - 1
        scores = tf.matmul(found[USER], self._vectors(), transpose_b=True)
        own = tf.gather(scores, tf.clip_by_value(ids, 0, last), batch_dims=1)
        is_nearer = tf.logical_and(scores >= own[:, tf.newaxis], self.candidates.is_there)
        ranks = tf.reduce_sum(tf.cast(is_nearer, tf.float32), axis=1)
        return {self.heads[0].name: tf.where(ids >= 0, ranks, NO_RANK)}

    def _losses(self, labels: ByHead, outputs: Any) -> dict[str, tf.Tensor]:
        """Softmax over the items of the batch, each logit less the logarithm of its item's frequency.

        Yi et al.: Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019), section 3.
        The same item elsewhere in the batch is no negative, an item without a row neither; an event whose item has
        none teaches nothing.
        """
        found = self.wiring.named(outputs)
        ids = found[ITEM_ID]
        logits = tf.matmul(found[USER], found[ITEM], transpose_b=True) / self.section.temperature
        logits -= tf.gather(tf.convert_to_tensor(self.candidates.log_frequency), tf.maximum(ids, 0))
        count = tf.shape(ids)[0]
        is_own = tf.eye(count, dtype=tf.bool)
        is_no_negative = tf.logical_or(ids[:, tf.newaxis] == ids, (ids < 0)[tf.newaxis, :])
        logits = tf.where(tf.logical_and(is_no_negative, ~is_own), _FAR, logits)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.range(count), logits=logits)
        return {self.heads[0].name: tf.where(ids >= 0, losses, 0.0)}

    def _vectors(self) -> tf.Tensor:
        """float32 [capacity, dimension] of the candidates, by the tower as it is."""
        return self.towers.item(dict(self.by_item(self.candidates.raw()).columns), training=False)

    @cached_property
    def _exported_vectors(self) -> tf.Variable:
        shape = [self.candidates.capacity, self.section.dimension]
        return tf.Variable(tf.zeros(shape), trainable=False, name="candidates")

    def restate(self, statistics: Statistics) -> bool:
        if not self.candidates.have_room_for(statistics) or not super().restate(statistics):
            return False
        self.candidates.restate(statistics)
        return True

    @property
    def exported(self) -> list[object]:
        return [*super().exported, self._exported_vectors, self.candidates.items, self.candidates.count]

    def signatures(self) -> dict[str, Signature]:
        """The candidates' vectors are those of the weights as they are when this is called."""
        self._exported_vectors.assign(self._vectors())
        item = tuple(self.schema.feature(name) for name in self.by_item.raw_names)
        return {
            tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: Signature(self.inputs, self._nearest),
            "user_embedding": Signature(self.inputs, self._user_embedding),
            "item_embedding": Signature(item, self._item_embedding),
        }

    def _user_embedding(self, raw: Raw) -> dict[str, tf.Tensor]:
        return {"embedding": tf.identity(self.towers.user(self.by_user.strict(raw), training=False))}

    def _item_embedding(self, raw: Raw) -> dict[str, tf.Tensor]:
        return {"embedding": tf.identity(self.towers.item(self.by_item.strict(raw), training=False))}

    def _nearest(self, raw: Raw) -> dict[str, tf.Tensor]:
        vectors, wanted = self._user_embedding(raw)["embedding"], self.section.top_k
        scores = tf.matmul(vectors, tf.convert_to_tensor(self._exported_vectors), transpose_b=True)
        scores = tf.where(self.candidates.is_there, scores, _FAR)
        missing = max(0, wanted - self.candidates.capacity)
        nothing = tf.zeros([missing], tf.int64) if self.candidates.items.dtype == tf.int64 else tf.fill([missing], "")
        scores = tf.pad(scores, [[0, 0], [0, missing]], constant_values=_FAR)
        found = tf.math.top_k(scores, k=wanted)
        items = tf.gather(tf.concat([tf.convert_to_tensor(self.candidates.items), nothing], axis=0), found.indices)
        return {"items": items, "scores": found.values}


def build_retrieval(
    definition: Definition,
    schema: Schema,
    statistics: Statistics,
    seed_state: keras.Variable,
    tables: Mapping[str, BatchTable] = NO_TABLES,
) -> RetrievalModel:
    _, section = _parameters(definition)
    transform = Transform(definition.features, section.user + section.item, statistics, schema)
    by_user, by_item = transform.part(section.user), transform.part(section.item)
    spec = definition.features[section.candidates]
    assert isinstance(spec, Vocabulary)
    towers = build_towers(definition, transform, tables)
    heads: tuple[BuiltHead, ...] = built_heads(definition.heads, schema)
    wiring = wiring_of(
        towers.network.input, towers.network.output, tuple(sorted((USER, ITEM, ITEM_ID))), {heads[0].name: USER}
    )
    return RetrievalModel(
        definition,
        schema,
        tuple(schema.feature(name) for name in by_user.raw_names),
        transform,
        towers.network,
        heads,
        None,
        None,
        seed_state,
        wiring,
        batch_tables=tables,
        towers=towers,
        by_user=by_user,
        by_item=by_item,
        candidates=Candidates(spec, schema.feature(heads[0].head.label), statistics),
    )
