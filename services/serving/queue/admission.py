"""Whether a front takes another request for a queue: decided from the front's own counts, before anything is parsed.

    front full       the front has as many requests open as it may
    unfair           a queue may hold eight times the room that is left at the front: however slow one model is, the
                     others find room (dynamic thresholds, Choudhury and Hahne 1998)
    principal        a principal may have eight times the room at a queue that is left to everybody, where identity
                     is on: however much it sends, the others find room (the same thresholds)
    batches full     max_enqueued_batches of the model: TensorFlow Serving's bound, with its code and words
    too late         at the rate at which a busy queue was answered lately, what is ahead takes more than half of the
                     time until the deadline; sixteen requests are taken while they take less than nine tenths of it

The queue's own bound, over all fronts, is kept in Redis (scripts.py).
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from common.counted import counted, is_or_are
from services.serving.options.model_options import BatchingOptions
from services.serving.options.model_priorities import ModelPriority
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed

BATCHES_FULL = "The batch scheduling queue to which this task was submitted is full"
_ROOM_FACTOR = 8
_ROOM_FACTORS = {ModelPriority.LOW: 1, ModelPriority.NORMAL: _ROOM_FACTOR, ModelPriority.HIGH: 64}
"""Of a model's requests: so many times the room that is left in the front."""
_RATE_WINDOW_SECONDS = 0.1
_RATE_WEIGHT = 0.3
"""Of the newest window in the average."""
_USABLE_DEADLINE = 0.5
"""Share of a deadline that the estimate may fill; the rest is for what it does not know: a rate halves when something
else wants the machine."""
_FEW, _USABLE_DEADLINE_OF_FEW = 16, 0.9
"""Few requests may fill more of it: smaller batches would cost more than the doubt is worth."""
_ALWAYS_AHEAD = 1
"""However slow it seems: one runs and one is next, so that the rate is seen."""


class QueueLoad:
    """A front's open requests at a queue, and how fast they are answered when there is enough to do.

    Only then the rate shows the runners' speed: a queue with a request at a time is answered slowly because it is
    used slowly. There is enough to do while a full batch is there to run next, or while requests are refused because
    they would be late. Times are the event loop's, in seconds.
    """

    __slots__ = (
        "_answered", "_answered_at", "_busy_seconds", "_has_refused", "at_once", "full_until", "most_rows",
        "of_principals", "open_count", "open_rows", "priority", "rate",
    )  # fmt: skip

    def __init__(self) -> None:
        self.open_count = 0
        self.of_principals: dict[str, int] = {}
        """Open requests by principal, without anonymous ones."""
        self.open_rows = 0
        """Rows of open requests, counted where most_rows bounds them."""
        self.most_rows = 0
        """0: no bound but the queue's own."""
        self.at_once = BatchingOptions.max_batch_size
        """Requests that a runner may run at the same time."""
        self.priority = ModelPriority.NORMAL
        """Of the model."""
        self.rate: float | None = None
        """Requests answered per second while there were enough to run next; None: not known."""
        self.full_until = 0.0
        """Redis refused a write because the queue was full; until then no request is written."""
        self._answered = 0
        self._answered_at = 0.0
        """When the last answers came, if they left enough to run next; else 0."""
        self._busy_seconds = 0.0
        self._has_refused = False
        """Something was too late since the last answers."""

    def opened(self, rows: int, principal: str = "") -> None:
        self.open_count += 1
        self.open_rows += rows
        if principal:
            self.of_principals[principal] = self.of_principals.get(principal, 0) + 1

    def closed(self, rows: int, principal: str = "") -> None:
        """A request is answered, or its client is gone."""
        self.open_count -= 1
        self.open_rows -= rows
        if principal:
            left = self.of_principals.pop(principal) - 1
            if left:
                self.of_principals[principal] = left

    def answered(self, count: int, now: float) -> None:
        """A batch of answers came from a runner, after each of them was closed.

        Args:
            count: of those that came in time. What was dropped unrun is quickly answered and would make a queue that
                nobody can keep up with look fast.
        """
        if self._answered_at:
            self._busy_seconds += now - self._answered_at
            self._answered += count
        self._answered_at = now if self.open_count >= self.at_once or self._has_refused else 0.0
        self._has_refused = False
        if self._busy_seconds < _RATE_WINDOW_SECONDS:
            return
        rate = self._answered / self._busy_seconds
        self.rate = rate if self.rate is None else self.rate + _RATE_WEIGHT * (rate - self.rate)
        self._busy_seconds, self._answered = 0.0, 0

    def is_too_late(self, most_ahead: float) -> bool:
        """Whether the open requests take so long that another would not be answered in time."""
        is_too_late = self.open_count > most_ahead
        self._has_refused |= is_too_late
        return is_too_late

    def most_ahead(self, timeout_seconds: float) -> float:
        """How many may be open for another to be answered in time; infinity while that is not known."""
        if self.rate is None:
            return math.inf
        in_time = timeout_seconds * self.rate
        return max(in_time * _USABLE_DEADLINE, min(_FEW, in_time * _USABLE_DEADLINE_OF_FEW), _ALWAYS_AHEAD)

    def follow(self, options: Mapping[str, Any]) -> int:
        """Takes the bounds of the model's options (ModelOptions, as a mapping); returns how many requests may wait and
        run, 0 for no bound of its own."""
        batching = options.get("batching") or {}
        if not batching or not batching["is_enabled"]:
            self.most_rows = 0
            return 0
        largest = batching["max_execution_batch_size"] or batching["max_batch_size"]
        threads, batches = batching["num_batch_threads"], batching["max_enqueued_batches"]
        self.at_once = threads * largest
        self.most_rows = 0 if batches is None else (batches + threads) * largest
        return self.most_rows


class Admission:
    """The rules of a front. `refusals` counts by (model, reason)."""

    def __init__(self, limit: int, queue_limit: int) -> None:
        """Args:
        limit: of requests that this front has open.
        queue_limit: of requests in a queue, of all fronts.
        """
        self._limit, self._queue_limit = limit, queue_limit
        self.refusals: Counter[tuple[str, str]] = Counter()

    def check(
        self,
        model: str,
        load: QueueLoad,
        *,
        open_count: int,
        rows: int,
        timeout_seconds: float,
        principal: str = "",
        depth: int = 0,
    ) -> None:
        """Raises RequestFailed when a request for the queue cannot be taken.

        Args:
            open_count: open requests of the front over all queues.
            principal: the principal; "": nobody in particular.
            depth: of the queue, over all fronts, as last seen.
        """
        room = self._limit - open_count
        if room <= 0:
            message = f"this front has {counted(self._limit, 'request')} open, its limit; try again"
            raise self._refusal(model, "front full", message)
        if load.open_count >= _ROOM_FACTORS[load.priority] * room:
            raise self._refusal(
                model, "unfair",
                f"model {model} has {load.open_count} of the {self._limit} requests that this front may have open, "
                "and the others need room, too; try again",
            )  # fmt: skip
        most_ahead = load.most_ahead(timeout_seconds)
        held = load.of_principals.get(principal, 0)
        if held:
            waiting = depth if depth > load.open_count else load.open_count
            share = held / _ROOM_FACTOR
            if share >= room or share >= self._queue_limit - waiting or share >= most_ahead + 1 - load.open_count:
                raise self._refusal(
                    model, "principal",
                    f"{principal} has {counted(held, 'request')} open for model {model}, and others need room, too; "
                    "try again",
                )  # fmt: skip
        if load.most_rows and load.open_rows and load.open_rows + rows > load.most_rows:
            self.refusals[model, "batches full"] += 1
            raise RequestFailed(Code.UNAVAILABLE, BATCHES_FULL)
        if load.is_too_late(most_ahead):
            raise self._refusal(
                model, "too late",
                f"{counted(load.open_count, 'request')} for model {model} {is_or_are(load.open_count)} ahead, "
                f"{load.rate:.0f} are answered in a second, and the deadline is in {timeout_seconds:.2f} s; try again",
            )  # fmt: skip

    def _refusal(self, model: str, reason: str, message: str) -> RequestFailed:
        self.refusals[model, reason] += 1
        return RequestFailed(Code.RESOURCE_EXHAUSTED, message)
