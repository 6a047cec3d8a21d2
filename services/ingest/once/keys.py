"""Which requests with an idempotency key the log already holds: a bounded window over the marks in its records."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from common.eventlog.base import RecordInfo

Place = tuple[str, int]
"""(topic, partition)."""
KEPT_REFUSALS = 1_000


@dataclass(frozen=True)
class Refusal:
    """One event that was not taken; `index` counts from 0 in the request."""

    index: int
    reason: str


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Attributes:
        position: {partition: offset after the last record that holds an event of this request}.
        duplicate: the request had been taken before; nothing was appended now.
    """

    accepted: int
    refused: tuple[Refusal, ...]
    position: dict[int, int]
    duplicate: bool = False


@dataclass(frozen=True)
class RequestKey:
    """What a record says of a request, see RequestMark."""

    key_digest: bytes
    body_digest: bytes

    @classmethod
    def of(cls, key: str, body: bytes) -> "RequestKey":
        return cls(blake2b(key.encode(), digest_size=16).digest(), blake2b(body, digest_size=8).digest())


@dataclass
class KnownRequest:
    """A request that the log holds, in part or whole."""

    body_digest: bytes
    schema_version: int
    seen_at: float
    """Epoch seconds of its newest record."""
    counts: dict[Place, dict[int, int]] = field(default_factory=dict)
    """{place: {offset: events of the request in that record}}."""
    answer: Answer | None = None
    """Set when this process took the whole request."""


class KeyWindow:
    """Thread-safe. Forgets the requests longest unseen, past a count or an age."""

    def __init__(self, *, window_seconds: float, window_count: int, clock: Callable[[], float] = time.time) -> None:
        self.window_seconds = window_seconds
        self._window_count = window_count
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, bytes], KnownRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, stream: str, key_digest: bytes) -> KnownRequest | None:
        with self._lock:
            self._forget()
            return self._known.get((stream, key_digest))

    def in_log(self, stream: str, key_digest: bytes, place: Place) -> tuple[int, int]:
        """How many of the request's events that partition holds, and the offset after the last of them."""
        with self._lock:
            known = self._known.get((stream, key_digest))
            counts = known.counts.get(place, {}) if known else {}
            return sum(counts.values()), max(counts, default=-1) + 1

    def learn(self, stream: str, topic: str, info: RecordInfo) -> None:
        """Takes in the marks of one record; learning a record twice changes nothing."""
        if not info.headers.requests:
            return
        place = (topic, info.partition)
        with self._lock:
            for mark in info.headers.requests:
                key = (stream, mark.key_digest)
                known = self._known.get(key)
                if known is None:
                    known = KnownRequest(mark.body_digest, info.headers.schema_version, info.headers.ingest_time)
                    self._known[key] = known
                known.counts.setdefault(place, {})[info.offset] = mark.accepted_count
                known.seen_at = max(known.seen_at, info.headers.ingest_time)
                self._known.move_to_end(key)
            self._forget()

    def keep_answer(self, stream: str, request: RequestKey, answer: Answer, *, schema_version: int) -> None:
        """An answer with very many refusals is not kept: it is worked out again from the body."""
        if len(answer.refused) > KEPT_REFUSALS:
            return
        with self._lock:
            key = (stream, request.key_digest)
            known = self._known.setdefault(key, KnownRequest(request.body_digest, schema_version, self._clock()))
            known.answer = replace(answer, duplicate=True)
            self._known.move_to_end(key)
            self._forget()

    def _forget(self) -> None:
        oldest_allowed = self._clock() - self.window_seconds
        while self._known:
            key, known = next(iter(self._known.items()))
            if len(self._known) <= self._window_count and known.seen_at >= oldest_allowed:
                return
            del self._known[key]
