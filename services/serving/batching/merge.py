"""Many requests, few calls of the model: merge requests that fit together, run them, cut the outputs apart again.

A request that fails never takes another with it: the requests of a failed batch run again, each alone.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from protos import queue_pb2
from services.serving.batching.broken_rules import with_place
from services.serving.batching.groups import Answer, Group, Grouping, Member, Part, Taken
from services.serving.batching.input_contract import InputContract, OutOfBounds
from services.serving.batching.models import Model, is_mergeable
from services.serving.batching.objective import BatchSizeLimit
from services.serving.batching.splitting import joined, merge, padded_size, rows_of
from services.serving.options.model_options import BatchingOptions
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.limits import LONG_ROWS
from services.serving.wire.prediction import (
    Arrays,
    Prediction,
    RequestFailed,
    failure,
    invalid,
    read_prediction,
    write_tensor,
)
from services.serving.wire.replica_state import Signature
from services.serving.wire.work import UNKNOWN_SIGNATURE, Work, waits_of

_UNBATCHED_TAKE = 8
"""Requests that are taken with a single command where each is run by itself."""


class Batcher:
    """Plans batches and runs them. `plan` belongs to one thread; `answer` may run in several at once if the model may.

    Requests to the signatures in `alone` share no call: their rows depend on each other (row_independence.py).
    `queue_ahead_seconds` is by how much the queue's clock is ahead of this machine's.
    """

    def __init__(
        self,
        model: Model,
        *,
        version: int,
        options: BatchingOptions,
        contract: InputContract | None = None,
        alone: Collection[str] = (),
        clock: Callable[[], float] = time.perf_counter,
        epoch_clock: Callable[[], float] = time.time,
    ) -> None:
        self._model = model
        self._version = version
        self._options = options
        self._contract = contract or InputContract()
        self._clock, self._epoch_clock = clock, epoch_clock
        self._words = self._contract.class_words
        self._signatures = self._words.client_signatures(
            {name: model.signatures[name] for name in model.callable_signatures()}
        )
        self._mergeable = {name for name, signature in self._signatures.items() if is_mergeable(signature)}
        self._mergeable -= set(alone)
        if not options.is_enabled:
            self._mergeable.clear()
        self._grouping = Grouping(options, self._contract, self._signatures, self._mergeable)
        self._limit = _limit_of(options)
        self._limit_lock = threading.Lock()
        self.queue_ahead_seconds = 0.0
        self.between_calls: Callable[[], None] = _nothing
        """Called between two calls of the model for one request, so that others need not wait for all of them."""
        self.work = Work()

    @property
    def batch_size(self) -> int:
        """Examples that a batch may have now."""
        return self._limit.size if self._limit is not None else self._options.largest_batch

    @property
    def take_size(self) -> int:
        """Requests to take from a queue at once."""
        return self.batch_size if self._options.is_enabled else _UNBATCHED_TAKE

    def signatures(self, of_model: Mapping[str, Signature]) -> dict[str, Signature]:
        """As clients see them."""
        return self._words.client_signatures(of_model)

    def report(self) -> dict[str, Any]:
        """The work since the start, for the manager. JSON-ready."""
        predicted_seconds = self._limit.predicted_seconds if self._limit is not None else 0.0
        return self.work.to_mapping() | {"batch_size": self.batch_size, "predicted_p99_seconds": predicted_seconds}

    def plan(self, requests: Sequence[Taken], *, now_micros: int) -> tuple[list[Group], list[Answer]]:
        """Groups of requests that share a call, at most batch_size rows each, and answers to those refused."""
        members: list[Member] = []
        refused: list[Answer] = []
        for taken in requests:
            try:
                members.append(Member(taken, self._read(taken.request, now_micros)))
            except RequestFailed as error:
                refused.append(self._refuse(taken, error))
        return self._grouping.groups_of(members, self.batch_size), refused

    def _read(self, request: queue_pb2.PredictionRequest, now_micros: int) -> Prediction:
        if 0 < request.deadline_at_micros < now_micros:
            late_seconds = (now_micros - request.deadline_at_micros) / 1e6
            raise RequestFailed(
                Code.DEADLINE_EXCEEDED, f"the deadline passed {late_seconds:.3f} s before a runner was free"
            )
        prediction = read_prediction(request, self._signatures)
        if prediction.rows > self._options.max_batch_size:
            self._check_size(prediction.rows)
        if prediction.defaulted:
            self.work.defaulted(prediction.signature, prediction.defaulted)
        return prediction

    def _check_size(self, rows: int) -> None:
        """Raises RequestFailed, in TensorFlow Serving's words, for more rows than a request may have."""
        options = self._options
        is_taken = options.enable_large_batch_splitting is not False and options.max_execution_batch_size is None
        if options.is_enabled and not is_taken:
            raise invalid(f"Task size {rows} is larger than maximum input batch size {options.max_batch_size}")

    def _refuse(self, taken: Taken, error: RequestFailed) -> Answer:
        signature = taken.request.signature or DEFAULT_SIGNATURE
        known = signature if signature in self._signatures else UNKNOWN_SIGNATURE
        self.work.failed(known, error.code, is_begun=False)
        return Answer(taken, failure(taken.request.request_id, self._version, error))

    def answer(self, group: Group) -> list[Answer]:
        """Runs a group; every request of it gets one answer, a split request with the last of its parts."""
        traced = [member for member in group.members if member.taken.request.traceparent]
        began_at = time.time_ns() if traced else 0
        if group.has_parts:
            answers = self._answer_with_parts(group)
        else:
            answers = self._answer_members(group.members, self._begin(group.members, group.members))
        if traced:
            _note_batch(group, answers, began_at)
        return answers

    def _answer_members(self, members: Sequence[Member], wait_seconds: float) -> list[Answer]:
        """As `answer`, for whole requests that have left the queue."""
        if len(members) == 1:
            return [self._answer_alone(members[0], wait_seconds)]
        rows = sum(member.prediction.rows for member in members)
        inputs = [member.prediction.inputs for member in members]
        try:
            outputs = self._run_batch(members[0].prediction, inputs, rows, wait_seconds)
        except OutOfBounds:
            return self._answer_within_bounds(members, wait_seconds)
        except RequestFailed:
            outputs = None
        if outputs is None:
            return [self._answer_alone(member, wait_seconds) for member in members]
        answers, start = [], 0
        for member in members:
            stop = start + member.prediction.rows
            answers.append(self._reply(member, {name: array[start:stop] for name, array in outputs.items()}))
            start = stop
        return answers

    def _answer_within_bounds(self, members: Sequence[Member], wait_seconds: float) -> list[Answer]:
        """Refuses those of a batch that the version's schema refuses, and runs the others together."""
        answers: list[Answer] = []
        within: list[Member] = []
        for member in members:
            prediction = member.prediction
            try:
                self._contract.check(prediction.signature, prediction.inputs)
                within.append(member)
            except RequestFailed as error:
                answers.append(self._fail(member, error))
        return answers + (self._answer_members(within, wait_seconds) if within else [])

    def _fail(self, member: Member, error: RequestFailed) -> Answer:
        """The answer of a request that left the queue and failed."""
        self.work.failed(member.prediction.signature, error.code, is_begun=True)
        return Answer(member.taken, failure(member.taken.request.request_id, self._version, error))

    def _begin(self, members: Sequence[Member], first_seen: Sequence[Member]) -> float:
        """Counts the requests that leave the queue with this batch; returns how long its longest waited, for the
        objective."""
        now_seconds = self._epoch_clock() + self.queue_ahead_seconds
        signature = members[0].prediction.signature
        self.work.began(signature, [member.taken.entry_id for member in first_seen], now_seconds)
        if self._limit is None:
            return 0.0
        return max(waits_of([members[0].taken.entry_id], now_seconds))  # They come in the order they were put in.

    def _answer_with_parts(self, group: Group) -> list[Answer]:
        """As `answer`, for a group in which there are rows of requests that have others elsewhere."""
        members = [member for member in group.members if not (isinstance(member, Part) and member.whole.is_settled)]
        if not members:
            return []
        first_seen = [member for member in members if not isinstance(member, Part) or member.whole.begin()]
        wait_seconds = self._begin(members, first_seen)
        outputs = self._run_together(members, wait_seconds)
        answers, start = [], 0
        for member in members:
            stop = start + member.prediction.rows
            own = {name: array[start:stop] for name, array in outputs.items()} if outputs is not None else None
            start = stop
            if isinstance(member, Part):
                answers += self._answer_part(member, own, wait_seconds)
            elif own is None:
                answers.append(self._answer_alone(member, wait_seconds))
            else:
                answers.append(self._reply(member, own))
        return answers

    def _run_together(self, members: Sequence[Member], wait_seconds: float) -> dict[str, np.ndarray] | None:
        """The outputs of the rows of all; None when each has to run by itself."""
        rows = sum(member.prediction.rows for member in members)
        like = members[0].prediction
        try:
            outputs = self._run_batch(like, [member.prediction.inputs for member in members], rows, wait_seconds)
        except RequestFailed:
            return None
        if outputs is not None and not _has_rows(outputs, rows):
            self._mergeable.discard(like.signature)
            return None
        return outputs

    def _answer_part(self, part: Part, outputs: Arrays | None, wait_seconds: float) -> list[Answer]:
        """The answer of a request whose last part this is; without outputs the request runs by itself, now."""
        member = Member(part.taken, part.whole.prediction)
        if outputs is None:
            return [self._answer_alone(member, wait_seconds)] if part.whole.claim() else []
        parts = part.whole.add(part.start, part.prediction.rows, outputs)
        if parts is None:
            return []
        whole = joined(parts)
        return [self._answer_alone(member, wait_seconds) if whole is None else self._reply(member, whole)]

    def _answer_alone(self, member: Member, wait_seconds: float) -> Answer:
        prediction = member.prediction
        outputs = None
        try:
            most_rows = 0 if self._options.allowed_batch_sizes else self.batch_size
            if prediction.rows > most_rows and prediction.signature in self._mergeable:
                outputs = self._run_in_parts(prediction, wait_seconds)
            if outputs is None:
                outputs = self._call(prediction, prediction.inputs, max(prediction.rows, 1), 0, wait_seconds)
        except RequestFailed as error:
            return self._fail(member, with_place(error, prediction, partial(self._try_rows, prediction)))
        return self._reply(member, outputs)

    def _try_rows(self, prediction: Prediction, start: int, stop: int) -> None:
        """Runs some rows for the error that they make. Raises RequestFailed."""
        for first in range(start, stop, LONG_ROWS):
            inputs = rows_of(prediction, first, min(first + LONG_ROWS, stop)).inputs
            self._run_model(prediction, inputs)

    def _run_model(self, like: Prediction, inputs: Arrays) -> dict[str, np.ndarray]:
        """Raises RequestFailed."""
        computed = self._words.model_outputs(like.signature, like.output_filter)
        outputs = self._model.run(like.signature, inputs, computed)
        return self._words.with_words(like.signature, outputs, like.output_filter)

    def _run_in_parts(self, prediction: Prediction, wait_seconds: float) -> dict[str, np.ndarray] | None:
        """Runs one request, in parts where it has more rows than a batch may have. None: its outputs have no rows, or
        the parts' cannot be put together."""
        size, rows = self.batch_size, prediction.rows
        if not self._options.splits_large_requests:
            size = max(size, LONG_ROWS)
        if rows <= size:
            return self._run_batch(prediction, [prediction.inputs], rows, wait_seconds)
        parts = []
        for start in range(0, rows, size):
            stop = min(start + size, rows)
            if start:
                self.between_calls()
            inputs = rows_of(prediction, start, stop).inputs
            part = self._run_batch(prediction, [inputs], stop - start, wait_seconds)
            if part is None or not _has_rows(part, stop - start):
                self._mergeable.discard(prediction.signature)
                return None
            parts.append(part)
        return joined(parts)

    def _run_batch(
        self, like: Prediction, members: Sequence[Arrays], rows: int, wait_seconds: float
    ) -> dict[str, np.ndarray] | None:
        """Runs requests as one batch of an allowed size and cuts the padding off. None: the outputs have no rows."""
        size = padded_size(rows, self._options.allowed_batch_sizes)
        if len(members) == 1 and size == rows:
            return self._call(like, members[0], rows, 0, wait_seconds)
        pads_inner = self._options.pad_variable_length_inputs
        inputs = merge(members, size, pads_inner=pads_inner, fillers=self._contract.pads(like.signature))
        outputs = self._call(like, inputs, rows, size - rows, wait_seconds)
        if not _has_rows(outputs, size):
            self._mergeable.discard(like.signature)
            return None
        return {name: array[:rows] for name, array in outputs.items()} if size > rows else outputs

    def _call(
        self, like: Prediction, inputs: Arrays, rows: int, padding_rows: int, wait_seconds: float
    ) -> dict[str, np.ndarray]:
        self._contract.check(like.signature, inputs)
        began = self._clock()
        outputs = self._run_model(like, inputs)
        seconds = self._clock() - began
        self.work.called(like.signature, rows=rows, padding_rows=padding_rows, seconds=seconds)
        if self._limit is not None and like.signature in self._mergeable:
            with self._limit_lock:
                self._limit.observe(rows, engine_seconds=seconds, wait_seconds=wait_seconds)
        return outputs

    def _reply(self, member: Member, outputs: Mapping[str, np.ndarray]) -> Answer:
        taken = member.taken
        reply = queue_pb2.PredictionReply(request_id=taken.request.request_id, version=self._version)
        try:
            for name, array in outputs.items():
                write_tensor(reply.outputs.add(), name, array)
        except RequestFailed as error:
            return self._fail(member, error)
        return Answer(taken, reply)


def is_long(request: queue_pb2.PredictionRequest) -> bool:
    """Whether it may take several calls of the model."""
    return any(tensor.shape[0] > LONG_ROWS for tensor in request.inputs if tensor.shape)


def _nothing() -> None:
    """Nobody else is to be served meanwhile."""


def _note_batch(group: Group, answers: Sequence[Answer], began_at: int) -> None:
    """Writes the runner into the answers of traced requests. began_at: epoch nanoseconds."""
    batch = queue_pb2.Batch(
        began_at_micros=began_at // 1000,
        ended_at_micros=time.time_ns() // 1000,
        requests=len(group.members),
        rows=sum(max(member.prediction.rows, 1) for member in group.members),
        runner_pid=os.getpid(),
    )
    for answer in answers:
        if answer.taken.request.traceparent:
            answer.reply.batch.CopyFrom(batch)


def _limit_of(options: BatchingOptions) -> BatchSizeLimit | None:
    if options.slo_ms is None or not options.is_enabled:
        return None
    return BatchSizeLimit(
        options.slo_ms / 1000, largest=options.largest_batch, allowed_sizes=options.allowed_batch_sizes
    )


def _has_rows(outputs: Mapping[str, np.ndarray], rows: int) -> bool:
    return all(array.ndim > 0 and array.shape[0] == rows for array in outputs.values())
