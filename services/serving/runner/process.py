"""A runner: a process that serves the versions of a program. It loads the first, warms it up, reports it, and then
turns its loop: take waiting requests, run them as few batches, hand out the answers, all with a write to Redis per
turn. More versions come, and go, beside the loop (states.py), and more models with loops like it (neighbours.py).

After a crash requests taken and not answered stay pending under this runner's id; recovery.py puts
them back.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import Unavailable
from common.process import scheduling
from common.process.memory import give_back_free_memory
from common.process.retry import Backoff, Pauses
from common.process.scheduling import LoadPriority
from services.serving.batching.groups import Group, Taken
from services.serving.batching.input_contract import read_contract
from services.serving.batching.merge import Batcher, is_long
from services.serving.engines.platforms import plugins as platforms
from services.serving.engines.platforms.loading import LoadRequest, TakesStates
from services.serving.options.runner_spec import RunnerSpec
from services.serving.queue.runner_queue import Completion, RunnerQueue, ServingMembership, completions
from services.serving.runner.batch_threads import BatchThreads
from services.serving.runner.control import Assignment, Routes, RunnerControl
from services.serving.runner.neighbours import Neighbours
from services.serving.runner.states import Held, Send, States, described, held_of
from services.serving.wire.channel import JsonChannel, Message
from services.serving.wire.keys import runner_id
from services.serving.wire.prediction import RequestFailed

logger = logging.getLogger(__name__)
LOAD_FAILED_STATUS = 3
_BLOCK_MILLISECONDS = 1000
_IDLE_WAIT_SECONDS = 1.0
_SLOT_SECONDS = 0.1
_MOST_PENDING = 10_000
_MOST_DEFERRED = 16
_SWITCH_SECONDS = 0.0005
"""A batch waits as long for Python's lock at most while another thread takes a version; Python's default is 5 ms."""
_EMPTY_SECONDS = 10.0
_REDIS_BACKOFF = Backoff(first_seconds=0.02, longest_seconds=1.0)


class Runner:
    """The loop. Which version answers a queue changes between two batches."""

    def __init__(
        self,
        queue: RunnerQueue,
        batchers: Mapping[int, Batcher],
        assignment: Assignment,
        *,
        linger_seconds: float,
        threads: BatchThreads | None = None,
    ) -> None:
        """batchers: of every version that an assignment names; others come and go meanwhile.
        threads: run the batches, several at a time; without them the loop runs batches itself."""
        self._queue = queue
        self._batchers = batchers
        self._assignment = assignment
        self._linger_seconds = linger_seconds
        self._threads = threads
        self._unsent: list[Completion] = []
        self._routes: Routes = {}
        self._deferred: list[Taken] = []
        """Requests of many calls that came while another of them ran."""
        self._is_between_calls = self._is_alone = False

    def run(self) -> None:
        """Returns when the runner has the order to leave and all its requests are answered."""
        self._reconnect()
        while True:
            self._adopt()
            if not self._routes and not self._unsent:
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
        """Answers requests that came while a request of many calls runs; the next such, and a suspect, wait for its
        end."""
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
            logger.warning("%s", error.message)  # The loop connects again; taken requests are pending here until then.
        finally:
            self._is_between_calls = False
            self._assignment.calls[0] = time.monotonic()

    def _take_now(self) -> list[Taken]:
        targets = tuple(self._routes)
        taken = self._queue.exchange(self._unsent, targets, count=self._take_size(), block_milliseconds=0)
        self._unsent = []
        return taken

    def _can_run(self) -> bool:
        """Whether a batch that is taken now runs at once. Answers are sent before any wait."""
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
        """Follows a change of the assignment: hands answers out, empties and leaves the queues it gives up."""
        routes = self._assignment.wanted()
        if routes is self._routes:
            return
        dropped = self._routes.keys() - routes.keys()
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
        self._routes = routes
        self._prepare()
        self._assignment.adopt(routes)

    def _prepare(self) -> None:
        """Gives the batchers the facts that only the loop knows."""
        for version in self._routes.values():
            batcher = self._batchers[version]
            batcher.queue_ahead_seconds = self._queue.ahead_seconds
            if self._threads is None:
                batcher.between_calls = self._serve_others

    def _take_size(self) -> int:
        return max((self._batchers[version].take_size for version in self._routes.values()), default=1)

    def _empty(self, targets: tuple[str, ...]) -> None:
        until = time.monotonic() + _EMPTY_SECONDS
        while targets and time.monotonic() < until:
            taken = self._queue.exchange(self._unsent, targets, count=self._take_size(), block_milliseconds=0)
            self._unsent = []
            if not taken:
                return
            self._answer(taken)

    def _take(self) -> list[Taken]:
        """Sends answers and takes requests; waits for a fuller batch when there is a linger."""
        size, targets = self._take_size(), tuple(self._routes)
        taken = self._queue.exchange(self._unsent, targets, count=size, block_milliseconds=_BLOCK_MILLISECONDS)
        self._unsent = []
        if not taken or not self._linger_seconds:
            return taken
        until = time.monotonic() + self._linger_seconds
        while len(taken) < size and (left_seconds := until - time.monotonic()) > 0:
            if left_seconds < 0.001:
                time.sleep(left_seconds)
            taken += self._queue.exchange(
                [], targets, count=size - len(taken), block_milliseconds=int(left_seconds * 1000)
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
        planned: list[tuple[Batcher, Group]] = []
        for version, own in self._by_version(taken).items():
            batcher = self._batchers[version]
            groups, refused = batcher.plan(own, now_micros=time.time_ns() // 1000)
            planned += [(batcher, group) for group in groups]
            self._unsent += completions(refused)
        if self._threads is not None:
            for batcher, group in planned:
                while not self._threads.wait_for_slot(_IDLE_WAIT_SECONDS):
                    continue
                self._threads.submit(batcher, group)
            return
        calls = self._assignment.calls
        for index, (batcher, group) in enumerate(planned):
            if index:
                self._flush_if_possible()
                if group.has_parts:
                    self._serve_others()
            calls[0] = time.monotonic()
            done = completions(batcher.answer(group))  # Others may be answered meanwhile.
            self._unsent += done
            calls[0] = 0.0

    def _by_version(self, taken: Sequence[Taken]) -> Mapping[int, Sequence[Taken]]:
        versions = set(self._routes.values())
        if len(versions) == 1:
            return {versions.pop(): taken}
        found: dict[int, list[Taken]] = {}
        for item in taken:
            found.setdefault(self._routes[item.target], []).append(item)
        return found

    def _flush(self) -> None:
        self._queue.exchange(self._unsent, (), count=1, block_milliseconds=0)
        self._unsent = []

    def _flush_if_possible(self) -> None:
        try:
            self._flush()
        except Unavailable as error:
            logger.warning("%s", error.message)

    def _reconnect(self) -> None:
        """Tries until Redis is back; then sends answers and takes up requests that were taken and not seen."""
        pauses = Pauses(_REDIS_BACKOFF)
        while True:
            try:
                self._finish_batches()  # Running requests are pending at this runner, too, and must not be run again.
                self._queue.connect()
                self._flush()
                taken = self._queue.own_pending(tuple(self._routes), count=_MOST_PENDING)
                break
            except Unavailable as error:
                logger.info("%s; trying again", error.message)
                time.sleep(pauses.next_seconds())
        self._prepare()
        if taken:
            self._answer(taken)


def run(spec: RunnerSpec, control: socket.socket, priority: LoadPriority) -> int:
    """A runner's life, from the fork on; returns the exit status. Reports over `control` (see control.py and
    states.py): {"event": "ready", ...} once warm, or {"event": "failed", "code", "message"}."""
    channel = JsonChannel(control)
    if spec.is_low:
        scheduling.lower_normal_niceness(priority)
    sys.setswitchinterval(_SWITCH_SECONDS)
    started, directory = time.monotonic(), Path(spec.directory)
    (scheduling.return_to_normal if spec.is_awaited else scheduling.step_back)(priority)
    try:
        loaded = platforms.load(_load_request(spec))
        contract = read_contract(directory)
        loaded.signatures = contract.applied(loaded.signatures)
        first = held_of(loaded, version=spec.version, directory=directory, options=spec.options, contract=contract)
    except RequestFailed as error:
        channel.send({"event": "failed", "code": error.code, "message": error.message})
        return LOAD_FAILED_STATUS
    give_back_free_memory()
    scheduling.return_to_normal(priority)
    report = described(first, priority=priority, since=started)
    refusal = loaded.refuses_states if isinstance(loaded, TakesStates) else f"{loaded.kind} takes none"
    neighbours = Neighbours(
        loaded, contract, priority=priority, serve=lambda spec, channel: _serve_neighbour(spec, channel, neighbours)
    )
    assignment = Assignment()
    signal.signal(signal.SIGTERM, lambda number, frame: assignment.leave())
    _serve(spec, channel, first, neighbours, assignment, report | {"loaded": "program", "refuses_states": refusal})
    neighbours.left(channel, 0)
    neighbours.wait()
    return 0


def _serve_neighbour(spec: RunnerSpec, channel: JsonChannel, neighbours: Neighbours) -> int:
    """As `run`, in a process that serves other models of the program; reports the same."""
    started = time.monotonic()
    try:
        held = neighbours.take(spec)
    except RequestFailed as error:
        channel.send({"event": "failed", "code": error.code, "message": error.message})
        return LOAD_FAILED_STATUS
    report = described(held, priority=neighbours.priority, since=started)
    _serve(spec, channel, held, neighbours, Assignment(), report | {"loaded": "state", "refuses_states": ""})
    return 0


def _sender(channel: JsonChannel) -> Send:
    """For several threads."""
    turn = threading.Lock()

    def send(message: Message) -> None:
        with turn:
            channel.send(message)

    return send


def _serve(
    spec: RunnerSpec,
    channel: JsonChannel,
    first: Held,
    neighbours: Neighbours,
    assignment: Assignment,
    report: Mapping[str, Any],
) -> None:
    """Reports that the runner is ready, and answers its queues until it has the order to leave."""
    batching, send = spec.options.batching, _sender(channel)
    states = States(
        first, origin=neighbours.origin, contract=neighbours.contract, options=spec.options,
        priority=neighbours.priority, send=send,
    )  # fmt: skip
    name = runner_id(spec.replica, spec.model, spec.version, os.getpid())
    queue = RunnerQueue(spec.redis_url, model=spec.queue_name, runner_id=name)
    control_thread = RunnerControl(
        channel,
        ServingMembership(spec.redis_url, model=spec.queue_name, runner_id=name),
        assignment,
        states=states,
        send=send,
        connection_id=lambda: queue.connection_id,
        admit=neighbours.admit,
    )
    send({"event": "ready", "version": spec.version, "runner_id": name, **report})
    control_thread.start()
    states.start()
    threads = _start_threads(spec, assignment, name)
    linger_seconds = batching.batch_timeout_micros / 1e6 if batching.is_enabled else 0.0
    Runner(queue, states.batchers, assignment, linger_seconds=linger_seconds, threads=threads).run()
    if threads is not None:
        threads.stop()
    control_thread.stop()
    queue.close()
    states.stop()


def _start_threads(spec: RunnerSpec, assignment: Assignment, name: str) -> BatchThreads | None:
    """None where the loop runs the batches itself."""
    batching = spec.options.batching
    if not batching.is_enabled or batching.num_batch_threads == 1:
        return None
    threads = BatchThreads(
        batching.num_batch_threads,
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
