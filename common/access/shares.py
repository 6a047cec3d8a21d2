"""What one principal may hold of a door at once, where identity is on: its connections, its gRPC calls.

A principal may hold eight times the room that is left, and no more than a setting says: however much it takes, the
others find room (dynamic thresholds, Choudhury and Hahne 1998).
"""

import threading

import prometheus_client

from common.counted import counted
from common.errors import Overloaded

ROOM_FACTOR = 8
REFUSED = prometheus_client.Counter(
    "principal_refused", "Refused because their principal holds its share of the door already.", ["what"]
)


class Shares:
    """Of one kind of thing at one door; thread-safe.

    Args:
        noun: in the singular, such as "connection".
        limit: of all principals together.
        most: of one principal, by the setting of this name.
    """

    def __init__(self, noun: str, *, limit: int, most: int, setting: str) -> None:
        self._noun, self._limit, self._most, self._setting = noun, limit, most, setting
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._taken = 0

    def take(self, principal: str, *, taken: int | None = None) -> None:
        """One more for the principal, until `give`.

        Args:
            taken: by everybody, where there is more than principals hold.

        Raises:
            Overloaded: it has its share.
        """
        with self._lock:
            held = self._held.get(principal, 0)
            room = self._limit - (self._taken if taken is None else taken)
            if held < self._most and held < ROOM_FACTOR * room:
                self._held[principal] = held + 1
                self._taken += 1
                return
        REFUSED.labels(f"{self._noun}s").inc()
        reason = f"{self._setting} is {self._most}" if held >= self._most else "others need room, too"
        raise Overloaded(f"{principal} has {counted(held, self._noun)} open here, and {reason}; try again")

    def give(self, principal: str) -> None:
        with self._lock:
            self._taken -= 1
            left = self._held.pop(principal) - 1
            if left:
                self._held[principal] = left
