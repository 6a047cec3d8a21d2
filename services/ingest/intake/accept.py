"""The intake: a request becomes valid examples, chunks, log records, and only then an answer.

What a crash leaves behind: a request that was not answered may be in the log in part or whole. Every record names the
requests with an idempotency key whose events it holds, and how many; so a retry of such a request, also after a
restart, appends exactly what is missing. A request without a key that is retried may be taken twice.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from common.counted import counted, is_or_are
from common.errors import Conflict, HeadraceError, InvalidInput, NotFound, Unavailable
from common.eventlog.base import EventLog
from common.process.health import Health
from common.process.tracing import OFF, Span, Tracing
from common.registry.catalog import Stream
from services.ingest import metrics
from services.ingest.codec import bodies
from services.ingest.codec.validation import Checked, Validator
from services.ingest.intake.budget import Budget
from services.ingest.intake.chunks import Appended, Item
from services.ingest.intake.log_watch import LogWatch
from services.ingest.intake.places import by_partition, letters_of
from services.ingest.intake.streams import OpenStream, check_takes_events, open_stream
from services.ingest.once.keys import Answer, KeyWindow, Refusal, RequestKey
from services.ingest.once.shared_keys import SharedKeys
from services.ingest.schemas import Schemas, is_of_labels, labels_name
from services.ingest.settings import IngestSettings

logger = logging.getLogger(__name__)
OnInvalid = Literal["reject", "deadletter"]
BodyFormat = Literal["json", "ndjson", "tfrecord"]
Result = TypeVar("Result")
_APPEND_THREADS = 16
_NAMED_REFUSALS = 3
_KEY_CHARACTERS = 256
_HOLD_PAUSE_SECONDS = 0.1
_ANNOUNCE_PAUSE_SECONDS = 0.5
_NOTE_SECONDS = 1.0


@dataclass(frozen=True)
class AppendRequest:
    """`body` in its format, unpacked; serialized examples as TFRecord frames."""

    stream: str
    body: bytes
    body_format: BodyFormat
    on_invalid: OnInvalid = "reject"
    idempotency_key: str = ""
    span: Span | None = None
    """Of the request, where it is traced."""
    is_of_labels: bool = False
    """Its events are late labels of the stream."""


@dataclass
class _Running:
    body_digest: bytes
    task: asyncio.Task[Answer]


class Intake:
    """Belongs to one event loop; the log is given to it when it could be opened."""

    def __init__(
        self,
        settings: IngestSettings,
        schemas: Schemas,
        *,
        service_health: Health | None = None,
        shared_keys: SharedKeys | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        """`shared_keys`: where there are other replicas."""
        self.tracing = tracing
        self.settings = settings
        self.schemas = schemas
        self.budget = Budget(settings.max_in_flight_bytes)
        metrics.BYTES_IN_FLIGHT_LIMIT.set(settings.max_in_flight_bytes)
        self._window = KeyWindow(window_seconds=settings.key_window_seconds, window_count=settings.key_window_count)
        self._log: EventLog | None = None
        self._log_reason = "the event log is not open yet"
        self._streams: dict[str, OpenStream] = {}
        self._opening: dict[str, asyncio.Task[OpenStream]] = {}
        self._running: dict[tuple[str, bytes], _Running] = {}
        self._shared_keys = shared_keys
        self._background: set[asyncio.Task[None]] = set()
        self.watch = LogWatch(
            service_health or Health("log"), slowest_append=self._slowest_append, on_away=self._give_up_waiting
        )
        self._executor = ThreadPoolExecutor(_APPEND_THREADS, thread_name_prefix="append")

    def attach_log(self, log: EventLog) -> None:
        self._log = log

    def log_is_away(self, reason: str) -> None:
        self._log_reason = reason

    @property
    def log(self) -> EventLog:
        """Raises Unavailable until the log could be opened, and while it does not answer."""
        if self._log is None:
            raise Unavailable(self._log_reason)
        self.watch.check()
        return self._log

    def close_log(self) -> None:
        """Before `close`: an append that waits for a log that is away ends with it."""
        if self._log is not None:
            self._log.close()

    def close(self) -> None:
        self._executor.shutdown(wait=True)

    async def close_keys(self) -> None:
        """Lets what is still to be noted in Redis be noted, for a moment."""
        if self._shared_keys is not None:
            if self._background:
                await asyncio.wait(self._background, timeout=_NOTE_SECONDS)
            await self._shared_keys.close()

    async def announce_when_quiet(self) -> None:
        """Frees the keys that this replica had claimed when it was killed; returns when that is done."""
        while self._shared_keys is not None:
            try:
                if self.watch.has_been_quiet:
                    await self._shared_keys.announce()
                    return
            except Unavailable as error:
                logger.debug("not announced yet", extra={"reason": error.message})
            await asyncio.sleep(_ANNOUNCE_PAUSE_SECONDS)

    @property
    def shares_keys(self) -> bool:
        return self._shared_keys is not None

    def open_streams(self) -> list[OpenStream]:
        """Those that events can be sent to. From any thread."""
        return list(self._streams.values())

    def _slowest_append(self) -> float:
        writers = (writer for stream in self._streams.values() for writer in stream.all_writers)
        return max((writer.appending_seconds for writer in writers), default=0.0)

    def _give_up_waiting(self, error: Unavailable) -> None:
        unclear = Unavailable(f"{error.message}; the events may or may not be taken, a retry with the same key is safe")
        for stream in self._streams.values():
            for writer in stream.all_writers:
                writer.give_up_waiting(unclear)

    async def in_thread(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Runs what blocks beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    async def append(self, request: AppendRequest, *, on_queued: Callable[[], None] = lambda: None) -> Answer:
        """Takes a request; returns when the log holds what is accepted of it.

        `on_queued` is called when the events have their place in line: a request given from then on comes after it.

        Raises:
            InvalidInput: the body cannot be read, or (on_invalid "reject") holds events that are refused: all named.
            NotFound: no such stream.
            Conflict: the idempotency key was used with another body.
            Unavailable: the log, or for an unknown stream the registry, does not answer.
        """
        try:
            answer = await self._append(request, on_queued)
        except HeadraceError as error:
            metrics.REQUESTS.labels(type(error).__name__).inc()
            raise
        metrics.REQUESTS.labels("duplicate" if answer.duplicate else "ok").inc()
        return answer

    async def _append(self, request: AppendRequest, on_queued: Callable[[], None]) -> Answer:
        stream = await self.open(request.stream, labels=request.is_of_labels)
        if not request.idempotency_key:
            # Also to its end where the client goes away.
            return await asyncio.shield(asyncio.create_task(self._take(stream, request, None, on_queued)))
        if len(request.idempotency_key) > _KEY_CHARACTERS:
            raise InvalidInput(
                f"the idempotency key has {len(request.idempotency_key)} characters, expected at most {_KEY_CHARACTERS}"
            )
        key = RequestKey.of(request.idempotency_key, request.body)
        running = self._running.get((stream.log_name, key.key_digest))
        if running is not None:
            _check_same(running.body_digest, key)
            return replace(await asyncio.shield(running.task), duplicate=True)
        known = self._window.find(stream.log_name, key.key_digest)
        if known is not None:
            _check_same(known.body_digest, key)
            if known.answer is not None:
                return known.answer
        task = asyncio.get_running_loop().create_task(self._take_once(stream, request, key, on_queued))
        self._running[stream.log_name, key.key_digest] = _Running(key.body_digest, task)
        task.add_done_callback(lambda _: self._running.pop((stream.log_name, key.key_digest), None))
        return await asyncio.shield(task)

    async def _take_once(
        self, stream: OpenStream, request: AppendRequest, key: RequestKey, on_queued: Callable[[], None]
    ) -> Answer:
        """Takes the request unless another replica has it or had it."""
        if self._shared_keys is None:
            return await self._take(stream, request, key, on_queued)
        self.watch.check()
        answered = await self._shared_keys.claim(stream.log_name, key)
        if answered is not None:
            return answered
        try:
            answer = await self._take(stream, request, key, on_queued)
        except HeadraceError:
            self._begin(self._hold_until_known(stream, key))
            raise
        self._begin(self._shared_keys.keep(stream.log_name, key, answer))
        return answer

    async def _hold_until_known(self, stream: OpenStream, key: RequestKey) -> None:
        """Keeps the claim while an append with the key's events is under way; then the log knows."""
        assert self._shared_keys is not None
        renewed_at = time.monotonic()
        while any(writer.is_appending(key.key_digest) for writer in stream.all_writers):
            await asyncio.sleep(_HOLD_PAUSE_SECONDS)
            if time.monotonic() - renewed_at > self.settings.key_claim_seconds / 4:
                renewed_at = time.monotonic()
                await self._shared_keys.renew(stream.log_name, key)
        await self._shared_keys.release(stream.log_name, key)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside the answer, which does not wait for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _take(
        self, stream: OpenStream, request: AppendRequest, key: RequestKey | None, on_queued: Callable[[], None]
    ) -> Answer:
        validator, checked = await self._checked(stream, request, key)
        refused = tuple(Refusal(item.index, item.reason) for item in checked.rejected)
        if refused and request.on_invalid == "reject":
            stream.count(refused=len(refused))
            raise _refusal(refused, len(refused) + len(checked.examples))
        self.watch.check()
        waits: list[tuple[int, asyncio.Future[Appended]]] = []
        trace, put_at = request.span.link if request.span else b"", time.time()
        if refused:
            assert stream.deadletter_writer is not None, "late labels are refused as a whole"
            letters = letters_of(stream.name, checked.rejected, validator.schema_version)
            waits.append((-1, stream.deadletter_writer.put(Item(letters, validator.schema_version, key))))
        for partition, events in by_partition(stream, checked, key):
            waits.append((partition, stream.writers[partition].put(Item(events, validator.schema_version, key, trace))))
        on_queued()
        places = await _all(waits, timeout_seconds=self.settings.append_timeout_seconds)
        answer = Answer(
            accepted=len(checked.examples),
            refused=refused,
            position={partition: place.end_offset for partition, place in places if partition >= 0},
            duplicate=bool(places) and not any(place.added for _, place in places),
        )
        if request.span is not None:
            self._note_append(request, request.span, answer, put_at)
        added = sum(place.added for partition, place in places if partition >= 0)
        stream.count(accepted=added, refused=len(refused), reason="deadletter")
        if key is not None:
            self._window.keep_answer(stream.log_name, key, answer, schema_version=validator.schema_version)
        return answer

    def _note_append(self, request: AppendRequest, span: Span, answer: Answer, put_at: float) -> None:
        position = ", ".join(f"{partition}:{offset}" for partition, offset in answer.position.items())
        facts = {"headrace.stream": request.stream, "headrace.position": position, "headrace.accepted": answer.accepted}
        self.tracing.note("append to the log", span.traceparent, put_at, time.time(), facts)

    async def _checked(
        self, stream: OpenStream, request: AppendRequest, key: RequestKey | None
    ) -> tuple[Validator, Checked]:
        """Checks under the newest schema; a request that is in the log in part, under the schema it was taken with."""
        known = self._window.find(stream.log_name, key.key_digest) if key else None
        if known is not None:
            taken_with = await self.in_thread(self.schemas.version, stream.name, known.schema_version)
            return await self._check(stream, taken_with, request)
        schema = await self.schema_of(stream.name)
        validator, checked = await self._check(stream, schema, request)
        if checked.rejected and self.schemas.may_be_old(stream.name):
            newest = await self._newest(stream.name, schema)
            if newest.schema_version != schema.schema_version:
                return await self._check(stream, newest, request)
        return validator, checked

    async def schema_of(self, name: str) -> Stream:
        """The newest schema: as known here, or asked for. Raises as Schemas.fetch."""
        known = self.schemas.known(name)
        if known is None or (known.archived and self.schemas.may_be_old(name)):
            known = await self.in_thread(self.schemas.fetch, name)
        if known.archived:
            raise Conflict(f"stream {name} is archived and takes no events; restore it first")
        return known

    async def _newest(self, name: str, known: Stream) -> Stream:
        """Asks the registry again before events are refused; what is known counts while it is away."""
        try:
            return await self.in_thread(self.schemas.fetch, name)
        except HeadraceError:
            return known

    async def _check(self, stream: OpenStream, schema: Stream, request: AppendRequest) -> tuple[Validator, Checked]:
        validator = stream.validator(schema)
        check_takes_events(stream.name, validator)
        with_keys = bool(validator.schema.key) and len(stream.writers) > 1
        most, size = self.settings.max_request_events, len(request.body)
        if request.body_format == "tfrecord":
            sets_aside = request.on_invalid == "deadletter"
            return validator, await validator.check_examples(
                request.body, with_keys=with_keys, most=most, sets_aside=sets_aside
            )
        if request.body_format == "json":
            member = "labels" if stream.is_of_labels else "events"
            events = bodies.events_of_json(request.body, most=most, member=member)
        else:
            events = bodies.events_of_ndjson(request.body, most=most)
        return validator, await validator.check_json(events, with_keys=with_keys, body_bytes=size)

    async def open(self, name: str, *, labels: bool = False) -> OpenStream:
        """The stream, or its late labels, opened when first asked for.

        Raises:
            NotFound: the registry has no such stream.
            Conflict: it is archived, or has no late labels and they are asked for.
            Unavailable: the log, or for an unknown stream the registry, does not answer.
        """
        if is_of_labels(name):
            raise NotFound(f"there is no stream {name!r}")
        name = labels_name(name) if labels else name
        opened, known = self._streams.get(name), self.schemas.known(name)
        if opened is not None and known is None:
            known = await self.in_thread(self.schemas.fetch, name)
        if opened is not None and known is not None and known.log_name == opened.log_name:
            return opened
        known = await self.schema_of(name)
        if known.log_name not in self._opening:
            task = asyncio.get_running_loop().create_task(self._open(known))
            self._opening[known.log_name] = task
            task.add_done_callback(lambda _: self._opening.pop(known.log_name, None))
        return await asyncio.shield(self._opening[known.log_name])

    async def _open(self, stream: Stream) -> OpenStream:
        opened = await self.in_thread(
            open_stream, stream, self.log, self._window, self.settings, self._executor, self.watch.note_append
        )
        self._streams[stream.name] = opened
        return opened


async def _all(
    waits: Sequence[tuple[int, asyncio.Future[Appended]]], *, timeout_seconds: float
) -> list[tuple[int, Appended]]:
    """Waits for every append, then raises the first error among them; gives up what still waits when time is over."""
    if waits:
        _, late = await asyncio.wait([future for _, future in waits], timeout=timeout_seconds)
        for future in late:
            future.cancel()
        if late:
            raise Unavailable(
                f"the event log has not answered for {timeout_seconds:.0f} s; the events may or may not be in it, "
                "and a retry is safe with an idempotency key only"
            )
    errors = [error for _, future in waits if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    return [(partition, future.result()) for partition, future in waits]


def _check_same(body_digest: bytes, key: RequestKey) -> None:
    if body_digest != key.body_digest:
        raise Conflict("the idempotency key was used before with another body; use a new key for a new request")


def _refusal(refused: tuple[Refusal, ...], event_count: int) -> InvalidInput:
    named = "; ".join(f"event {item.index}: {item.reason}" for item in refused[:_NAMED_REFUSALS])
    more = f"; and {len(refused) - _NAMED_REFUSALS} more" if len(refused) > _NAMED_REFUSALS else ""
    return InvalidInput(
        f"{len(refused)} of {counted(event_count, 'event')} {is_or_are(len(refused))} refused and none is taken: "
        f"{named}{more}",
        refused=tuple((item.index, item.reason) for item in refused),
    )
