"""Texts to words, as a text feature cuts them: the same kernels when words are learned, in training and in exports."""

import tensorflow as tf

from common.definition.text import Cut
from common.schema import PADDING

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


def listed(pieces: tf.RaggedTensor) -> tf.Tensor:
    """string [n, longest], filled up as lists of any length are."""
    return pieces.to_tensor(PADDING["string"])
