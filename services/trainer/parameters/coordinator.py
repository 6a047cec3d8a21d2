"""The chief's side of an asynchronous round: it hands out batches, hears of them, and fetches what came out.

A batch counts once. The batch of a worker that is lost, or whose gradient came too late for its step, is handed out
again; so the round goes on as long as one worker lives. A server that is lost ends the attempt: the round then goes on
from its last resume point.
"""

import hashlib
import logging
import selectors
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np
from numpy.typing import NDArray

from common.definition.asynchronous import Asynchronous
from services.trainer.parameters import wire
from services.trainer.parameters.peers import DYING_SECONDS, Peer, end, ended, is_gone
from services.trainer.parameters.server import placed
from services.trainer.parameters.worker import COUNTED, take_over

logger = logging.getLogger(__name__)
READY_SECONDS = 120.0
"""How long workers may take to build their models."""
_LOOK_SECONDS = 1.0


class Batches(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> wire.Arrays:
        """c/, l/ and w/ arrays (worker.py)."""


class ServersLostError(Exception):
    """A parameter server, or the last worker, is gone; the message says how it ended."""


@dataclass
class Ran:
    """What an attempt at batches has come to.

    Attributes:
        losses: float32 [n, 2] of the steps: the loss, what was added in it. Of one batch each and in their order; with
            `take` the mean of those that a step took.
        fault: of the first batch that cannot be learned from, with whether it is numeric; the variables are of no use.
        counted: what the network has counted, by path.
    """

    losses: NDArray[np.float32]
    fault: tuple[str, bool] | None
    counted: dict[str, NDArray[Any]] = field(default_factory=dict)


class Coordinator:
    """Args:
    workers, servers: processes that wait for a word.
    checkpoint: the folder from which workers build their models, written before training begins; its files are sent.
    straggler_seconds: a worker that needs longer for a batch is killed, and its batch handed out again.
    """

    def __init__(
        self, section: Asynchronous, workers: Sequence[Peer], servers: Sequence[Peer], *, checkpoint: Path,
        straggler_seconds: float,
    ) -> None:  # fmt: skip
        self.section, self.checkpoint = section, checkpoint
        self._workers = list(workers)
        self._servers = list(servers)
        self._straggler_seconds = straggler_seconds
        self._placement = dict[str, int]()
        self._sizes = dict[str, int]()
        self._digests = dict[str, bytes]()
        self._versions = [-1] * len(servers)
        self._attempt = 0
        self._staleness = list[int]()
        self._dropped = self._again = self._updates = 0
        self._lost = list[str]()
        self._done_by = [0] * len(workers)
        self._holding = [dict[str, Any]() for _ in workers]
        self._rows = dict[str, int]()
        for server in self._servers:
            server.connection.settimeout(straggler_seconds)

    def figures(self) -> dict[str, Any]:
        """For the status: what is there, how many of the workers are other trainers', what was done, how many updates
        lay between a gradient's fetch and its own; bytes of what all servers hold without slots, the most that each
        worker had of them at once, and fetched.
        """
        seen = np.array(self._staleness or [0])
        return {
            "workers": len(self._workers),
            "workers_elsewhere": sum(not worker.pid for worker in self._workers),
            "servers": len(self._servers),
            "updates": self._updates,
            "staleness": {"mean": round(float(seen.mean()), 3), "max": int(seen.max())},
            "dropped_gradients": self._dropped,
            "computed_again": self._again,
            "batches_by_worker": self._done_by,
            "held_bytes_by_worker": [held.get("held_bytes", 0) for held in self._holding],
            "fetched_bytes_by_worker": [held.get("fetched_bytes", 0) for held in self._holding],
            "served_bytes": sum(self._sizes.values()),
            "lost": self._lost,
        }

    def note_missing(self, reason: str) -> None:
        """A worker that was to be there is not."""
        self._lost.append(reason)
        logger.warning("a worker has not come; the others begin", extra={"reason": reason})

    def facts(self) -> dict[str, Any]:
        """The same, which server holds what, and of tables whose rows come with each batch the most rows that a worker
        had at once; for the version's environment."""
        most = dict[str, int]()
        for path, rows in chain(*(worker.get("rows", {}).items() for worker in self._holding)):
            most[path] = max(rows, most.get(path, 0))
        by_row = [{"variable": path, "rows": self._rows[path], "most_held": most[path]} for path in sorted(most)]
        return {**self.figures(), "placement": self._table(), "by_row": by_row}

    def place(self, taught: Mapping[str, keras.Variable], running: Mapping[str, keras.Variable]) -> None:
        """Which server holds what."""
        self._sizes = {
            path: int(np.prod(variable.shape)) * np.dtype(np.float32).itemsize
            for path, variable in {**taught, **running}.items()
        }
        self._rows = {path: int(variable.shape[0]) for path, variable in taught.items() if len(variable.shape) == 2}
        self._placement = placed(self._sizes, len(self._servers), self.section.placement)
        for row in self._table():
            logger.info("a parameter server holds", extra=row)

    def build(
        self,
        variables: Mapping[str, keras.Variable],
        running: Sequence[str],
        optimizer: Mapping[str, Any],
        factors: Mapping[str, float],
    ) -> None:
        """Has the servers take the variables up, and the workers build their models from `checkpoint`; returns when all
        that are not lost meanwhile are ready."""
        for number, held in enumerate(self._held()):
            header = {"do": "build", "running": [path for path in held if path in running], "factors": dict(factors)}
            values = {f"v:{path}": variables[path].value.numpy() for path in held}
            self._request(number, {**header, "optimizer": optimizer}, values)
        files = [path for path in sorted(self.checkpoint.rglob("*")) if path.is_file()]
        content = {
            path.relative_to(self.checkpoint).as_posix(): np.frombuffer(path.read_bytes(), np.uint8) for path in files
        }
        for worker in self._workers[:]:
            if not self._send(worker, {"do": "build", "placement": self._placement}, content):
                self._lose(worker, "it does not answer", is_dying=True)
        deadline = time.monotonic() + READY_SECONDS
        for worker in self._workers[:]:
            worker.connection.settimeout(max(1.0, deadline - time.monotonic()))
            try:
                answer, _ = wire.receive(worker.connection)
            except OSError as error:
                self._lose(worker, str(error), is_dying=is_gone(error))
                continue
            worker.connection.settimeout(self._straggler_seconds)
            if "failed" in answer:
                self._lose(worker, str(answer["failed"]))
        self._somebody()

    def run(
        self, variables: Mapping[str, keras.Variable], counted: Mapping[str, Sequence[NDArray[Any]]], batches: Batches
    ) -> Ran:
        """Trains on all batches. Afterwards the variables, the optimizer's among them, are as the servers have them.

        Args:
            counted: what each batch begins with, by path.
        """
        self._attempt += 1
        self._bring(variables)
        ran = _Run(self, counted, batches).until_done()
        self._fetch(variables)
        return ran

    def close(self) -> None:
        """Ends all processes."""
        for peer in [*self._workers, *self._servers]:
            end(peer)

    def _table(self) -> list[dict[str, Any]]:
        return [
            {"server": number, "bytes": sum(self._sizes[path] for path in paths), "variables": paths}
            for number, paths in enumerate(self._held())
        ]

    def _held(self) -> list[list[str]]:
        return [[path for path, at in self._placement.items() if at == number] for number in range(len(self._servers))]

    def _bring(self, variables: Mapping[str, keras.Variable]) -> None:
        """What the chief has changed since it fetched, on every server; of the optimizer's, each takes its own."""
        changed = dict[str, NDArray[Any]]()
        for path, variable in variables.items():
            value = variable.value.numpy()
            if (digest := _digest(value)) != self._digests.get(path):
                changed[path], self._digests[path] = value, digest
        for number in range(len(self._servers)):
            mine = {f"v:{path}": kept for path, kept in changed.items() if self._placement.get(path, number) == number}
            self._request(number, {"do": "load", "attempt": self._attempt}, mine)

    def _fetch(self, variables: Mapping[str, keras.Variable]) -> None:
        for number, version in enumerate(self._versions):
            answer, arrays = self._request(number, {"do": "fetch", "since": version, "with_slots": True}, {})
            self._versions[number] = answer["version"]
            for path in take_over(variables, arrays):
                self._digests[path] = _digest(variables[path].value.numpy())

    def _request(
        self, number: int, header: Mapping[str, Any], arrays: wire.Arrays
    ) -> tuple[dict[str, Any], wire.Arrays]:
        server = self._servers[number]
        try:
            wire.send(server.connection, header, arrays)
            answer, given = wire.receive(server.connection)
        except OSError as error:
            how = end(server, is_dying=is_gone(error))
            raise ServersLostError(f"parameter server {number} {how or f'does not answer: {error}'}") from error
        if "error" in answer:
            raise ServersLostError(f"parameter server {number}: {answer['error']}")
        return answer, given

    @staticmethod
    def _send(worker: Peer, header: Mapping[str, Any], arrays: wire.Arrays | None = None) -> bool:
        """Whether it was taken."""
        try:
            wire.send(worker.connection, header, arrays)
        except OSError:
            return False
        return True

    def _lose(self, worker: Peer, reason: str, *, is_dying: bool = False) -> None:
        reason = end(worker, is_dying=is_dying) or reason
        self._workers.remove(worker)
        self._lost.append(f"worker {worker.rank}: {reason}")
        logger.warning("a worker is lost; the others go on", extra={"worker": worker.rank, "reason": reason})

    def _somebody(self) -> None:
        deadline = time.monotonic() + (0.0 if self._workers else DYING_SECONDS)  # workers end where a server does
        for number, server in enumerate(self._servers):
            if how := ended(server.pid, until=deadline):
                raise ServersLostError(f"parameter server {number} {how}")
        if not self._workers:
            raise ServersLostError(f"all workers are lost: {'; '.join(self._lost)}")


class _Run:
    """One attempt's batches, from the queue to their losses."""

    def __init__(
        self, coordinator: Coordinator, counted: Mapping[str, Sequence[NDArray[Any]]], batches: Batches
    ) -> None:
        self._chief, self._counted, self._batches = coordinator, counted, batches
        self._waiting = deque(range(len(batches)))
        self._owed = dict[int, tuple[int, int]]()  # accepted for a step, and not known to be pushed
        self._losses = dict[int, tuple[float, float]]()
        self._step_of = dict[int, int]()
        self._counts = {path: starts[0] for path, starts in counted.items() if starts}
        self._fault: tuple[str, bool] | None = None
        self._takes_some = coordinator.section.take is not None
        self._step = self._accepted = 0
        self._open_step()
        for worker in coordinator._workers:
            worker.batch, worker.clock = None, 0

    def until_done(self) -> Ran:
        with selectors.DefaultSelector() as selector:
            for worker in self._chief._workers:
                selector.register(worker.connection, selectors.EVENT_READ, worker)
            while not self._is_done():
                self._chief._somebody()
                if self._fault is None:
                    self._hand_out(selector)
                for key, _ in selector.select(_LOOK_SECONDS):
                    self._hear(key.data, selector)
                self._look_for_stragglers(selector)
        return Ran(self._in_order(), self._fault, self._counts)

    def _is_done(self) -> bool:
        if any(worker.batch is not None for worker in self._chief._workers):
            return False
        return self._fault is not None or len(self._losses) == len(self._batches)

    def _open_step(self) -> None:
        """How many gradients the next step is of: there are as many batches left for it, and workers."""
        left = len(self._batches) - len(self._step_of)
        live = max(1, len(self._chief._workers))
        self._of, self._accepted = max(1, min(self._chief.section.take or 1, live, left)), 0

    def _hand_out(self, selector: selectors.BaseSelector) -> None:
        slowest = min((worker.clock for worker in self._chief._workers), default=0)
        bound, stagger = self._chief.section.max_staleness, self._chief.section.stagger_steps
        for place, worker in enumerate(self._chief._workers[:]):  # of those that live: the first never waits
            is_ahead = bound is not None and worker.clock - slowest > bound
            is_early = self._chief._updates < place * stagger
            if worker.batch is not None or is_ahead or is_early or not self._waiting or self._is_full():
                continue
            number = self._waiting.popleft()
            worker.batch, worker.since, worker.step = number, time.monotonic(), self._step
            header = {"do": "batch", "attempt": self._chief._attempt, "batch": number, "step": number, "of": 1}
            counted = {f"{COUNTED}{path}": starts[number] for path, starts in self._counted.items()}
            if not self._chief._send(
                worker, {**header, "asks": self._takes_some}, {**self._batches[number], **counted}
            ):
                self._lose(worker, selector, "it does not answer", is_dying=True)

    def _is_full(self) -> bool:
        """Whether the step at hand has all of its gradients, and does not wait for one to be computed again."""
        return (
            self._takes_some
            and self._accepted == self._of
            and not any(number in self._owed for number in self._waiting)
        )

    def _hear(self, worker: Peer, selector: selectors.BaseSelector) -> None:
        if worker not in self._chief._workers:
            return
        try:
            message, arrays = wire.receive(worker.connection)
        except OSError as error:
            self._lose(worker, selector, str(error), is_dying=is_gone(error))
            return
        number = worker.batch
        if number is None:
            self._lose(worker, selector, "it spoke without being asked")
        elif "failed" in message:
            raise ServersLostError(f"worker {worker.rank}: {message['failed']}")
        elif "ready" in message:
            self._decide(worker, number, selector)
        elif "fault" in message:
            worker.batch, self._fault = None, self._fault or (message["fault"], message["is_numeric"])
        else:
            worker.batch = None
            worker.clock += 1
            self._chief._done_by[worker.rank] += 1
            self._chief._holding[worker.rank] = message["holding"]
            self._note(number, message, arrays)

    def _decide(self, worker: Peer, number: int, selector: selectors.BaseSelector) -> None:
        """Whether a gradient counts: for the step that it was computed for, if that has too few yet."""
        if number not in self._owed and worker.step == self._step and self._accepted < self._of:
            self._accepted += 1
            self._owed[number], self._step_of[number] = (self._step, self._of), self._step
        owed = self._owed.get(number)
        if owed is None:
            self._chief._dropped += 1
            worker.batch = None
            self._waiting.append(number)
        decision = {"take": False} if owed is None else {"take": True, "step": owed[0], "of": owed[1]}
        if not self._chief._send(worker, decision):
            self._lose(worker, selector, "it does not answer", is_dying=True)

    def _note(self, number: int, message: Mapping[str, Any], arrays: wire.Arrays) -> None:
        """A batch is in the variables."""
        self._losses[number] = (message["loss"], message["added"])
        self._chief._staleness.append(message["staleness"])
        for path, starts in self._counted.items():
            self._counts[path] = self._counts[path] + (arrays[f"{COUNTED}{path}"] - starts[number])
        self._owed.pop(number, None)
        if not self._takes_some:
            self._step_of[number] = number
            self._chief._updates += 1
        elif self._accepted == self._of and not self._owed:
            self._chief._updates += 1
            self._step += 1
            self._open_step()

    def _look_for_stragglers(self, selector: selectors.BaseSelector) -> None:
        late = time.monotonic() - self._chief._straggler_seconds
        for worker in self._chief._workers[:]:
            if worker.batch is not None and worker.since < late:
                self._lose(worker, selector, f"it needed more than {self._chief._straggler_seconds:g} s for a batch")

    def _lose(self, worker: Peer, selector: selectors.BaseSelector, reason: str, *, is_dying: bool = False) -> None:
        selector.unregister(worker.connection)
        if worker in self._chief._workers:
            self._chief._lose(worker, reason, is_dying=is_dying)
        if worker.batch is not None:
            self._waiting.appendleft(worker.batch)
            self._chief._again += 1

    def _in_order(self) -> NDArray[np.float32]:
        if self._fault is not None:
            return np.zeros((0, 2), np.float32)
        parts: list[list[tuple[float, float]]] = [[] for _ in range(max(self._step_of.values(), default=-1) + 1)]
        for number, step in sorted(self._step_of.items()):
            parts[step].append(self._losses[number])
        return np.array([np.mean(part, axis=0) for part in parts], np.float32).reshape(-1, 2)


def _digest(value: NDArray[Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, digest_size=16).digest()
