"""Many requests, few calls of the model: merge what fits together, run it, cut the outputs apart again.

A request that fails never takes another one with it: a merged batch that fails is run again one by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from protos import queue_pb2
from services.serving.prediction import (
    DEADLINE_EXCEEDED,
    Arrays,
    Prediction,
    RequestFailed,
    failure,
    numpy_type,
    read_prediction,
    write_tensor,
)
from services.serving.replica_state import Signature, TensorSpec


class Model(Protocol):
    """What is asked of an engine."""

    signatures: dict[str, Signature]

    def callable_signatures(self) -> tuple[str, ...]: ...

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True, slots=True)
class Taken:
    """A request as a runner took it from a queue."""

    target: str
    entry_id: bytes
    request: queue_pb2.PredictionRequest


@dataclass(frozen=True, slots=True)
class Answer:
    taken: Taken
    reply: queue_pb2.PredictionReply


@dataclass(slots=True)
class Counts:
    """What a runner has done since it started."""

    batches: int = 0
    requests: int = 0
    examples: int = 0
    failed: int = 0


@dataclass(slots=True)
class Member:
    """One request of a group; `rows` of it go into the merged batch."""

    taken: Taken
    prediction: Prediction


@dataclass(slots=True)
class Group:
    members: list[Member] = field(default_factory=list)
    rows: int = 0


class Batcher:
    """Runs what a runner took. Not thread-safe."""

    def __init__(self, model: Model, *, version: int, max_batch_size: int) -> None:
        self._model = model
        self._version = version
        self._max_batch_size = max_batch_size
        self._signatures = {name: model.signatures[name] for name in model.callable_signatures()}
        self._mergeable = {name for name, signature in self._signatures.items() if is_mergeable(signature)}
        self.counts = Counts()

    def plan(self, requests: Sequence[Taken], *, now_micros: int) -> tuple[list[Group], list[Answer]]:
        """Groups of requests that share a call, at most max_batch_size rows each, and answers to those refused."""
        refused: list[Answer] = []
        closed: list[Group] = []
        open_groups: dict[tuple[object, ...], Group] = {}
        for taken in requests:
            try:
                prediction = self._read(taken.request, now_micros)
            except RequestFailed as error:
                refused.append(Answer(taken, failure(taken.request.request_id, self._version, error)))
                continue
            member = Member(taken, prediction)
            if prediction.rows < 0 or prediction.signature not in self._mergeable:
                closed.append(Group([member], prediction.rows))
                continue
            # Their dtypes are the signature's; so these can be put together along dimension 0.
            key = (prediction.signature, prediction.output_filter, prediction.trailing_shapes)
            group = open_groups.get(key)
            if group is not None and group.rows + prediction.rows > self._max_batch_size:
                closed.append(open_groups.pop(key))
                group = None
            if group is None:
                group = open_groups[key] = Group()
            group.members.append(member)
            group.rows += prediction.rows
        self.counts.requests += len(requests)
        self.counts.failed += len(refused)
        return closed + list(open_groups.values()), refused

    def _read(self, request: queue_pb2.PredictionRequest, now_micros: int) -> Prediction:
        if 0 < request.deadline_at_micros < now_micros:
            late_seconds = (now_micros - request.deadline_at_micros) / 1e6
            raise RequestFailed(DEADLINE_EXCEEDED, f"the deadline passed {late_seconds:.3f} s before a runner was free")
        return read_prediction(request, self._signatures)

    def answer(self, group: Group) -> list[Answer]:
        """Runs a group; every request of it gets one answer."""
        if len(group.members) == 1:
            return [self._answer_alone(group.members[0])]
        first = group.members[0].prediction
        merged = {
            name: np.concatenate([member.prediction.inputs[name] for member in group.members]) for name in first.inputs
        }
        try:
            outputs = self._run(first.signature, merged, first.output_filter, group.rows)
        except RequestFailed:
            return [self._answer_alone(member) for member in group.members]
        if not _has_rows(outputs, group.rows):
            self._mergeable.discard(first.signature)
            return [self._answer_alone(member) for member in group.members]
        answers, start = [], 0
        for member in group.members:
            stop = start + member.prediction.rows
            answers.append(self._reply(member.taken, {name: array[start:stop] for name, array in outputs.items()}))
            start = stop
        return answers

    def _answer_alone(self, member: Member) -> Answer:
        prediction = member.prediction
        try:
            if prediction.rows > self._max_batch_size and prediction.signature in self._mergeable:
                outputs = self._run_in_parts(prediction)
            else:
                outputs = self._run(
                    prediction.signature, prediction.inputs, prediction.output_filter, max(prediction.rows, 1)
                )
        except RequestFailed as error:
            self.counts.failed += 1
            return Answer(member.taken, failure(member.taken.request.request_id, self._version, error))
        return self._reply(member.taken, outputs)

    def _run_in_parts(self, prediction: Prediction) -> dict[str, np.ndarray]:
        """Runs a request of more rows than a batch may have, part by part."""
        parts = []
        for start in range(0, prediction.rows, self._max_batch_size):
            stop = min(start + self._max_batch_size, prediction.rows)
            inputs = {name: array[start:stop] for name, array in prediction.inputs.items()}
            part = self._run(prediction.signature, inputs, prediction.output_filter, stop - start)
            if not _has_rows(part, stop - start):
                self._mergeable.discard(prediction.signature)
                return self._run(prediction.signature, prediction.inputs, prediction.output_filter, prediction.rows)
            parts.append(part)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...], rows: int) -> dict[str, np.ndarray]:
        self.counts.batches += 1
        outputs = self._model.run(signature, inputs, output_filter)
        self.counts.examples += rows
        return outputs

    def _reply(self, taken: Taken, outputs: Mapping[str, np.ndarray]) -> Answer:
        reply = queue_pb2.PredictionReply(request_id=taken.request.request_id, version=self._version)
        try:
            for name, array in outputs.items():
                write_tensor(reply.outputs.add(), name, array)
        except RequestFailed as error:
            self.counts.failed += 1
            return Answer(taken, failure(taken.request.request_id, self._version, error))
        return Answer(taken, reply)


def warm_up_inputs(signature: Signature, batch_size: int) -> dict[str, np.ndarray]:
    """Zeros and empty strings that fit a signature; sizes that are not fixed are `batch_size` first, then 1.

    Raises:
        RequestFailed: an input has a type that the queue cannot carry.
    """
    return {name: _zeros(name, spec, batch_size) for name, spec in signature.inputs.items()}


def _zeros(name: str, spec: TensorSpec, batch_size: int) -> np.ndarray:
    dtype = numpy_type(name, spec)
    sizes = spec.shape if spec.shape is not None else (-1,)
    shape = tuple(size if size >= 0 else (batch_size if axis == 0 else 1) for axis, size in enumerate(sizes))
    if dtype == np.dtype(object):
        return np.full(shape, b"", object)
    return np.zeros(shape, dtype)


def is_mergeable(signature: Signature) -> bool:
    """True when requests may share a call: every tensor has rows, as many as come."""
    specs = (*signature.inputs.values(), *signature.outputs.values())
    return bool(signature.inputs) and all(spec.shape is None or spec.shape[:1] == (-1,) for spec in specs)


def _has_rows(outputs: Mapping[str, np.ndarray], rows: int) -> bool:
    return all(array.ndim > 0 and array.shape[0] == rows for array in outputs.values())
