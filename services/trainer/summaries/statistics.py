"""Statistics of a round's examples, by field: the version's file statistics/round.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from common.schema import Feature, Schema
from common.statistics.sketches import FieldStatistics, to_document
from services.trainer.features.parsing import is_padding

PATH = "statistics/round.json"
_DTYPES = ("float32", "int64", "string")
_MOST_VALUES = 4096
"""Per example; larger ones are pictures."""


class RoundStatistics:
    """Fed with the examples of a round block by block, trained and held out. Defaults stand in for absent optional
    values, as the model sees them; how often they did is `missing`."""

    def __init__(self, schema: Schema) -> None:
        self._features = {
            feature.name: feature
            for feature in (*schema.features, *schema.labels)
            if feature.dtype in _DTYPES and int(np.prod([size or 1 for size in feature.shape])) <= _MOST_VALUES
        }
        self._fields = dict[str, FieldStatistics]()

    def add(self, parts: Sequence[Mapping[str, tf.Tensor]], *, absent: Mapping[str, int]) -> None:
        """Args:
        parts: features and labels as parsed, of a block's examples.
        absent: of all of them, in how many an optional feature is absent.
        """
        for name, feature in self._features.items():
            one = self._fields.setdefault(name, FieldStatistics(feature.dtype == "string"))
            if not (feature.is_variable_length or feature.may_be_missing):
                one.missing += absent.get(name, 0)
            for raw in parts:
                if name in raw and len(raw[name]):
                    self._add_part(one, feature, raw[name])

    @staticmethod
    def _add_part(one: FieldStatistics, feature: Feature, values: tf.Tensor) -> None:
        missing, flat = 0, values.numpy().ravel()
        if feature.is_variable_length or feature.may_be_missing:
            filled = is_padding(values).numpy()
            missing = int(filled.reshape(len(values), -1).all(axis=1).sum())
            flat = flat[~filled.ravel()]
        one.add_examples(len(values), missing=missing)
        if one.is_text:
            one.add_words(flat.tolist())
        else:
            one.add_numbers(flat)

    def write(self, output: Path) -> None:
        """Below the version's files; nothing where nothing was added."""
        fields = {name: one for name, one in self._fields.items() if one.examples}
        if fields:
            path = output / PATH
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(to_document(fields)))
