"""A runner: one process that serves one version. It loads it, warms it up, says so, and then turns its loop:
take what waits, run it as few batches, hand out the answers, all with one write to Redis per turn.

What a crash leaves behind: requests taken and not answered stay pending under this runner's id; recovery.py puts
them back.
"""

import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from common.errors import Unavailable
from common.process import scheduling
from common.process.memory import give_back_free_memory
from common.process.retry import Backoff, Pauses
from common.process.scheduling import LoadPriority
from services.serving.batching.input_contract import read_contract
from services.serving.batching.merge import Batcher, Taken, is_long
from services.serving.engines.platforms import plugins as platforms
from services.serving.engines.platforms.loading import LoadedModel, LoadRequest
from services.serving.engines.warm_up import dependent_signatures, warm_up
from services.serving.options.runner_spec import RunnerSpec
from services.serving.queue.runner_queue import Completion, RunnerQueue, ServingMembership, completions
from services.serving.runner.batch_threads import BatchThreads
from services.serving.runner.control import Assignment, RunnerControl
from services.serving.wire.channel import JsonChannel
from services.serving.wire.keys import runner_id
from services.serving.wire.prediction import RequestFailed

logger = logging.getLogger(__name__)
LOAD_FAILED_STATUS = 3
_BLOCK_MILLISECONDS = 1000
_IDLE_WAIT_SECONDS = 1.0
_SLOT_SECONDS = 0.1
_MOST_PENDING = 10_000
_MOST_DEFERRED = 16
_EMPTY_SECONDS = 10.0
_REDIS_BACKOFF = Backoff(first_seconds=0.02, longest_seconds=1.0)


class Runner:
    """The loop of a loaded version."""

    def __init__(
        self,
        queue: RunnerQueue,
        batcher: Batcher,
        assignment: Assignment,
        *,
        linger_seconds: float,
        threads: BatchThreads | None = None,
    ) -> None:
        """threads: run the batches, several at a time; without them the loop runs one after the other itself."""
        self._queue = queue
        self._batcher = batcher
        self._assignment = assignment
        self._linger_seconds = linger_seconds
        self._threads = threads
        self._unsent: list[Completion] = []
        self._targets: tuple[str, ...] = ()
        self._deferred: list[Taken] = []
        """Requests of many calls that came while another one of them ran."""
        self._is_between_calls = self._is_alone = False
        if threads is None:
            batcher.between_calls = self._serve_others

    def run(self) -> None:
        """Returns when the runner was told to leave and everything it took is answered."""
        self._reconnect()
        while True:
            self._adopt()
            if not self._targets and not self._unsent:
                if self._assignment.is_leaving():
                    return
                self._assignment.wait_for_work(_IDLE_WAIT_SECONDS)
                continue
            try:
                taken = self._take() if self._can_run() else []
            except Unavailable as error:
                logger.warning("%s", error.message)
                self._reconnect()
                continue
            if taken:
                self._answer(taken)

    def _serve_others(self) -> None:
        """Answers what came while a request of many calls runs; the next such one, and a suspect, wait for its end."""
        if self._is_between_calls or self._is_alone or len(self._deferred) >= _MOST_DEFERRED:
            return
        self._is_between_calls = True
        taken: list[Taken] = []
        try:
            for item in self._take_now():
                waits = is_long(item.request) or item.request.failed_attempts
                (self._deferred if waits else taken).append(item)
            self._answer(taken)
            self._flush()
        except Unavailable as error:
            logger.warning("%s", error.message)  # The loop connects again; what was taken is pending here until then.
        finally:
            self._is_between_calls = False
            self._assignment.calls[0] = time.monotonic()

    def _take_now(self) -> list[Taken]:
        size = self._batcher.take_size
        taken = self._queue.exchange(self._unsent, self._targets, count=size, block_milliseconds=0)
        self._unsent = []
        return taken

    def _can_run(self) -> bool:
        """Whether a batch that is taken now runs at once. What is done is sent before anything is waited for."""
        if self._threads is None:
            return True
        self._unsent += self._threads.take_unsent()
        if self._unsent:
            self._flush()
        return self._threads.wait_for_slot(_SLOT_SECONDS)

    def _finish_batches(self) -> None:
        """Returns when no thread runs anything; a call that never ends is ended by the manager, and this runner too."""
        if self._threads is not None:
            while not self._threads.wait_until_idle(_IDLE_WAIT_SECONDS):
                continue
            self._unsent += self._threads.take_unsent()

    def _adopt(self) -> None:
        """Follows a change of the assignment: hands out what is done, empties and leaves the queues it gives up."""
        targets = self._assignment.wanted()
        dropped = set(self._targets) - set(targets)
        try:
            if dropped:
                self._finish_batches()
                self._empty(tuple(dropped & self._assignment.to_empty()))
                self._finish_batches()
                self._flush()
            for target in dropped:
                self._queue.leave(target)
        except Unavailable as error:
            logger.info("left a queue without order", extra={"queues": sorted(dropped), "reason": error.message})
        self._targets = targets
        self._assignment.adopt(targets)

    def _empty(self, targets: tuple[str, ...]) -> None:
        until = time.monotonic() + _EMPTY_SECONDS
        while targets and time.monotonic() < until:
            size = self._batcher.take_size
            taken = self._queue.exchange(self._unsent, targets, count=size, block_milliseconds=0)
            self._unsent = []
            if not taken:
                return
            self._answer(taken)

    def _take(self) -> list[Taken]:
        """Sends what is done and takes what waits; waits for a fuller batch when there is a linger."""
        size = self._batcher.take_size
        taken = self._queue.exchange(self._unsent, self._targets, count=size, block_milliseconds=_BLOCK_MILLISECONDS)
        self._unsent = []
        if not taken or not self._linger_seconds:
            return taken
        until = time.monotonic() + self._linger_seconds
        while len(taken) < size and (left_seconds := until - time.monotonic()) > 0:
            if left_seconds < 0.001:
                time.sleep(left_seconds)
            taken += self._queue.exchange(
                [], self._targets, count=size - len(taken), block_milliseconds=int(left_seconds * 1000)
            )
        return taken

    def _answer(self, taken: Sequence[Taken]) -> None:
        """Answers everything; the answers of the last call of the model stay unsent for the next write."""
        self._run([item for item in taken if not item.request.failed_attempts])
        suspects = [item for item in taken if item.request.failed_attempts]
        for suspect in suspects:
            # A request that was there when a runner died runs by itself, so that it cannot take others with it again.
            self._finish_batches()
            try:
                self._flush()
                self._queue.mark_alone(suspect)
            except Unavailable:
                break  # They stay pending here and are taken up after the reconnect.
            self._is_alone = True
            self._run([suspect])
            self._is_alone = False
            self._finish_batches()
        while self._deferred and not self._is_between_calls:
            self._answer([self._deferred.pop(0)])

    def _run(self, taken: Sequence[Taken]) -> None:
        groups, refused = self._batcher.plan(taken, now_micros=time.time_ns() // 1000)
        self._unsent += completions(refused)
        if self._threads is not None:
            for group in groups:
                while not self._threads.wait_for_slot(_IDLE_WAIT_SECONDS):
                    continue
                self._threads.submit(group)
            return
        calls = self._assignment.calls
        for index, group in enumerate(groups):
            if index:
                self._flush_if_possible()
                if group.has_parts:
                    self._serve_others()
            calls[0] = time.monotonic()
            done = completions(self._batcher.answer(group))  # Others may be answered meanwhile.
            self._unsent += done
            calls[0] = 0.0

    def _flush(self) -> None:
        self._queue.exchange(self._unsent, (), count=1, block_milliseconds=0)
        self._unsent = []

    def _flush_if_possible(self) -> None:
        try:
            self._flush()
        except Unavailable as error:
            logger.warning("%s", error.message)

    def _reconnect(self) -> None:
        """Tries until Redis is back; then sends what is done and takes up what was taken and not seen."""
        pauses = Pauses(_REDIS_BACKOFF)
        while True:
            try:
                self._finish_batches()  # What runs now is pending at this runner, too, and must not be run again.
                self._queue.connect()
                self._flush()
                taken = self._queue.own_pending(self._targets, count=_MOST_PENDING)
                break
            except Unavailable as error:
                logger.info("%s; trying again", error.message)
                time.sleep(pauses.next_seconds())
        self._batcher.queue_ahead_seconds = self._queue.ahead_seconds
        if taken:
            self._answer(taken)


_DEPENDENT = "rows of {} depend on each other (output {}): each request is a call of its own"


def run(spec: RunnerSpec, control: socket.socket, priority: LoadPriority) -> int:
    """A runner's life, from the fork on; returns the exit status. Reports over `control` (see runner_control.py):
    {"event": "ready", ...} once warm, or {"event": "failed", "code", "message"}."""
    channel = JsonChannel(control)
    started = time.monotonic()
    scheduling.step_back(priority)
    try:
        loaded = platforms.load(_load_request(spec))
        contract = read_contract(Path(spec.directory))
        loaded.signatures = contract.applied(loaded.signatures)
        notes = warm_up(loaded, Path(spec.directory), spec.options)
        dependent = dependent_signatures(loaded, Path(spec.directory), spec.options)
    except RequestFailed as error:
        channel.send({"event": "failed", "code": error.code, "message": error.message})
        return LOAD_FAILED_STATUS
    give_back_free_memory()
    scheduling.return_to_normal(priority)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    loading = {
        "load_priority": priority,
        "load_seconds": time.monotonic() - started,
        "load_cpu_seconds": usage.ru_utime + usage.ru_stime,
        "notes": [*notes, *(_DEPENDENT.format(name, output) for name, output in dependent.items())],
    }
    options = spec.options.batching
    batcher = Batcher(loaded, version=spec.version, options=options, contract=contract, alone=dependent)
    _serve(spec, channel, loaded, batcher, loading)
    return 0


def _serve(
    spec: RunnerSpec,
    channel: JsonChannel,
    loaded: LoadedModel,
    batcher: Batcher,
    loading: Mapping[str, Any],
) -> None:
    """Says that the runner is ready, and answers its queues until it is told to leave.

    Args:
        loading: what the report says of it.
    """
    batching = spec.options.batching
    name = runner_id(spec.replica, spec.model, spec.version, os.getpid())
    queue = RunnerQueue(spec.redis_url, model=spec.queue_name, runner_id=name)
    assignment = Assignment()

    def on_terminate(number: int, frame: FrameType | None) -> None:
        assignment.leave()

    signal.signal(signal.SIGTERM, on_terminate)
    control_thread = RunnerControl(
        channel,
        ServingMembership(spec.redis_url, model=spec.queue_name, runner_id=name),
        assignment,
        report=batcher.report,
        connection_id=lambda: queue.connection_id,
    )
    channel.send({
        "event": "ready",
        "runner_id": name,
        "signatures": {key: asdict(signature) for key, signature in loaded.signatures.items()},
        "engine": loaded.kind,
        "engine_reasons": dict(loaded.reasons),
        **loading,
    })  # fmt: skip
    control_thread.start()
    threads = _start_threads(spec, batcher, assignment, name)
    linger_seconds = batching.batch_timeout_micros / 1e6 if batching.is_enabled else 0.0
    Runner(queue, batcher, assignment, linger_seconds=linger_seconds, threads=threads).run()
    if threads is not None:
        threads.stop()
    control_thread.stop()
    queue.close()


def _start_threads(spec: RunnerSpec, batcher: Batcher, assignment: Assignment, name: str) -> BatchThreads | None:
    """None where the loop runs the batches itself."""
    batching = spec.options.batching
    if not batching.is_enabled or batching.num_batch_threads == 1:
        return None
    threads = BatchThreads(
        batching.num_batch_threads,
        batcher,
        assignment,
        make_queue=lambda: RunnerQueue(spec.redis_url, model=spec.queue_name, runner_id=name),
    )
    threads.start()
    return threads


def _load_request(spec: RunnerSpec) -> LoadRequest:
    return LoadRequest(
        model=spec.model,
        version=spec.version,
        directory=Path(spec.directory),
        options=spec.options,
        is_cautious=spec.is_cautious,
        engines_dir=Path(spec.engines_dir) if spec.engines_dir else None,
    )
