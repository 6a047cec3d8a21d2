"""A model that learns as rounds do: the trainer's own features, steps and scores, without log, gate and export."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import yaml
from numpy.typing import NDArray

from common.definition.model import parse_definition
from common.examples.codec import ExampleCodec
from common.schema import Schema
from services.trainer.families.port import TrainingSet
from services.trainer.features.fitting import Fitting
from services.trainer.features.parsing import parse
from services.trainer.learn import adapters
from services.trainer.learn.metrics.binary import probabilities

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


class Learner:
    """Binary, of one head. Events are parsed and transformed once; what follows names them by their rows.

    Statistics (moments, words) are those of the first rows and stay, so that all policies see the same features.
    """

    def __init__(
        self, definition: Mapping[str, Any], schema: Mapping[str, Any], events: Sequence[object], *, first: int
    ) -> None:
        """`first`: how many of the first events fit the statistics and are learned by `begin`."""
        parsed = parse_definition({"model.yaml": yaml.safe_dump(dict(definition)).encode()})
        described = Schema.from_mapping({key: value for key, value in schema.items() if key != "stream"})
        codec = ExampleCodec(described)
        raw = parse([codec.encode(event) for event in events], described.columns).raw
        fitting = Fitting(parsed.features, described, {})
        fitting.add({name: raw[name].numpy()[:first] for name in fitting.raw_names})
        self._model = adapters.build(parsed, described, fitting.result(), None, seed=parsed.seed)
        self._training = adapters.trainable_of(self._model, seed=parsed.seed)
        self._score = self._model.scorer()
        head = self._model.heads[0]
        self._head = head.name
        self._columns = self._model.transformed(raw).columns
        self._labels = head.labels_of(raw[head.label.name], None)
        self.labels: Floats = np.asarray(raw[head.label.name], np.float64).reshape(-1)
        self.cpu_seconds = 0.0
        self._blocks = 0
        self._passes = parsed.training.passes
        self.learn(np.arange(first))
        self._begun = self._training.captured()

    def begin(self) -> None:
        """Back to what it was after the first events."""
        self._training.begin_again(self._model.definition.seed)
        self._training.restore(self._begun)
        self.cpu_seconds, self._blocks = 0.0, 1

    def learn(self, rows: Rows) -> None:
        """What a round does with its events; its CPU time is counted."""
        began = time.process_time()
        columns = {name: tf.gather(values, rows) for name, values in self._columns.items()}
        labels, weights = {self._head: tf.gather(self._labels, rows)}, {self._head: tf.ones([len(rows)])}
        block = TrainingSet(columns, labels, weights, len(rows))
        for number in range(self._passes):
            self._training.train_block(block, pass_index=number, block_index=self._blocks)
        self._blocks += 1
        self.cpu_seconds += time.process_time() - began

    def probabilities(self, rows: Rows) -> Floats:
        """Of the label 1, by the model as it is."""
        columns = {name: tf.gather(values, rows) for name, values in self._columns.items()}
        return probabilities(np.asarray(self._score(columns, len(rows))[self._head], np.float64).reshape(-1))
