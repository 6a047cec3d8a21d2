"""Whose request goes into a queue next, where identity is on: deficit round robin between principals (Shreedhar and
Varghese 1995), at a cost of one per row.

A queue in Redis is read in the order in which it was written. So a front puts in what keeps the runners busy, and the
rest waits here, in a line per principal. However long one line is, the others have their turns. A request of more than
LONG_ROWS rows, between whose calls a runner answers others, takes no room from them; one at a time is in the queue.
"""

import math
from collections import OrderedDict

from services.serving.wire.limits import LONG_ROWS

_FEWEST_ROWS = 32
"""In the queue, however small batches are: a runner that takes them shall not wait for this front's next turn."""
_BATCHES_AHEAD = 2
"""Per runner: one runs and one is next."""


class _Line:
    """What waits of one principal, in the order in which it came: request ids with their rows."""

    __slots__ = ("credit", "requests")

    def __init__(self, credit: int) -> None:
        self.credit = credit
        """Rows that it may put in before the others have their turn."""
        self.requests: OrderedDict[bytes, int] = OrderedDict()


class Turns:
    """Of one queue at one front."""

    __slots__ = ("_lines", "_long_count", "_sent", "_sent_rows", "at_once", "runners")

    def __init__(self) -> None:
        self.at_once = _FEWEST_ROWS
        """Rows of a batch."""
        self.runners = 1
        """That read the queue, as Redis last counted them."""
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        """By principal; the first has its turn."""
        self._sent: dict[bytes, int] = {}
        """Requests in the queue with the rows that are counted for them; 0 for a long one."""
        self._sent_rows = self._long_count = 0

    def waiting(self) -> dict[str, int]:
        """Requests that wait for their turn, by principal."""
        return {principal: len(line.requests) for principal, line in tuple(self._lines.items())}

    def waits(self, principal: str, request_id: bytes) -> bool:
        line = self._lines.get(principal)
        return line is not None and request_id in line.requests

    def begin(self, principal: str, request_id: bytes, rows: int) -> bool:
        """True: the request goes into the queue. False: it waits, and the `end` of another one returns its id."""
        line = self._lines.get(principal)
        if line is None:
            if self._has_room(rows):  # What waits is of the other kind, long or not: else it would not wait.
                self._send(request_id, rows)
                return True
            line = self._lines[principal] = _Line(self.at_once)
        line.requests[request_id] = rows
        return False

    def end(self, principal: str, request_id: bytes) -> list[bytes]:
        """A request is answered, or nobody waits for it any more; returns those that go into the queue now."""
        counted = self._sent.pop(request_id, None)
        if counted is None:
            self._leave_line(principal, request_id)
        elif counted:
            self._sent_rows -= counted
        else:
            self._long_count -= 1
        found: list[bytes] = []
        while self._lines and (following := self._next()) is not None:
            found.append(following)
        return found

    def _room(self) -> int:
        return max(_BATCHES_AHEAD * self.at_once * self.runners, _FEWEST_ROWS)

    def _has_room(self, rows: int) -> bool:
        return not self._long_count if rows > LONG_ROWS else self._sent_rows < self._room()

    def _send(self, request_id: bytes, rows: int) -> None:
        if rows > LONG_ROWS:
            self._long_count += 1
            self._sent[request_id] = 0
            return
        counted = max(min(rows, self._room() // 2), 1)  # However many rows it has, another one may be next.
        self._sent[request_id] = counted
        self._sent_rows += counted

    def _leave_line(self, principal: str, request_id: bytes) -> None:
        line = self._lines.get(principal)
        if line is not None:
            line.requests.pop(request_id, None)
            if not line.requests:
                del self._lines[principal]

    def _next(self) -> bytes | None:
        """Takes the request whose turn it is out of its line; None where the queue has room for none of the first."""
        lacking = math.inf
        for _ in range(len(self._lines)):
            principal, line = next(iter(self._lines.items()))
            request_id, rows = next(iter(line.requests.items()))
            if self._has_room(rows):
                if rows <= line.credit:
                    line.credit -= rows
                    self._leave_line(principal, request_id)
                    self._send(request_id, rows)
                    return request_id
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
