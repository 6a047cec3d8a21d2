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
from common.definition.towers import TwoTower
from common.schema import Feature, Schema
from services.trainer.families.estimators.batch_tables import NO_TABLES, BatchTable
from services.trainer.families.estimators.towers import ITEM, ITEM_ID, USER, Towers, build_towers
from services.trainer.families.heads import BuiltHead, ByHead, built_heads
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Columns, Signature
from services.trainer.families.wiring import wiring_of
from services.trainer.features.parsing import DTYPES, Raw
from services.trainer.features.statistics import Statistics
from services.trainer.features.transform import Transform
from services.trainer.features.words import Words

NO_RANK = 1e9
_FAR = -1e9
"""A logit or score that nothing reaches."""


@dataclass(frozen=True)
class Candidates:
    """Items that can be answered, in order of their ids.

    Attributes:
        items: [m], in the label's dtype.
        columns: of the item tower, m rows.
        log_frequency: float32 [rows of the table]: logarithm of each item's share of the trained examples.
    """

    items: tf.Tensor
    columns: Columns
    log_frequency: NDArray[np.float32]

    @property
    def count(self) -> int:
        return int(self.items.shape[0])


@dataclass(frozen=True)
class RetrievalModel(BuiltModel):
    """`by_user`, `by_item`: the transforms of each tower's own raw features."""

    towers: Towers = field(kw_only=True)
    by_user: Transform = field(kw_only=True)
    by_item: Transform = field(kw_only=True)
    candidates: Candidates = field(kw_only=True)

    @property
    def said(self) -> TwoTower:
        parameters = self.definition.estimator_parameters
        assert parameters is not None
        assert parameters.towers is not None
        return parameters.towers

    def outputs(self, columns: Columns, *, training: bool) -> dict[str, tf.Tensor]:
        """Ranks float32 [n] of the events' own items."""
        found = self.wiring.named(self.network(self.wiring.arranged(columns), training=training))
        ids = found[ITEM_ID]
        nowhere = tf.fill(tf.shape(ids), NO_RANK)
        if not self.candidates.count:
            return {self.heads[0].name: nowhere}
        scores = tf.matmul(found[USER], self._vectors(), transpose_b=True)
        own = tf.gather(scores, tf.clip_by_value(ids, 0, self.candidates.count - 1), batch_dims=1)
        ranks = tf.reduce_sum(tf.cast(scores >= own[:, tf.newaxis], tf.float32), axis=1)
        return {self.heads[0].name: tf.where(ids >= 0, ranks, nowhere)}

    def _losses(self, labels: ByHead, outputs: Any) -> dict[str, tf.Tensor]:
        """Softmax over the items of the batch, each logit less the logarithm of its item's frequency.

        Yi et al.: Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019), section 3.
        The same item elsewhere in the batch is no negative, an item without a row neither; an event whose item has
        none teaches nothing.
        """
        found = self.wiring.named(outputs)
        ids = found[ITEM_ID]
        logits = tf.matmul(found[USER], found[ITEM], transpose_b=True) / self.said.temperature
        logits -= tf.gather(tf.constant(self.candidates.log_frequency), tf.maximum(ids, 0))
        count = tf.shape(ids)[0]
        is_own = tf.eye(count, dtype=tf.bool)
        is_no_negative = tf.logical_or(ids[:, tf.newaxis] == ids, (ids < 0)[tf.newaxis, :])
        logits = tf.where(tf.logical_and(is_no_negative, ~is_own), _FAR, logits)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.range(count), logits=logits)
        return {self.heads[0].name: tf.where(ids >= 0, losses, 0.0)}

    def _vectors(self) -> tf.Tensor:
        """float32 [m, dimension] of the candidates, by the tower as it is."""
        return self.towers.item(self.candidates.columns, training=False)

    @cached_property
    def _exported_vectors(self) -> tf.Variable:
        return tf.Variable(tf.zeros([self.candidates.count, self.said.dimension]), trainable=False, name="candidates")

    @property
    def exported(self) -> list[object]:
        return [*super().exported, self._exported_vectors]

    def signatures(self) -> dict[str, Signature]:
        """The candidates' vectors are those of the weights as they are when this is called."""
        if self.candidates.count:
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
        vectors, wanted = self._user_embedding(raw)["embedding"], self.said.top_k
        scores = tf.matmul(vectors, tf.convert_to_tensor(self._exported_vectors), transpose_b=True)
        missing = max(0, wanted - self.candidates.count)
        nothing = tf.zeros([missing], tf.int64) if self.candidates.items.dtype == tf.int64 else tf.fill([missing], "")
        scores = tf.pad(scores, [[0, 0], [0, missing]], constant_values=_FAR)
        found = tf.math.top_k(scores, k=wanted)
        items = tf.gather(tf.concat([self.candidates.items, nothing], axis=0), found.indices)
        return {"items": items, "scores": found.values}


def build_retrieval(
    definition: Definition,
    schema: Schema,
    statistics: Statistics,
    seed_state: keras.Variable,
    tables: Mapping[str, BatchTable] = NO_TABLES,
) -> RetrievalModel:
    parameters = definition.estimator_parameters
    assert parameters is not None
    assert parameters.towers is not None
    said = parameters.towers
    transform, by_user, by_item = (
        Transform(definition.features, names, statistics, schema)
        for names in (said.user + said.item, said.user, said.item)
    )
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
        candidates=_candidates(definition, said, schema.feature(heads[0].head.label), statistics, by_item),
    )


def _candidates(
    definition: Definition, said: TwoTower, item: Feature, statistics: Mapping[str, object], by_item: Transform
) -> Candidates:
    spec, words = definition.features[said.candidates], statistics[said.candidates]
    assert isinstance(spec, Vocabulary)
    assert isinstance(words, Words)
    texts = tf.constant(words.words, tf.string, shape=[len(words.words)])
    items = tf.strings.to_number(texts, tf.int64) if item.dtype == "int64" else texts
    counts = np.array([one.count for one in words.ledger.known] if words.ledger else [], np.float64)
    logs = np.zeros(spec.max_words, np.float32)
    logs[: len(counts)] = np.log(counts / counts.sum()) if len(counts) else 0.0
    raw = {item.name: tf.reshape(tf.cast(items, DTYPES[item.dtype]), [len(words.words), *item.shape])}
    return Candidates(items, dict(by_item(raw).columns), logs)
