"""In how many texts the words of a text feature are: what `counts: tf_idf` weighs them by. Part of every checkpoint."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.features import Hashed, Text, id_count
from services.trainer.features.cutting import pieces_of


@dataclass(frozen=True)
class Frequencies:
    """Attributes:
    texts: int64 scalar: trained examples of all rounds.
    having: int64 [ids]: in how many of them the id is; of a bucket of unknown words at most the sum over its words.
    """

    texts: NDArray[np.int64]
    having: NDArray[np.int64]

    def parts(self) -> dict[str, NDArray[np.generic]]:
        return {**vars(self)}

    @classmethod
    def of_parts(cls, parts: Mapping[str, NDArray[np.generic]]) -> "Frequencies":
        return cls(parts["texts"].astype(np.int64), parts["having"].astype(np.int64))

    @property
    def weights(self) -> NDArray[np.float32]:
        """float32 [ids]: log(1 + texts / (1 + having)), as keras.layers.TextVectorization weighs by tf_idf."""
        weights: NDArray[np.float32] = np.log1p(self.texts / (1.0 + self.having)).astype(np.float32)
        return weights


@dataclass
class SeenTexts:
    """Of a round's trained examples. Hashed words are counted as the digits of their ids."""

    spec: Text
    texts: int = 0
    having: Counter[bytes] = field(default_factory=Counter)

    def add(self, values: NDArray[np.generic]) -> None:
        """`values`: texts of any shape, one for each example."""
        pieces = pieces_of(self.spec.cut, tf.constant(values.reshape(-1).tolist(), tf.string, shape=[len(values)]))
        words = pieces.flat_values
        if isinstance(self.spec.ids, Hashed):
            words = tf.strings.as_string(tf.strings.to_hash_bucket_fast(words, self.spec.ids.bins))
        self.having.update(
            word for word, _ in set(zip(words.numpy().tolist(), pieces.value_rowids().numpy().tolist(), strict=True))
        )
        self.texts += len(values)

    def result(self, before: Frequencies | None, words: tuple[bytes, ...]) -> Frequencies:
        """With the counts of before. `words`: of the vocabulary, in order of their ids; of hashed ones none."""
        ids = self.spec.ids
        texts = self.texts + (int(before.texts) if before else 0)
        having = before.having.copy() if before else np.zeros(id_count(self.spec), np.int64)
        place = {word: number for number, word in enumerate(words)}
        for word, count in self.having.items():
            number = int(word) if isinstance(ids, Hashed) else place.get(word, -1)
            if number < 0 and not isinstance(ids, Hashed) and ids.oov == "bucket":
                number = ids.max_words + int(tf.strings.to_hash_bucket_fast(word, ids.oov_buckets))
            if number >= 0:
                having[number] += count
        return Frequencies(np.array(texts, np.int64), np.minimum(having, texts))
