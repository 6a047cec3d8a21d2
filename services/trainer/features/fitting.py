"""Fits statistics over the blocks of a round: a fitter for each feature that has any, by its kind.

Later rounds carry what is known and add to it, unless the definition says `update: false`. Boundaries that values gave
are never changed, and a vocabulary that is full takes no more words unless it forgets.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.features import FeatureSpec, Indicator, Numeric, Quantiles, Text, Vocabulary
from common.definition.identity import learned_words_of
from common.schema import PADDING, Schema
from services.trainer.features.cutting import pieces_of
from services.trainer.features.frequencies import Frequencies, SeenTexts
from services.trainer.features.statistics import Boundaries, Fitted, Moments, Statistics, known_words
from services.trainer.features.steps import applied
from services.trainer.features.words import Seen, Words, grown

Values = NDArray[np.generic]


class Fitter(ABC):
    """Adds up what a round's trained examples say about one feature.

    Attributes:
        name: of the feature.
        source: the raw feature whose values `add` takes.
        needs_data: False where what is known is carried over as it is.
    """

    def __init__(self, name: str, source: str, *, needs_data: bool) -> None:
        self.name, self.source, self.needs_data = name, source, needs_data

    @abstractmethod
    def add(self, values: Values) -> None:
        """Raw values of trained examples, as features/parsing.py shapes them."""

    @abstractmethod
    def result(self, others: Statistics) -> Fitted:
        """With what was known before. `others`: statistics of the features fitted before this one."""


class _NumericFitter(Fitter):
    def __init__(self, spec: Numeric, known: Moments | None, schema: Schema) -> None:
        super().__init__(spec.name, spec.of, needs_data=known is None or spec.update)
        self._spec, self._known = spec, known
        self._nothing = np.zeros((0, spec.width(schema.feature(spec.of).seen_count or 0)))
        self._seen: Moments | None = None

    def add(self, values: Values) -> None:
        columns = shaped(self._spec, values.reshape(len(values), math.prod(values.shape[1:])))
        seen = Moments.of(columns, _together(self._seen, self._known))
        self._seen = _together(self._seen, seen)

    def result(self, others: Statistics) -> Moments:
        if self._known and not self.needs_data:
            return self._known
        seen = self._seen or Moments.of(self._nothing)
        return self._known.merged(seen) if self._known else seen


class _WordsFitter(Fitter):
    def __init__(self, spec: FeatureSpec, learned: Vocabulary, known: Words | None, schema: Schema) -> None:
        source = str(spec.of)
        is_full = known is not None and len(known.words) >= learned.max_words
        adds = learned.update and (learned.forgetting is not None or not is_full)
        super().__init__(spec.name, source, needs_data=known is None or adds)
        self._spec, self._known, self._seen = learned, known, Seen()
        self._cut = spec.cut if isinstance(spec, Text) else None
        self._is_padded = self._cut is not None or schema.feature(source).is_variable_length

    def add(self, values: Values) -> None:
        count = len(values)
        rows = np.repeat(np.arange(count), math.prod(values.shape[1:]))
        if self._cut:
            pieces = pieces_of(self._cut, tf.constant(values.tolist(), tf.string, shape=values.shape))
            values, rows = pieces.flat_values.numpy(), pieces.value_rowids().numpy()
        words, kept = _texts(values, is_padded=self._is_padded)
        self._seen.add(words, rows[kept], example_count=count)

    def result(self, others: Statistics) -> Words:
        if self._known and not self.needs_data:
            return Words(self._known.words[: self._spec.max_words])
        return grown(self._spec, self._known, self._seen)


class _QuantilesFitter(Fitter):
    def __init__(self, spec: Quantiles, known: Boundaries | None) -> None:
        super().__init__(spec.name, spec.of, needs_data=known is None or not known.values)
        self._parts, self._known = spec.quantiles, known
        self._values: list[Values] = [np.zeros(0)]

    def add(self, values: Values) -> None:
        self._values.append(values.reshape(-1))

    def result(self, others: Statistics) -> Boundaries:
        if self._known and not self.needs_data:
            return self._known
        return Boundaries.between(np.concatenate(self._values), self._parts)


class _FrequenciesFitter(Fitter):
    def __init__(self, name: str, text: Text, known: Frequencies | None) -> None:
        super().__init__(name, text.of, needs_data=True)
        self._text, self._known, self._seen = text, known, SeenTexts(text)

    def add(self, values: Values) -> None:
        self._seen.add(values)

    def result(self, others: Statistics) -> Frequencies:
        return self._seen.result(self._known, known_words(self._text.ids, others))


class Fitting:
    """The fitters of a definition's features; `result` merges what they have seen with the parent's statistics."""

    def __init__(self, specs: Mapping[str, FeatureSpec], schema: Schema, parent: Statistics) -> None:
        found = (fitter_of(spec, specs, schema, parent.get(spec.name)) for spec in specs.values())
        self._fitters = sorted(filter(None, found), key=lambda fitter: _ORDER.index(type(fitter)))
        self._wanted = [fitter for fitter in self._fitters if fitter.needs_data]

    @property
    def needs_data(self) -> bool:
        """False when everything is carried over from the parent, or full."""
        return bool(self._wanted)

    @property
    def raw_names(self) -> set[str]:
        """The raw features that `add` looks at."""
        return {fitter.source for fitter in self._wanted}

    def add(self, raw: Mapping[str, Values]) -> None:
        """Raw values of trained examples, by raw feature name."""
        for fitter in self._wanted:
            fitter.add(raw[fitter.source])

    def result(self) -> dict[str, Fitted]:
        """Statistics for every feature that has any."""
        fitted: dict[str, Fitted] = {}
        for fitter in self._fitters:
            fitted[fitter.name] = fitter.result(fitted)
        return fitted


_ORDER: tuple[type[Fitter], ...] = (_NumericFitter, _WordsFitter, _QuantilesFitter, _FrequenciesFitter)
"""Frequencies are counted by words that are fitted."""


def fitter_of(
    spec: FeatureSpec, specs: Mapping[str, FeatureSpec], schema: Schema, known: Fitted | None
) -> Fitter | None:
    """None for a feature without statistics. `known`: those of earlier rounds; another kind does not count."""
    match spec:
        case Numeric() if spec.normalize != "none":
            return _NumericFitter(spec, known if isinstance(known, Moments) else None, schema)
        case Quantiles():
            return _QuantilesFitter(spec, known if isinstance(known, Boundaries) else None)
        case Indicator(counts="tf_idf"):
            text = specs[spec.of]
            assert isinstance(text, Text), "the definition's reader has seen to it"
            return _FrequenciesFitter(spec.name, text, known if isinstance(known, Frequencies) else None)
    learned = learned_words_of(spec)
    return _WordsFitter(spec, learned, known if isinstance(known, Words) else None, schema) if learned else None


def shaped(spec: Numeric, values: Values) -> NDArray[np.float64]:
    """As the transform does it, in float64."""
    shaped = values.astype(np.float64)
    if spec.clip is not None:
        shaped = np.clip(shaped, *spec.clip)
    shaped = np.sign(shaped) * np.log1p(np.abs(shaped)) if spec.log else shaped
    return applied(spec.steps, tf.constant(shaped)).numpy() if spec.steps else shaped


def _together(first: Moments | None, second: Moments | None) -> Moments | None:
    return first.merged(second) if first and second else first or second


def _texts(values: Values, *, is_padded: bool) -> tuple[list[bytes], NDArray[np.intp]]:
    """Words of a raw feature and their places in it; in a padded one, without what stands for "nothing there"."""
    flat = values.reshape(-1)
    is_number = flat.dtype.kind in "iu"
    padding = PADDING["int64"] if is_number else str(PADDING["string"]).encode()
    kept = np.flatnonzero(flat != padding) if is_padded else np.arange(len(flat))
    taken = flat[kept].tolist()
    return ([b"%d" % value for value in taken] if is_number else taken), kept
