"""Warms a loaded version up, so that its first real request pays for nothing: with the requests that came with it, and
with made-up requests for signatures without any.

A version whose own requests fail is broken and does not load; a version that refuses made-up inputs may just be picky,
and only a note is made.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from services.serving.batching.models import Model, is_mergeable, warm_up_inputs
from services.serving.batching.row_independence import MOST_ROWS, dependent_output, varied
from services.serving.engines.warm_up_requests import failed_request, recorded_predictions
from services.serving.options.model_options import BatchingOptions, ModelOptions
from services.serving.wire.prediction import Prediction, RequestFailed


def warm_up(model: Model, directory: Path, options: ModelOptions) -> list[str]:
    """Runs every signature, alone and in batches of the sizes that will come; returns its work in sentences. Raises
    RequestFailed: the version's own requests cannot be read, or a request fails."""
    if not options.warm_up.is_enabled:
        return ["not warmed up: that is switched off"]
    recorded = _Recorded(model, directory, options)
    recorded.replay()
    made_up, notes = [], []
    for name in model.callable_signatures():
        if name in recorded.counts:
            continue
        try:
            for batch_size in batch_sizes(options.batching):
                model.run(name, warm_up_inputs(model.signatures[name], batch_size))
            made_up.append(name)
        except RequestFailed as error:
            notes.append(f"signature {name} was not warmed up: {error.message[:200]}")
    if made_up:
        notes.insert(0, f"warmed up with made-up inputs: {', '.join(made_up)}")
    return recorded.notes() + notes


def dependent_signatures(model: Model, directory: Path, options: ModelOptions) -> dict[str, str]:
    """The signatures whose rows depend on each other, each with an output that shows it (batching/row_independence.py).

    Tried with the largest request that came with the version, or with made-up rows where none has two. Raises
    RequestFailed: the version's own requests cannot be read."""
    if not (options.warm_up.is_enabled and options.batching.is_enabled):
        return {}
    signatures = {name: model.signatures[name] for name in model.callable_signatures()}
    largest: dict[str, Prediction] = {}
    for _, predictions in recorded_predictions(directory, signatures):
        for prediction in predictions:
            if prediction.rows > max(1, largest[prediction.signature].rows if prediction.signature in largest else 0):
                largest[prediction.signature] = prediction
    found = {}
    for name, signature in signatures.items():
        if not is_mergeable(signature):
            continue
        try:
            rows = largest[name].inputs if name in largest else varied(warm_up_inputs(signature, MOST_ROWS))
        except RequestFailed:  # an input of a type that the queue cannot carry
            continue
        output = dependent_output(model, name, rows)
        if output:
            found[name] = output
    return found


def batch_sizes(batching: BatchingOptions) -> tuple[int, ...]:
    """The sizes that a version is warmed up with: those allowed, or else a single example and a full batch."""
    if not batching.is_enabled:
        return (1,)
    return batching.allowed_batch_sizes or tuple(dict.fromkeys((1, batching.largest_batch)))


def repeated(prediction: Prediction, rows: int) -> dict[str, np.ndarray]:
    """A prediction's inputs with its rows over again, up to `rows` of them."""
    picked = np.arange(rows) % prediction.rows
    return {name: array[picked] for name, array in prediction.inputs.items()}


class _Recorded:
    """The requests that came with a version. `counts`: how many were run, by signature."""

    def __init__(self, model: Model, directory: Path, options: ModelOptions) -> None:
        self._model, self._directory, self._options = model, directory, options
        self._signatures = {name: model.signatures[name] for name in model.callable_signatures()}
        self._largest: dict[str, Prediction] = {}
        self._skipped: list[str] = []
        self.counts = Counter[str]()

    def replay(self) -> None:
        """Runs all, as often as set; then, of each signature, the request with the most rows again as full batches."""
        for number, predictions in recorded_predictions(self._directory, self._signatures):
            for prediction in predictions:
                self._run(number, prediction)
        batching = self._options.batching
        sizes = batch_sizes(batching) if batching.allowed_batch_sizes else batch_sizes(batching)[-1:]
        for name, prediction in self._largest.items():
            if not is_mergeable(self._signatures[name]):
                continue
            try:
                for size in sizes:
                    self._model.run(name, repeated(prediction, size))
            except RequestFailed as error:  # the batcher would run such requests one by one
                self._skipped.append(f"signature {name} does not run as a full batch: {error.message[:200]}")

    def notes(self) -> list[str]:
        if not self.counts:
            return self._skipped
        parts = ", ".join(f"{count} of {name}" for name, count in sorted(self.counts.items()))
        return [f"warmed up with its recorded requests: {parts}", *self._skipped]

    def _run(self, number: int, prediction: Prediction) -> None:
        name = prediction.signature
        try:
            for _ in range(self._options.warm_up.iterations):
                self._model.run(name, prediction.inputs, prediction.output_filter)
        except RequestFailed as error:
            raise failed_request(number, error) from error
        self.counts[name] += 1
        if prediction.rows > (self._largest[name].rows if name in self._largest else 0):
            self._largest[name] = prediction
