"""A runner's second thread: takes the manager's orders, keeps the runner's place in the serving sets, and
reports. It never touches the model."""

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import Unavailable
from common.process.children import readable
from common.process.logs import logging_as_here
from services.serving.queue.runner_queue import ServingMembership
from services.serving.runner.states import Send, States
from services.serving.wire.channel import ChannelClosed, JsonChannel
from services.serving.wire.keys import RUNNER_RENEW_SECONDS

logger = logging.getLogger(__name__)
_WAKE_SECONDS = 0.02
_LEAVE_SECONDS = 2.0
_PLACE_SECONDS = 0.5
Routes = Mapping[str, int]
"""{queue: the version that answers it}."""


@dataclass(frozen=True)
class _Order:
    """To load a version from its directory, or, without one, to drop it."""

    version: int
    directory: Path | None = None
    given_at: float = field(default_factory=time.monotonic)


class Assignment:
    """The queues a runner should read, each with the version that answers it: set by one thread, adopted by the other
    between two batches. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wanted: Routes = {}
        self._to_empty: frozenset[str] = frozenset()
        self._adopted: Routes = {}
        self._leaving = False
        self.calls: dict[int, float] = {}
        """By thread number: monotonic seconds since which the model is running there, 0 while it is not."""

    @property
    def busy_since(self) -> float:
        """Since when the longest of the calls that run now has run; 0 while none does."""
        return min((since for since in tuple(self.calls.values()) if since), default=0.0)

    def want(self, routes: Routes, *, to_empty: frozenset[str] = frozenset()) -> None:
        """Read these from now on. Those of `to_empty` are read a last time: nobody will take their requests."""
        with self._changed:
            self._wanted = routes
            self._to_empty |= to_empty
            self._changed.notify_all()

    def leave(self) -> None:
        """Finish taken requests, take nothing more, end."""
        with self._changed:
            self._wanted = {}
            self._leaving = True
            self._changed.notify_all()

    def adopt(self, routes: Routes) -> None:
        """The loop reads exactly these from now on, and holds no request of others."""
        with self._changed:
            self._adopted = routes
            self._to_empty -= frozenset(routes)

    def to_empty(self) -> frozenset[str]:
        with self._changed:
            return self._to_empty

    def is_leaving(self) -> bool:
        with self._changed:
            return self._leaving

    def wanted(self) -> Routes:
        with self._changed:
            return self._wanted

    def adopted(self) -> Routes:
        with self._changed:
            return self._adopted

    def wait_for_work(self, timeout_seconds: float) -> None:
        """Returns when there is something to read or the runner is leaving, or when the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._wanted) or self._leaving, timeout_seconds)


class RunnerControl:
    """The thread. Messages in: {"targets": {target: version}, "to_empty": [...]}, {"load": {"version", "directory"}},
    {"drop": version}, {"leave": true}, {"admit": {...}} with one open file (neighbours.py). Messages out:
    {"event": "serving", "targets"}, {"event": "counts", ...} of versions that worked, at least of one;
    the results of loads and drops are in states.py."""

    def __init__(
        self,
        channel: JsonChannel,
        membership: ServingMembership,
        assignment: Assignment,
        *,
        states: States,
        send: Send,
        connection_id: Callable[[], int],
        admit: Callable[[dict[str, Any], int], None],
    ) -> None:
        """send: sends a message over the channel, in any thread. admit: begins to serve another model in this process,
        by its RunnerSpec and its control socket."""
        self._channel = channel
        self._membership = membership
        self._assignment = assignment
        self._states = states
        self._send = send
        self._connection_id = connection_id
        self._admit = admit
        self._done = threading.Event()
        self._announced: set[str] = set()
        self._reported: Routes | None = None
        self._counted: dict[int, dict[str, Any]] = {}
        self._orders: list[_Order] = []
        self._renew_at = 0.0
        self._thread = threading.Thread(target=logging_as_here(self._run), name="control", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Takes the runner out of the serving sets and ends the thread."""
        self._done.set()
        self._thread.join(_LEAVE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._done.is_set():
                self._turn()
        except ChannelClosed:
            logger.info("the manager is gone; finishing")
            self._assignment.leave()
        self._in_redis(lambda: self._membership.leave(self._announced))
        self._membership.close()

    def _turn(self) -> None:
        # The loop may have adopted what is wanted, or have left, since the last turn: the manager waits to hear of it.
        settled = self._assignment.wanted() == self._assignment.adopted() == self._reported
        settled = settled and not self._assignment.is_leaving()
        wait_seconds = max(self._renew_at - time.monotonic(), 0.0) if settled else _WAKE_SECONDS
        if readable([self._channel.fileno()], min(wait_seconds, _LEAVE_SECONDS / 4)):
            for message in self._channel.receive():
                self._obey(message)
        wanted = self._assignment.wanted()
        if time.monotonic() >= self._renew_at or not set(wanted) <= self._announced:
            self._renew(wanted)
        if wanted != self._assignment.adopted():
            self._in_redis(lambda: self._membership.wake(self._connection_id()))
            self._pass_on(None)
            return
        self._settle(wanted)
        self._pass_on(wanted.values())

    def _pass_on(self, answering: Collection[int] | None) -> None:
        """Gives the states their orders, in turn.

        A drop waits until the loop answers with other versions: the manager drops a version that another has overtaken
        before it hears that the loop reads for it. A load behind it waits too, for the place that it frees, but not
        long.

        Args:
            answering: the versions that the loop answers with; None while that changes.
        """
        held_back = list[_Order]()
        for order in self._orders:
            if order.directory is None and (answering is None or order.version in answering):
                held_back.append(order)
            elif order.directory is None:
                self._states.drop(order.version)
            elif held_back and time.monotonic() < order.given_at + _PLACE_SECONDS:
                held_back.append(order)
            else:
                self._states.load(order.version, order.directory)
        self._orders = held_back

    def _obey(self, message: dict[str, Any]) -> None:
        targets = message.get("targets")
        if isinstance(targets, dict):
            to_empty = frozenset(str(target) for target in message.get("to_empty", ()))
            # Out of the serving set first: then nothing more is put into these queues, and empty means done.
            self._in_redis(lambda: self._membership.finish(to_empty))
            self._in_redis(lambda: self._membership.leave(to_empty))
            self._announced -= to_empty
            self._assignment.want(targets, to_empty=to_empty)
        if "admit" in message:
            self._admit(message["admit"], self._channel.take_fd())
        if "load" in message:
            self._orders.append(_Order(message["load"]["version"], Path(message["load"]["directory"])))
        if "drop" in message:
            self._orders.append(_Order(message["drop"]))
        if message.get("leave"):
            self._assignment.leave()

    def _renew(self, wanted: Routes) -> None:
        self._renew_at = time.monotonic() + RUNNER_RENEW_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311
        self._in_redis(lambda: self._membership.renew(tuple(wanted)))
        self._announced |= set(wanted)
        given_up = set(self._assignment.adopted()) - set(wanted)
        self._in_redis(lambda: self._membership.finish(given_up))
        busy_since = self._assignment.busy_since
        busy_seconds = time.monotonic() - busy_since if busy_since else 0.0
        reports = dict(self._states.reports())
        for index, (version, report) in enumerate(reports.items()):
            if not index or report != self._counted.get(version):
                self._send({"event": "counts", "version": version, "busy_seconds": busy_seconds} | report)
        self._counted = reports

    def _settle(self, targets: Routes) -> None:
        """The loop reads exactly these queues now: leave the others' serving sets and tell the manager."""
        given_up = self._announced - set(targets)
        if given_up and self._in_redis(lambda: self._membership.leave(given_up)):
            self._announced -= given_up
        if self._reported != targets:
            self._reported = targets
            self._send({"event": "serving", "targets": dict(targets)})

    def _in_redis(self, action: Callable[[], None]) -> bool:
        """False when Redis is away: the next turn tries again."""
        try:
            action()
        except Unavailable as error:
            logger.debug("%s", error)
            return False
        return True
