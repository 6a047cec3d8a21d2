"""Boosted trees as the port's Model: the transform makes columns, the walk adds trees up, the head names answers."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.features import Crossed, FeatureSpec, Numeric
from common.definition.model import Definition
from common.definition.trees import OBJECTIVES
from common.errors import DataLoss
from common.feature_keys import Scalar
from common.schema import PADDING, Feature, Schema
from services.trainer.families.heads import BuiltHead, built_heads
from services.trainer.families.port import Arrays, Columns, ScoreFunction, Signature
from services.trainer.families.trees import engine, walk
from services.trainer.features.parsing import Raw
from services.trainer.features.statistics import Statistics
from services.trainer.features.transform import Transform, Transformed

BOOSTER, MEANING, STEP = "model/trees/booster", "model/trees/meaning", "model/trees/step"
_SCORE_ROWS = 4096


class TreesModel:
    """`booster`: XGBoost's bytes, empty before the first tree; the grower puts them here."""

    def __init__(self, definition: Definition, schema: Schema, statistics: Statistics) -> None:
        assert definition.trees is not None
        self.definition, self.schema, self.parameters = definition, schema, definition.trees
        self.transform = Transform(definition.features, self.parameters.columns, statistics, schema)
        self.inputs: tuple[Feature, ...] = tuple(schema.feature(name) for name in self.transform.raw_names)
        self.heads: tuple[BuiltHead, ...] = built_heads(definition.heads, schema)
        self.booster = b""

    user_metrics = None
    network = None
    makes_layers = False

    def facts(self) -> dict[str, Any]:
        return {}

    def timings(self) -> dict[str, float]:
        return {}

    def keep_below(self, folder: Path) -> None:
        """Nothing is computed once for several rounds."""

    def compiled_metrics(self) -> None:
        return None

    def own_evaluation(self) -> None:
        return None

    @property
    def head(self) -> BuiltHead:
        return self.heads[0]

    @property
    def objective(self) -> str:
        return OBJECTIVES[f"{self.head.task} {self.head.head.loss.name}"]

    @property
    def meaning(self) -> dict[str, Any]:
        """What the booster's columns and outputs are: trees can be carried where it stays the same."""
        specs = self.definition.features
        columns = {name: _meaning_of(specs, name) for name in self.parameters.columns}
        answers = [self.objective, self.head.class_count, list(self.head.head.levels)]
        return dict(json.loads(json.dumps({"columns": columns, "answers": answers})))

    def transformed(self, raw: Raw) -> Transformed:
        return self.transform(raw)

    def fit(self, before: Arrays, blocks: Callable[[], Iterator[Columns]]) -> None:
        """Nothing beside the features' statistics is learned beforehand."""

    def matrix(self, columns: Columns) -> tf.Tensor:
        """float32 [n, columns], in order of name; NaN where there is no id."""
        return tf.concat(
            [_numbers(self.definition.features[name], columns[name]) for name in self.parameters.columns], 1
        )

    def scorer(self) -> ScoreFunction:
        answer = self._answer()
        specs = {
            name: tf.TensorSpec(
                [None, self.transform.width(name)],
                tf.float32 if isinstance(self.definition.features[name], Numeric) else tf.int32,
            )
            for name in self.parameters.columns
        }
        call = tf.function(answer, input_signature=[specs], autograph=False)

        def score(columns: Columns, count: int) -> dict[str, NDArray[np.float32]]:
            none = np.zeros((0, *self.head.output_width), np.float32)
            parts = [
                call({name: columns[name][start : start + _SCORE_ROWS] for name in specs}).numpy()
                for start in range(0, count, _SCORE_ROWS)
            ]
            return {self.head.name: np.concatenate([none, *parts])}

        return score

    def signatures(self) -> dict[str, Signature]:
        answer = self._answer()
        return {
            tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY: Signature(
                self.inputs, lambda raw: self.head.served(answer(self.transform.strict(raw)))
            )
        }

    @property
    def padding(self) -> Mapping[str, Scalar]:
        return {feature.name: PADDING[feature.dtype] for feature in self.inputs if feature.is_variable_length}

    def restate(self, statistics: Statistics) -> bool:
        return self.transform.fitted.restate(statistics)

    @property
    def exported(self) -> list[object]:
        """The trees themselves are constants of the graph."""
        return list(self.transform.fitted.variables)

    def restore(self, arrays: Arrays) -> None:
        """Raises DataLoss where these are not the arrays of the same trees."""
        if BOOSTER not in arrays or json.loads(arrays[MEANING].tobytes()) != self.meaning:
            raise DataLoss(f"the checkpoint holds no trees of {', '.join(self.parameters.columns)}")
        self.booster = arrays[BOOSTER].tobytes()

    def _answer(self) -> Callable[[Columns], tf.Tensor]:
        """The head's outputs by the trees that are there now."""
        ensemble = engine.read(self.booster, self.objective)
        return lambda columns: self.head.outputs_of(walk.margins(ensemble, self.matrix(columns)))


def _numbers(spec: FeatureSpec, column: tf.Tensor) -> tf.Tensor:
    if isinstance(spec, Numeric):
        return column
    return tf.where(column < 0, float("nan"), tf.cast(column, tf.float32))


def _meaning_of(specs: Mapping[str, FeatureSpec], name: str) -> dict[str, Any]:
    """Everything about a feature that gives its numbers; not whether later rounds add words."""
    if name not in specs:
        return {"raw": name}
    spec = specs[name]
    found = {"type": type(spec).__name__} | {key: value for key, value in asdict(spec).items() if key != "update"}
    if isinstance(spec, Crossed):
        found["of"] = [_meaning_of(specs, member) for member in spec.of]
    return found
