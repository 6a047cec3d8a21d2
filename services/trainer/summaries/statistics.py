"""Statistics of a round's examples, by field: the version's file statistics/round.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.schema import Feature, Schema
from common.statistics.sketches import FieldStatistics, to_document
from common.whole_files import write_whole
from services.trainer.features.parsing import is_padding

PATH = "statistics/round.json"
_DTYPES = ("float32", "int64", "string")
_MOST_VALUES = 4096
"""Per example; larger ones are pictures."""


def _by_example(values: NDArray[Any]) -> NDArray[Any]:
    """[examples, values of one], also of no examples."""
    return values.reshape(len(values), int(np.prod(values.shape[1:])))


def of_columns(columns: Mapping[str, tf.Tensor]) -> dict[str, FieldStatistics]:
    """Of what a transform gives: numbers as numbers, ids as words; -1 is none, an example of nothing else lacks it."""
    fields = dict[str, FieldStatistics]()
    for name, column in columns.items():
        values = column.numpy()
        if values.dtype.kind not in "if":  # what a model made elsewhere is given is not transformed
            continue
        flat = _by_example(values)
        statistics = fields[name] = FieldStatistics(values.dtype.kind == "i")
        if statistics.is_text:
            statistics.add_examples(len(flat), missing=int((flat < 0).all(axis=1).sum()))
            statistics.add_words([b"%d" % number for number in flat[flat >= 0].tolist()])
        else:
            statistics.add_examples(len(flat), missing=0)
            statistics.add_numbers(flat)
    return fields


class RoundStatistics:
    """Fed with the examples of a round block by block, trained and held out. An absent optional value is missing; the
    default that stands in for it is none of the values."""

    def __init__(self, schema: Schema) -> None:
        self._features = {
            feature.name: feature
            for feature in (*schema.features, *schema.labels)
            if feature.dtype in _DTYPES and int(np.prod([size or 1 for size in feature.shape])) <= _MOST_VALUES
        }
        self._fields, self._transformed = dict[str, FieldStatistics](), dict[str, FieldStatistics]()

    def add_columns(self, columns: Mapping[str, tf.Tensor]) -> None:
        """Of some examples, what the definition's features make of them."""
        for name, statistics in of_columns(columns).items():
            if name in self._transformed:
                self._transformed[name].merge(statistics)
            elif statistics.examples:
                self._transformed[name] = statistics

    def add(self, raw: Mapping[str, tf.Tensor], *, absent: Mapping[str, NDArray[np.bool_]]) -> None:
        """Args:
        raw: features and labels as parsed, of some examples.
        absent: in which of them an optional feature is absent, bool, by feature.
        """
        for name, feature in self._features.items():
            statistics = self._fields.setdefault(name, FieldStatistics(feature.dtype == "string"))
            if name in raw and len(raw[name]):
                self._add(statistics, feature, raw[name], absent.get(name))

    @staticmethod
    def _add(
        statistics: FieldStatistics, feature: Feature, values: tf.Tensor, absent: NDArray[np.bool_] | None
    ) -> None:
        found = values.numpy()
        missing, flat = 0, found.ravel()
        if feature.is_variable_length or feature.may_be_missing:
            filled = is_padding(values).numpy()
            missing = int(_by_example(filled).all(axis=1).sum())
            flat = flat[~filled.ravel()]
        elif absent is not None:
            missing, flat = int(absent.sum()), found[~absent].ravel()
        statistics.add_examples(len(values), missing=missing)
        if statistics.is_text:
            statistics.add_words(flat.tolist())
        else:
            statistics.add_numbers(flat)

    def write(self, output: Path) -> None:
        """Below the version's files; nothing where nothing was added."""
        fields = {name: statistics for name, statistics in self._fields.items() if statistics.examples}
        if fields:
            document = to_document(fields)
            if self._transformed:
                document["transformed"] = to_document(self._transformed)["fields"]
            write_whole(output / PATH, json.dumps(document).encode(), flush=False)
