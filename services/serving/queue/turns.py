"""The principal whose request goes into a queue next, where identity is on: deficit round robin between principals
(Shreedhar and Varghese 1995), at a cost of one per row.

A queue in Redis is read in the order in which it was written. So a front puts in enough to keep the runners busy, and
the rest waits here, in a line per principal. However long a line is, the others have their turns. A request of more
than LONG_ROWS rows, between whose calls a runner answers others, takes no room from them; one at a time is in the
queue.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence

from services.serving.wire.limits import LONG_ROWS

_FEWEST_ROWS = 32
"""In the queue, however small batches are: a runner that takes them shall not wait for this front's next turn."""
_BATCHES_AHEAD = 2
"""Per runner: one runs and one is next."""
LONG = -1
"""The count of a long request."""


class _Line:
    """The waiting requests of a principal, in their order: request ids with their rows."""

    __slots__ = ("credit", "requests")

    def __init__(self, credit: int) -> None:
        self.credit = credit
        """Rows that it may put in before the others have their turn."""
        self.requests: OrderedDict[bytes, int] = OrderedDict()


class Turns:
    """Of a queue at a front.

    The caller keeps the count of `begin` or `end` for a request, and hands it back: 0 while it waits, LONG for a long
    request, and otherwise its rows, as far as they count.
    """

    __slots__ = ("_lines", "_long_count", "_most_counted", "_room", "_sent_rows", "at_once")

    def __init__(self) -> None:
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        """By principal; the first has its turn."""
        self._sent_rows = self._long_count = 0
        self.follow(at_once=_FEWEST_ROWS, runners=1)

    def follow(self, *, at_once: int, runners: int) -> None:
        """at_once: rows of a batch. runners: that read the queue, as Redis last counted them."""
        self.at_once = at_once
        self._room = max(_BATCHES_AHEAD * at_once * runners, _FEWEST_ROWS)
        self._most_counted = self._room // 2
        """However many rows a request has, another may be next."""

    def waiting(self) -> dict[str, int]:
        """Requests that wait for their turn, by principal."""
        return {principal: len(line.requests) for principal, line in tuple(self._lines.items())}

    def begin(self, principal: str, request_id: bytes, rows: int) -> int:
        """The request's count, with which it goes into the queue; 0: it waits until `end` of another request names
        it."""
        # A request without a line that finds room goes first: the waiting are of the other kind, long or not.
        if principal not in self._lines:
            if 0 < rows < self._most_counted and rows <= LONG_ROWS and self._sent_rows < self._room:
                self._sent_rows += rows  # as _send, without its calls: of most requests
                return rows
            if self._has_room(rows):
                return self._send(rows)
        line = self._lines.get(principal)
        if line is None:
            line = self._lines[principal] = _Line(self.at_once)
        line.requests[request_id] = rows
        return 0

    def end(self, principal: str, request_id: bytes, counted: int) -> Sequence[tuple[bytes, int]]:
        """A request is answered, or nobody waits for it any more; returns those that go into the queue now."""
        if counted > 0:
            self._sent_rows -= counted
        elif counted:
            self._long_count -= 1
        else:
            self._leave_line(principal, request_id)
        if not self._lines:
            return ()
        found: list[tuple[bytes, int]] = []
        while self._lines and (following := self._next()) is not None:
            found.append(following)
        return found

    def _has_room(self, rows: int) -> bool:
        return self._sent_rows < self._room if rows <= LONG_ROWS else not self._long_count

    def _send(self, rows: int) -> int:
        if rows > LONG_ROWS:
            self._long_count += 1
            return LONG
        counted = rows if 0 < rows < self._most_counted else max(min(rows, self._most_counted), 1)
        self._sent_rows += counted
        return counted

    def _leave_line(self, principal: str, request_id: bytes) -> None:
        line = self._lines.get(principal)
        if line is not None:
            line.requests.pop(request_id, None)
            if not line.requests:
                del self._lines[principal]

    def _next(self) -> tuple[bytes, int] | None:
        """Takes the request whose turn it is out of its line; None where the queue has room for none of the first."""
        lacking = math.inf
        for _ in range(len(self._lines)):
            principal, line = next(iter(self._lines.items()))
            request_id, rows = next(iter(line.requests.items()))
            if self._has_room(rows):
                if rows <= line.credit:
                    line.credit -= rows
                    self._leave_line(principal, request_id)
                    return request_id, self._send(rows)
                line.credit += self.at_once
                lacking = min(lacking, rows - line.credit)
            self._lines.move_to_end(principal)
        if lacking == math.inf:
            return None
        self._credit_rounds(max(math.ceil(lacking / self.at_once), 0))
        return self._next()

    def _credit_rounds(self, count: int) -> None:
        """As many rounds as the nearest request needs, at once."""
        for line in self._lines.values():
            if self._has_room(next(iter(line.requests.values()))):
                line.credit += count * self.at_once
