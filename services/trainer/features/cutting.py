"""Texts to words, as a text feature cuts them: the same kernels when words are learned, in training and in exports."""

import tensorflow as tf

from common.definition.text import Cut
from common.schema import PADDING
from services.trainer.features.filling import STRING_BYTES, most_values

_NO_WORD = r"[^\pL\pM\pN_]+"
_SPACE = r"[\pZ\s]+"


def pieces_of(cut: Cut, texts: tf.Tensor) -> tf.RaggedTensor:
    """string [n] in UTF-8 to string [n, pieces]: all single ones in the order of the text, then all pairs, ..."""
    texts = tf.strings.lower(texts, encoding="utf-8") if cut.lower else texts
    if cut.split == "characters":
        pieces = tf.strings.unicode_split(texts, "UTF-8")
    else:
        pattern = _NO_WORD if cut.split == "words" else _SPACE
        pieces = tf.strings.split(tf.strings.regex_replace(texts, pattern, " "))
    if cut.ngrams == 1:
        return pieces
    separator = "" if cut.split == "characters" else " "
    return tf.strings.ngrams(pieces, tuple(range(1, cut.ngrams + 1)), separator=separator)


def listed(pieces: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """string [n, longest], filled up as lists of any length are; and bool [n], whose pieces are too many for that
    (filling.py), and are cut off."""
    lengths = tf.cast(pieces.row_lengths(), tf.int64)
    most = most_values(tf.reduce_sum(lengths), STRING_BYTES) // tf.maximum(tf.size(lengths, tf.int64), 1)
    longest = tf.maximum(tf.reduce_max(tf.where(lengths > most, tf.zeros_like(lengths), lengths)), 0)
    return pieces.to_tensor(PADDING["string"], shape=tf.stack([-1, longest])), lengths > most
