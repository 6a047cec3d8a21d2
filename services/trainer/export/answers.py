"""Loads an export as a replica does and answers its warm-up requests: TensorFlow alone, none of the model's Python.

Runs in a process of its own (fresh_process.py). What a replica could not do fails here too: operations that call
Python, tables without their words, a row alone that the graph does not take.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.saved_model import loader_impl

from common.errors import InvalidInput
from common.eventlog.tfrecord import cut
from protos import tfserving_pb2, warmup_pb2
from services.trainer.export.arrays import Arrays, arrays_of
from services.trainer.families import own_operations

TOLERANCES: Mapping[str, float] = {"float32": 1e-4, "float16": 8 * 2.0**-11, "bfloat16": 8 * 2.0**-8}
"""Relative and absolute, by what the model computes in: below float32 a few roundings."""
_TIMED_CALLS, _MOST_TIMED_SECONDS = 500, 5.0
_EXECUTOR_TYPE = "SINGLE_THREADED_EXECUTOR"


@dataclass(frozen=True)
class Question:
    """A warm-up request with the model's own answer to it."""

    signature: str
    inputs: Arrays
    outputs: Arrays


class Exports:
    """Exports of one program: the first is loaded, the others have their variables restored into it, as a runner does
    that takes states."""

    def __init__(self) -> None:
        self._loaded: _Loaded | None = None

    def compare(
        self, directory: Path, requests: Path, answers: Path, *, is_cautious: bool, precision: str = "float32",
        latency: Path | None = None,
    ) -> str:  # fmt: skip
        """A sentence about the first request that is not answered as the model answers it; empty when all are.

        Args:
            directory: the SavedModel.
            requests, answers: TFRecord files of as many PredictionLog and PredictResponse messages.
            is_cautious: use the default executor from the start, as serving does after the single-threaded one has
                crashed.
            precision: of TOLERANCES.
            latency: gets how fast requests of one row are answered, where all are answered as the model answers them.
        """
        try:
            questions = _questions(requests, answers)
            if self._loaded:
                self._loaded.take(directory)
            else:
                own_operations.load_listed(directory)
                self._loaded = _loaded(directory, is_cautious=is_cautious)
        except (InvalidInput, tf.errors.OpError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            return f"the export cannot be loaded in a process of its own: {_message_of(error)}"
        fault = _compared(questions, self._loaded.answer, precision)
        if latency is not None and not fault:
            latency.write_text(json.dumps(latency_of(questions, self._loaded.answer)))
        return fault


def latency_of(questions: Sequence[Question], answer: Callable[[Question], Arrays]) -> dict[str, float]:
    """{"p99_ms", "calls"} of the requests of one row in turn. Seconds without a core do not count: a call took what
    passed, or the process's CPU time where that is less."""
    alone = [question for question in questions if _row_count(question) == 1]
    taken = list[float]()
    until = time.monotonic() + _MOST_TIMED_SECONDS
    while len(taken) < _TIMED_CALLS and (not taken or time.monotonic() < until):
        began, busy = time.perf_counter(), time.process_time()
        answer(alone[len(taken) % len(alone)])
        taken.append(min(time.perf_counter() - began, time.process_time() - busy))
    return {"p99_ms": round(1000 * float(np.quantile(taken, 0.99)), 4), "calls": len(taken)}


def _compared(questions: Sequence[Question], answer: Callable[[Question], Arrays], precision: str) -> str:
    for number, question in enumerate(questions, 1):
        place = f"{question.signature}, warm-up request {number} of {len(questions)} ({_rows_of(question)})"
        try:
            got = answer(question)
        except (tf.errors.OpError, ValueError, KeyError, TypeError) as error:
            return f"the export does not answer {place}: {_message_of(error)}"
        found = difference(question.outputs, got, TOLERANCES[precision])
        if found:
            return (
                f"the export does not answer as the model does: {place}: {found}. What Python makes in a call, such as "
                f"numpy's random numbers and counters, is made once for a graph; use TensorFlow's and variables"
            )
    return ""


def difference(expected: Arrays, got: Arrays, tolerance: float) -> str:
    """Which output differs and by how much; empty when none does."""
    if expected.keys() != got.keys():
        return f"the outputs are {', '.join(sorted(got))}, the model's are {', '.join(sorted(expected))}"
    for name, value in expected.items():
        other = got[name]
        if value.shape != other.shape:
            return f"output {name} has shape {list(other.shape)}, the model's has {list(value.shape)}"
        if value.dtype.kind != "f":
            if not np.array_equal(value, other):
                return f"output {name} differs"
        elif not np.allclose(other, value, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"output {name} differs by up to {np.nanmax(np.abs(other - value)):.3g}"
    return ""


def _questions(requests: Path, answers: Path) -> list[Question]:
    pairs = zip(cut(requests.read_bytes())[0], cut(answers.read_bytes())[0], strict=True)
    questions = []
    for request_bytes, answer_bytes in pairs:
        request = warmup_pb2.PredictionLog.FromString(request_bytes).predict_log.request
        answer = tfserving_pb2.PredictResponse.FromString(answer_bytes)
        inputs, outputs = arrays_of(request.inputs), arrays_of(answer.outputs)
        questions.append(Question(request.model_spec.signature_name, inputs, outputs))
    return questions


def _row_count(question: Question) -> int:
    return next((len(value) for value in question.inputs.values() if value.ndim), 1)


def _rows_of(question: Question) -> str:
    """What a reader needs to find the row: "1 row; tags [1, 0]"."""
    shapes = [f"{name} {list(value.shape)}" for name, value in sorted(question.inputs.items())]
    rows = _row_count(question)
    return f"{rows} row{'s' if rows != 1 else ''}: {', '.join(shapes)}"


class _Loaded:
    """The calls that serving's engine makes: v1's loader, a compiled call per signature."""

    def __init__(self, directory: Path, executor_type: str) -> None:
        config = config_pb2.ConfigProto(
            intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, use_per_session_threads=True
        )
        config.device_count["GPU"] = 0
        config.experimental.executor_type = executor_type
        graph = tf.Graph()
        self._session = session = tf.compat.v1.Session(graph=graph, config=config)
        loader = loader_impl.SavedModelLoader(str(directory))
        with graph.as_default():
            self._saver, _ = loader.load_graph(graph, [tf.saved_model.SERVING])
            self._meta_graph = loader.get_meta_graph_def_from_tags([tf.saved_model.SERVING])
            self._initialise = loader_impl.get_init_op(self._meta_graph)
        self._signatures = self._meta_graph.signature_def
        self.take(directory)
        self._calls: dict[str, Callable[..., Any]] = {}
        for name, signature in self._signatures.items():
            if not signature.outputs or not all(":" in info.name for info in signature.outputs.values()):
                continue
            options = config_pb2.CallableOptions()
            options.feed.extend(signature.inputs[key].name for key in sorted(signature.inputs))
            options.fetch.extend(signature.outputs[key].name for key in sorted(signature.outputs))
            options.run_options.inter_op_thread_pool = -1
            self._calls[name] = session._make_callable_from_options(options)

    def take(self, directory: Path) -> None:
        """Restores the variables of an export of this program, and fills its tables."""
        with self._session.graph.as_default():
            if self._saver is not None:
                self._saver.restore(self._session, str(directory / "variables" / "variables"))
            if self._initialise is not None:
                self._session.run(self._initialise, loader_impl.get_asset_tensors(str(directory), self._meta_graph))

    def answer(self, question: Question) -> Arrays:
        inputs = [question.inputs[key] for key in sorted(self._signatures[question.signature].inputs)]
        values = self._calls[question.signature](*inputs)
        names = sorted(self._signatures[question.signature].outputs)
        return {name: _array(value) for name, value in zip(names, values, strict=True)}


def _loaded(directory: Path, *, is_cautious: bool) -> _Loaded:
    executors = ("",) if is_cautious else (_EXECUTOR_TYPE, "")
    for executor in executors:
        try:
            return _Loaded(directory, executor)
        except tf.errors.OpError as error:
            if not executor or "ingle-threaded executor" not in str(error.message):
                raise
    raise AssertionError("the default executor takes every graph or raises")


def _array(value: Any) -> NDArray[Any]:
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def _message_of(error: Exception) -> str:
    text = str(error.message) if isinstance(error, tf.errors.OpError) else f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:3])[:600]
