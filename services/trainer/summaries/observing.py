"""What is looked at while a round trains: the curve, live; weights, gradients and what layers give, where asked.

Looking changes nothing: what a forward pass moves (seeds of dropout, moving means) is put back.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorboard.compat.proto.summary_pb2 import Summary

from common.definition.summaries import Summaries
from common.definition.training import is_meant
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Losses, Model, Trainable, TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.summaries.debugger import DebuggerDump
from services.trainer.summaries.drawings import of_weight
from services.trainer.summaries.events import Curves, LiveFile, curve_summaries, histogram, scalar, thinned

logger = logging.getLogger(__name__)
FILE_NAME = "taps.ndjson"
_FIRST = 8
_MOST_VARIABLES = 64
"""Of more, the largest are left out."""
_MOST_LOOKS = 100
_MOST_PIXELS = 65_536
Arrays = dict[str, NDArray[Any]]


class Observer:
    """Of one attempt at a round, called after each of its blocks.

    Attributes:
        seen: summaries by step; the newest hundred looks.
    """

    def __init__(self, training: Trainable, live_path: Path, work_dir: Path) -> None:
        """`live_path`: of the file that grows. `work_dir`: where the debugger's dump goes."""
        self._training = training
        summaries = training.model.definition.training.summaries
        self._every, self._tap_every = summaries.histograms, summaries.tap_blocks if summaries.taps else 0
        self._draws_weights = summaries.weight_images
        self.taps = Taps(summaries, training.model.definition.name)
        self.debugger = DebuggerDump(training.model, work_dir) if summaries.debugger else None
        looks = self._every or self._tap_every
        self._live = LiveFile(live_path, first_step=training.step, wall_time=time.time())
        self._gradients = _gradient_function(training.model) if looks else None
        self._activations = _activation_function(training.model) if looks else None
        self._before = _weights(training.model) if self._every else {}
        self._blocks = 0
        self._newest: TrainingSet | None = None
        self.seen: list[tuple[int, Summary]] = []

    def after_block(self, examples: TrainingSet, losses: Losses, added: Losses) -> None:
        """`losses`, `added`: of the block's batches, as train_block gave them."""
        self._blocks += 1
        self._newest = examples if (self._every and not self.seen) or (self._tap_every and self.taps.is_empty) else None
        if self.debugger:
            self.debugger.after_block(examples, self._training.set_aside)
        if self._tap_every and self._blocks % self._tap_every == 0:
            self._tap(examples)
        looked = list(self._look(examples)) if self._every and self._blocks % self._every == 0 else []
        self.seen = [*self.seen, *looked][-_MOST_LOOKS:]
        self._live.add([*self._curve(losses, added), *looked], wall_time=time.time())

    def after_blocks(self) -> None:
        """A round with fewer blocks than lie between two looks is looked at once, after its last one."""
        if self._newest is not None and self._tap_every and self.taps.is_empty:
            self._tap(self._newest)
        if self._newest is not None and self._every and not self.seen:
            self.seen = list(self._look(self._newest))
            self._live.add(self.seen, wall_time=time.time())
        self._newest = None

    def _curve(self, losses: Losses, added: Losses) -> Sequence[tuple[int, Summary]]:
        if not len(losses):
            return []
        steps, means = self._training.curve(losses)
        _, means_added = self._training.curve(added)
        kept = thinned(len(steps))
        rates = self._training.rates(steps[kept])
        return list(
            curve_summaries(Curves(steps[kept].tolist(), means[kept].tolist(), rates, means_added[kept].tolist()))
        )

    def _tap(self, examples: TrainingSet) -> None:
        kinds = self._kinds(examples)
        named = {f"{kind}/{name}": array for kind, arrays in kinds.items() for name, array in arrays.items()}
        self.taps.note(self._training.step, named)

    def _kinds(self, examples: TrainingSet) -> dict[str, Arrays]:
        return {
            "weights": _weights(self._training.model),
            "gradients": self._gradients(examples) if self._gradients else {},
            "activations": self._activations(examples) if self._activations else {},
        }

    def _look(self, examples: TrainingSet) -> Sequence[tuple[int, Summary]]:
        step = self._training.step
        kinds = self._kinds(examples)
        weights, gradients = kinds["weights"], kinds["gradients"]
        moved = _norm({name: array - self._before[name] for name, array in weights.items()})
        values = [scalar("update_ratio", moved / (_norm(self._before) or 1.0))]
        if gradients:
            values.append(scalar("gradient_norm", _norm(gradients)))
        drawn = [
            histogram(f"{kind}/{name}", array)
            for kind, arrays in kinds.items()
            for name, array in _smallest(arrays).items()
        ]
        if self._draws_weights:
            drawn += [of_weight(f"weights/{name}", array) for name, array in _smallest(_drawable(weights)).items()]
        self._before = weights
        summary_of_all = Summary(value=[*values, *(value for summary in drawn for value in summary.value)])
        return [(step, summary_of_all)]

    def close(self) -> None:
        self._live.close()


def _drawable(weights: Arrays) -> Arrays:
    return {name: array for name, array in weights.items() if array.ndim > 1 and 0 < array.size <= _MOST_PIXELS}


def _smallest(arrays: Arrays) -> Arrays:
    kept = sorted(arrays, key=lambda name: arrays[name].size)[:_MOST_VARIABLES]
    return {name: arrays[name] for name in arrays if name in kept}


def _norm(arrays: Arrays) -> float:
    return float(np.sqrt(sum(float(np.square(array.astype(np.float64)).sum()) for array in arrays.values())))


def _weights(model: Model) -> Arrays:
    if not isinstance(model, BuiltModel):
        return {}
    return {variable.path: variable.value.numpy() for variable in model.network.trainable_variables}


def _activation_function(model: Model) -> Callable[[TrainingSet], Arrays] | None:
    """A block's first batch to what each layer gives in inference, by layer; None for a network that is no graph of
    layers, as a subclass of keras.Model may not be."""
    if not isinstance(model, BuiltModel) or not getattr(model.network, "inputs", None):
        return None
    network, batch_size = model.network, model.definition.training.batch_size
    layers = [layer for layer in network.layers if not isinstance(layer, keras.layers.InputLayer)]
    given = {layer.name: layer.output for layer in layers if isinstance(layer.output, keras.KerasTensor)}
    if not given:
        return None
    column_of = {tensor.name: name for name, tensor in model.wiring.columns.items()}
    tapped = keras.Model(network.input, given, name="activations")

    def activations(examples: TrainingSet) -> Arrays:
        if not examples.count:
            return {}
        columns = examples.first(batch_size).columns
        tensors = keras.tree.map_structure(lambda tensor: columns[column_of[tensor.name]], network.input)
        with model.unmoved():
            found = tapped(tensors, training=False)
        dense = {name: array.numpy() for name, array in found.items() if isinstance(array, tf.Tensor)}
        return {name: array for name, array in dense.items() if np.issubdtype(array.dtype, np.floating)}

    return activations


def _gradient_function(model: Model) -> Callable[[TrainingSet], Arrays] | None:
    """A block's first batch to the gradient of each variable that its loss depends on; None where the module takes its
    steps itself, as only it knows what its loss is."""
    if not isinstance(model, BuiltModel) or model.compiled_by_user.has_train_step:
        return None
    variables, batch_size = model.network.trainable_variables, model.definition.training.batch_size

    def differentiated(*batch: Any) -> dict[str, tf.Tensor]:
        *_, found = model.differentiated(batch, variables)
        return {
            variable.path: tf.convert_to_tensor(gradient)
            for variable, gradient in zip(variables, found, strict=True)
            if gradient is not None
        }

    compiled = model.compiled(differentiated, *model.batch_specs())

    def gradients(examples: TrainingSet) -> Arrays:
        if not examples.count:
            return {}
        with model.unmoved():
            return {name: found.numpy() for name, found in compiled(*examples.first(batch_size).parts).items()}

    return gradients


class Taps:
    """Chosen tensors while a round trains, as lines in the log and in a file of the version, its newest `tap_bytes`:

    {"step": 40, "tensor": "activations/hidden_0", "shape": [8, 4], "min": 0.0, "max": 1.2, "mean": 0.3,
     "not_finite": 0, "first": [0.1, ...]}
    """

    def __init__(self, summaries: Summaries, model: str) -> None:
        self._summaries, self._model = summaries, model
        self._lines: deque[str] = deque()
        self._size_bytes = 0

    def note(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raises DefinitionFailedError: a pattern means none of these."""
        for pattern in self._summaries.taps:
            if not any(is_meant(name, pattern) for name in arrays):
                known = ", ".join(sorted(arrays))
                raise DefinitionFailedError(f"training: summaries: taps: {pattern} means none of {known}")
        for name, array in arrays.items():
            if any(is_meant(name, pattern) for pattern in self._summaries.taps):
                self._add({"step": step, "tensor": name, **_facts(array)})

    @property
    def is_empty(self) -> bool:
        return not self._lines

    def files(self) -> dict[str, str]:
        """Texts by name of the version's file."""
        return {FILE_NAME: "".join(self._lines)} if self._lines else {}

    def _add(self, facts: Mapping[str, Any]) -> None:
        logger.info("a tensor", extra={"of_model": self._model, **facts})
        line = json.dumps(facts) + "\n"
        self._lines.append(line)
        self._size_bytes += len(line)
        while self._size_bytes > self._summaries.tap_bytes:
            self._size_bytes -= len(self._lines.popleft())


def _facts(array: NDArray[Any]) -> dict[str, Any]:
    """Of values that are finite, and how many are not."""
    finite = array[np.isfinite(array)].astype(np.float64)
    numbers = {"min": finite.min(), "max": finite.max(), "mean": finite.mean()} if finite.size else {}
    return {
        "shape": list(array.shape),
        **{name: float(number) for name, number in numbers.items()},
        "not_finite": int(array.size - finite.size),
        "first": [float(value) if np.isfinite(value) else str(value) for value in array.ravel()[:_FIRST]],
    }
