"""`python -m services.serving.replica.manager FD PARENT_PID`: loads, switches and unloads the versions of a replica.

The main thread owns the replica's state, the zygote and the runners' control sockets; it never waits for anything but
the next event. Three kinds of threads bring events in: the watch of the models' source, downloads, recovery. The front,
at the other end of FD, gets a snapshot on each change and each second; it sends the stop (replica_state.py).
"""

import base64
import functools
import logging
import os
import queue
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.errors import HeadraceError, InvalidInput, Unavailable
from common.process import scheduling
from common.process.lifecycle import close_all, die_with_parent
from common.process.logs import configure_logs
from common.process.memory import private_bytes
from common.process.scheduling import LoadPriority
from common.registry.catalog import PRODUCTION
from common.saved_model.layout import KnownGraphs, check_folder
from common.saved_model.program import program_of, state_bytes
from services.serving.options import option_sources
from services.serving.options.model_priorities import ModelPriority, priorities_of
from services.serving.options.platform_names import TENSORFLOW
from services.serving.options.runner_spec import RunnerSpec
from services.serving.options.settings import ServingSettings
from services.serving.queue.recovery import RecoveryWorker
from services.serving.replica.from_settings import limits_of, on_demand_of, source_of
from services.serving.replica.loads import ReplicaActions
from services.serving.replica.replica import Replica
from services.serving.replica.runner_handle import RunnerHandle
from services.serving.replica.sources.configured_models import ConfiguredModels
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.zygote_client import ZygoteProcess
from services.serving.wire.channel import ChannelClosed, JsonChannel
from services.serving.wire.keys import NEWEST_ALIAS, queue_name
from services.serving.wire.replica_state import SNAPSHOT_SECONDS, ReplicaState, encode

logger = logging.getLogger(__name__)
_PARALLEL_DOWNLOADS = 4
_TICK_SECONDS = 0.1
_MEMORY_SECONDS = 10.0
_ZYGOTE_RETRY_SECONDS = 0.5


class Manager:
    """The main thread's loop."""

    def __init__(self, settings: ServingSettings, front: JsonChannel) -> None:
        self._settings = settings
        self._front = front
        self._options = option_sources.replica_options(settings)
        self._name = settings.replica or f"{socket.gethostname()}-{os.getppid()}"
        self._priorities = priorities_of(settings.model_priorities)
        self._graphs = KnownGraphs()
        self._downloads = ThreadPoolExecutor(_PARALLEL_DOWNLOADS, thread_name_prefix="download")
        self._recovery = RecoveryWorker(settings.redis_url)
        self._replica = Replica(
            limits_of(settings),
            ReplicaActions(
                fetch=self._fetch,
                fork=self._fork,
                admit=self._admit,
                kill=lambda pid: self._zygote.kill_runner(pid) if self._zygote else None,
                hurry=self._hurry,
                recover=lambda model, targets, runner: self._recovery.recover(
                    queue_name(self._namespace, model), targets, runner
                ),
                unloaded=lambda model, version: self._clean_disk(),
            ),
            on_demand_of(settings),
        )
        self._source = source_of(
            settings, post=self._post, on_wanted=self._replica.on_wanted, is_serving=self._is_serving
        )
        self._configured = self._source if isinstance(self._source, ConfiguredModels) else None
        self._namespace = settings.namespace()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._zygote: ZygoteProcess | None = None
        self._zygote_ready = False
        self._zygote_retry_at = 0.0
        self._load_priority = LoadPriority.NORMAL
        self._last_line = b""
        self._snapshot_at = 0.0
        self._memory_at = 0.0
        self._stop_until = 0.0

    def run(self) -> None:
        """Returns when the front has sent stop, or is gone, and the runners have left."""
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._drain_wake)
        self._selector.register(self._front, selectors.EVENT_READ, self._on_front)
        self._recovery.start()
        self._source.start()
        try:
            while not self._is_done():
                self._turn()
        finally:
            close_all(
                self._source.stop,
                lambda: self._zygote.stop() if self._zygote else None,
                self._recovery.stop,
                lambda: self._downloads.shutdown(wait=False, cancel_futures=True),
            )

    def request_stop(self) -> None:
        """Begins to drain. Safe in a signal handler."""
        self._post(self._begin_stop)

    # The loop

    def _turn(self) -> None:
        if self._zygote is None and time.monotonic() >= self._zygote_retry_at and not self._stop_until:
            self._start_zygote()
        ready = self._selector.select(self._quiet_seconds() or _TICK_SECONDS)
        with self._replica.hearing():
            for key, _ in ready:
                if self._selector.get_map().get(key.fd) is key:  # an event before it may have closed it
                    key.data()
            while not self._events.empty():
                self._events.get()()
            self._replica.tick()
        self._source.follow(self._replica.slots())
        targets = self._replica.queues()
        self._recovery.watch_over({queue_name(self._namespace, model): found for model, found in targets.items()})
        self._measure_memory()
        self._send_state()

    def _quiet_seconds(self) -> float:
        """How many seconds may pass without an event before there is something to do; 0: not known."""
        if self._zygote is None or self._source.reason() or self._stop_until or not self._replica.is_quiet():
            return 0.0
        return max(0.0, min(self._snapshot_at, self._memory_at) - time.monotonic())

    def _is_done(self) -> bool:
        return bool(self._stop_until) and (self._replica.is_empty() or time.monotonic() > self._stop_until)

    def _post(self, event: Callable[[], None]) -> None:
        self._events.put(event)
        try:
            os.write(self._wake_writer, b"\0")
        except BlockingIOError:
            return  # The pipe is full of wakes already.

    def _drain_wake(self) -> None:
        os.read(self._wake_reader, 4096)

    def _begin_stop(self) -> None:
        if not self._stop_until:
            self._stop_until = time.monotonic() + self._settings.drain_seconds
            self._replica.drain()

    # The front

    def _on_front(self) -> None:
        try:
            messages = self._front.receive()
        except ChannelClosed:
            self._selector.unregister(self._front)
            messages = [{"command": "stop"}]
        for message in messages:
            if message["command"] == "stop":
                self._begin_stop()
            if message["command"] == "ask":
                self._replica.on_requested(message["models"])
            if message["command"] == "reload" and self._configured is not None:
                config = base64.b64decode(message["config"])
                self._configured.reload(message["id"], config, is_restored=message["is_restored"])

    def _send_state(self) -> None:
        """At each change, and every few seconds as a sign of life. A front that is busy gets the newest snapshot when
        it reads again; a front that has ended closes the channel."""
        try:
            if self._front.flush():
                self._offer_snapshot()
        except ChannelClosed:
            self._begin_stop()

    def _offer_snapshot(self) -> None:
        source_reason = self._source.reason()
        unsettled = [] if source_reason else self._replica.unsettled()
        names = ", ".join(f"{model}/{version}" for model, version in sorted(unsettled)[:5])
        models_reason = f"loading {names}" if unsettled else ""
        line = encode(
            ReplicaState(
                replica=self._name,
                conditions={
                    self._source.name: source_reason,
                    "models": models_reason if source_reason == "" else f"waiting for the {self._source.name}",
                },
                models=self._replica.aliases(),
                versions=self._replica.versions(),
                default_alias=NEWEST_ALIAS if self._configured is not None else PRODUCTION,
                config=self._configured.config_state() if self._configured is not None else None,
                notice=self._source.notice(),
                fetched=self._source.fetched(),
                splits=self._replica.wanted.splits if self._replica.wanted else {},
                requires_signed=self._settings.require_signed,
                memory=self._replica.memory(),
            )
        )
        if line == self._last_line and time.monotonic() < self._snapshot_at:
            return
        self._last_line, self._snapshot_at = line, time.monotonic() + SNAPSHOT_SECONDS
        self._front.offer_line(line)

    # The models' source

    def _is_serving(self) -> bool:
        return any(slot.can_serve() for slot in self._replica.slots())

    def _fetch(self, model: str, version: int) -> None:
        platform = self._source.platform(model)

        def fetch() -> None:
            try:
                directory = self._source.fetch(model, version)
                options = option_sources.version_options(
                    self._options,
                    directory,
                    platform=platform,
                    is_per_model_batching=self._settings.enable_per_model_batching_parameters,
                )
                if self._settings.allow_operations == "listed" and options.platform == TENSORFLOW:
                    check_folder(directory, tags=options.engine.saved_model_tags, look=self._graphs.look_at)
                program, size = _program_of(directory)
            except HeadraceError as error:
                failure = error
                self._post(lambda: self._replica.on_fetch_failed(model, version, failure))
                return
            self._post(
                lambda: self._replica.on_fetched(model, version, directory, options, program=program, state_bytes=size)
            )

        self._downloads.submit(fetch)

    def _clean_disk(self) -> None:
        used = {(slot.model, slot.version) for slot in self._replica.slots() if slot.runner is not None}
        self._downloads.submit(self._source.clean, used)

    # The zygote and its runners

    def _start_zygote(self) -> None:
        settings = self._settings
        self._zygote = ZygoteProcess(
            log_format=settings.log_format, log_level=settings.log_level, device=settings.device
        )
        self._selector.register(self._zygote.channel, selectors.EVENT_READ, self._on_zygote)

    def _on_zygote(self) -> None:
        assert self._zygote is not None
        try:
            messages = self._zygote.channel.receive()
        except ChannelClosed:
            logger.error("the zygote ended, and the runners with it; starting another")
            self._selector.unregister(self._zygote.channel)
            self._zygote.stop()
            self._zygote, self._zygote_ready = None, False
            self._zygote_retry_at = time.monotonic() + _ZYGOTE_RETRY_SECONDS
            for runner in self._replica.runners():
                self._hear_last_words(runner)
            self._replica.on_zygote_lost()
            return
        for message in messages:
            match message["event"]:
                case "ready":
                    self._zygote_ready = True
                    self._load_priority = LoadPriority(message["load_priority"])
                    scheduling.stay_in_background(self._load_priority)
                    self._replica.reconcile()
                case "forked":
                    self._replica.on_forked(message["model"], message["version"], message["pid"])
                case "ended":
                    for runner in self._replica.runners():
                        if runner.pid == message["pid"]:
                            self._hear_last_words(runner)
                    self._replica.on_runner_ended(message["pid"], message["status"])

    def _fork(self, slot: VersionSlot, directory: Path) -> JsonChannel:
        if self._zygote is None or not self._zygote_ready:
            raise Unavailable("there is no zygote yet")
        return self._heard(self._zygote.fork(self._spec(slot, directory)))

    def _admit(self, slot: VersionSlot, directory: Path, beside: RunnerHandle) -> JsonChannel:
        ours, theirs = socket.socketpair()
        with theirs:
            beside.admit(self._spec(slot, directory), theirs.fileno())
        return self._heard(JsonChannel(ours))

    def _heard(self, channel: JsonChannel) -> JsonChannel:
        self._selector.register(channel, selectors.EVENT_READ, lambda: self._on_runner(channel))
        return channel

    def _spec(self, slot: VersionSlot, directory: Path) -> dict[str, Any]:
        """As JSON carries it."""
        spec = RunnerSpec(
            replica=self._name,
            model=slot.model,
            version=slot.version,
            directory=str(directory.absolute()),
            redis_url=self._settings.redis_url,
            options=slot.options or self._options,
            namespace=self._namespace,
            is_cautious=slot.is_cautious,
            is_awaited=self._replica.is_awaited(slot.model),
            is_low=self._priorities.get(slot.model) is ModelPriority.LOW,
            engines_dir=str((self._settings.data_dir / "engines").absolute()),
        )
        return asdict(spec)

    def _on_runner(self, channel: JsonChannel) -> None:
        """Takes a runner's messages; the end of its process comes from the zygote."""
        runner = next((runner for runner in self._replica.runners() if runner.channel is channel), None)
        try:
            messages = channel.receive()
        except ChannelClosed:
            self._selector.unregister(channel)
            return
        for message in messages:
            if runner is not None and message["event"] == "left":
                # Another event, since its reader may be about to read on.
                self._post(functools.partial(self._on_left, runner, message["status"]))
            elif runner is not None:
                self._replica.on_runner_message(runner, message)
                if message["event"] == "ready":
                    self._measure(runner)

    def _on_left(self, runner: RunnerHandle, status: int) -> None:
        self._hear_last_words(runner)
        self._replica.on_runner_left(runner, status)
        self._measure(runner)

    def _hear_last_words(self, runner: RunnerHandle) -> None:
        """Reads the unread messages of a dead runner; afterwards nothing watches its socket."""
        while runner.channel in self._selector.get_map():
            self._on_runner(runner.channel)

    def _hurry(self, pid: int) -> None:
        try:
            scheduling.return_to_normal(self._load_priority, pid=pid)
        except OSError as error:
            logger.info("cannot hurry a runner", extra={"pid": pid, "reason": str(error)})

    def _measure_memory(self) -> None:
        if time.monotonic() < self._memory_at:
            return
        self._memory_at = time.monotonic() + _MEMORY_SECONDS
        for runner in {runner.pid: runner for runner in self._replica.runners()}.values():
            self._measure(runner)

    def _measure(self, runner: RunnerHandle) -> None:
        """Each version that the runner's process has counts for an equal part of it."""
        pid = runner.pid
        inside = [slot for slot in self._replica.slots() if slot.is_ready and slot.runner and slot.runner.pid == pid]
        used = private_bytes(pid) if inside else 0
        for slot in inside:
            slot.private_bytes = used // len(inside)


def _program_of(directory: Path) -> tuple[str, int]:
    """And the bytes of files that are no program."""
    try:
        return program_of(directory), state_bytes(directory)
    except OSError as error:
        raise Unavailable(f"cannot read {directory}: {error}") from error


def main(front_fd: int, parent_pid: int) -> int:
    die_with_parent(parent_pid)
    scheduling.leave_process_group()
    try:
        settings = ServingSettings.from_environment()
    except InvalidInput as error:
        print(f"serving manager: {error.message}", file=sys.stderr)
        return 2
    configure_logs("serving-manager", log_format=settings.log_format, level=settings.log_level)
    try:
        manager = Manager(settings, JsonChannel(socket.socket(fileno=front_fd)))
    except InvalidInput as error:
        logger.error("cannot serve: %s", error.message)
        return 2
    signal.signal(signal.SIGTERM, lambda number, frame: manager.request_stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The front stops everything in order.
    manager.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
