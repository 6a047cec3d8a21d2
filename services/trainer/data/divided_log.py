"""One reading of the log for all members of a round.

Every range is cut into a stretch per member. Each member reads its own stretches from the log, for all, and has the
others' from them over gRPC; so a record leaves the log once, and the records that a member sees, and their order, are
those of one reader. A member that cannot be asked any more is done without: the others read its stretches themselves.

    request   JSON: {"topic", "partition", "start", "end", "rank"}
    answer    JSON line: {"next": offset, "records": [[offset, schema version, examples, ingest time, chunk id, traces,
              fault, bytes], ...]}, and then the records' values in a row
"""

import hmac
import json
import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import grpc

from common.errors import HeadraceError
from common.eventlog.base import Record, RecordHeaders
from common.eventlog.open import open_event_log
from common.eventlog.sourced_log import Attached, SourcedLog
from common.process.rpc import SERVER_OPTIONS
from common.process.rpc_client import CHANNEL_OPTIONS
from common.registry.catalog import RoundPlan, Stream
from common.schema import Schema
from services.trainer.data.dataset import Reading

logger = logging.getLogger(__name__)
_SERVICE = "headrace.trainer.Input"
_BATCH_BYTES = 1 << 20
_KEPT_BYTES = 64 << 20
_CALL_SECONDS = 30.0
_COUNTS_SECONDS = 10.0


@dataclass
class InputCounts:
    """What one member has read in this attempt.

    Attributes:
        rank: of the member.
        read_records, read_bytes: from the log, for all members.
        received_bytes: from the other members.
        taken_over_records: of the records read, those that a lost member should have read.
        waited_seconds: for stretches, by the rank of the member that they came from.
    """

    rank: int
    read_records: int = 0
    read_bytes: int = 0
    received_bytes: int = 0
    taken_over_records: int = 0
    waited_seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class _Batch:
    """`next_offset`: where the stretch goes on. `readers`: the members that have it."""

    records: list[Record]
    next_offset: int
    size_bytes: int
    readers: set[int] = field(default_factory=set)


@dataclass
class _Open:
    """The one reading of a partition that is under way: where it stands and ends."""

    position: int
    end: int
    records: Iterator[Record]


class OwnStretches:
    """Reads what this member has to read, for each member once. Thread-safe."""

    def __init__(self, log: Reading, counts: InputCounts, *, members: int, kept_bytes: int) -> None:
        self._log, self._counts, self._members, self._most_bytes = log, counts, members, kept_bytes
        self._locks = defaultdict[tuple[str, int], threading.Lock](threading.Lock)
        self._open: dict[tuple[str, int], _Open] = {}
        self._kept: dict[tuple[str, int, int, int], _Batch] = {}
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def batch(self, topic: str, partition: int, start: int, end: int, *, rank: int) -> _Batch:
        """From `start` on, about a MiB. Raises what the log raises."""
        key = (topic, partition, start, end)
        with self._lock:
            lock = self._locks[topic, partition]
        with lock:
            with self._lock:
                found = self._kept.get(key)
            if found is None:
                found = self._read(*key)
            with self._lock:
                found.readers.add(rank)
                self._keep(key, found)
        return found

    def _keep(self, key: tuple[str, int, int, int], batch: _Batch) -> None:
        before = self._kept.pop(key, None)
        self._kept_bytes -= before.size_bytes if before else 0
        if len(batch.readers) == self._members:
            return
        self._kept[key] = batch
        self._kept_bytes += batch.size_bytes
        while self._kept_bytes > self._most_bytes and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            self._kept_bytes -= self._kept.pop(oldest).size_bytes

    def _read(self, topic: str, partition: int, start: int, end: int) -> _Batch:
        reading = self._open.pop((topic, partition), None)
        if reading is None or (reading.position, reading.end) != (start, end):
            reading = _Open(start, end, self._log.read(topic, partition, start, end))
        batch = _Batch([], end, 0)
        for record in reading.records:
            batch.records.append(record)
            batch.size_bytes += len(record.value)
            if batch.size_bytes >= _BATCH_BYTES:
                batch.next_offset = reading.position = record.offset + 1
                self._open[topic, partition] = reading
                break
        with self._lock:
            self._counts.read_records += len(batch.records)
            self._counts.read_bytes += batch.size_bytes
        return batch


class DividedLog:
    """A log as one member of several reads it. Every member asks for the same ranges in the same order.

    Its `introduction` goes to all of them, theirs are given to `meet`; who does not know the first member's secret is
    not answered.

    Args:
        host: on which the others reach this member; it listens on all interfaces where it is not the loopback.
        kept_bytes: of what was read and not every member has come for yet; beyond it the oldest is read again when it
            is asked for.
    """

    def __init__(self, log: Reading, *, rank: int, members: int, host: str, kept_bytes: int = _KEPT_BYTES) -> None:
        self.counts = InputCounts(rank)
        self._log, self._rank, self._members = log, rank, members
        self._own = OwnStretches(log, self.counts, members=members, kept_bytes=kept_bytes)
        self._secret = secrets.token_hex(16)
        self._channels: dict[int, grpc.Channel] = {}
        self._gone: set[int] = set()
        self._seen_at, self._seen = 0.0, list[dict[str, Any]]()
        answers = {"Read": self._answer_read, "Counts": lambda _: json.dumps(asdict(self.counts)).encode()}
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(self._answered(answer)) for name, answer in answers.items()
        }
        self._server = grpc.server(ThreadPoolExecutor(2 * members, thread_name_prefix="input"), options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        place = "127.0.0.1" if host == "127.0.0.1" else "[::]"
        self.introduction = f"{host}:{self._server.add_insecure_port(f'{place}:0')} {self._secret}"
        self._server.start()

    def meet(self, introductions: Sequence[str]) -> None:
        """Of all members, in order of rank."""
        known = [text.split(" ") for text in introductions]
        self._secret = known[0][1]
        self._channels = {
            rank: grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
            for rank, (address, _) in enumerate(known)
            if rank != self._rank
        }

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        """As EventLog.read says, but the range is refused with its first record."""
        for index in range(self._members):
            first, last = (start + (end - start) * place // self._members for place in (index, index + 1))
            yield from self._stretch((index + partition) % self._members, topic, partition, first, last)

    def counts_of_all(self, *, age_seconds: float = 0.0) -> list[dict[str, Any]]:
        """Of the members that answer, in order of rank; asked for again once they are so old."""
        if time.monotonic() - self._seen_at < age_seconds:
            return self._seen
        found = {self._rank: asdict(self.counts)}
        for rank in self._channels.keys() - self._gone:
            try:
                found[rank] = json.loads(self._call(rank, "Counts", b"", _COUNTS_SECONDS))
            except grpc.RpcError as error:
                logger.debug("a member does not say what it has read", extra={"rank": rank, "error": str(error)})
        self._seen, self._seen_at = [found[rank] for rank in sorted(found)], time.monotonic()
        return self._seen

    def close(self) -> None:
        self._server.stop(0)
        for channel in self._channels.values():
            channel.close()

    def _stretch(self, owner: int, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        while start < end:
            if owner == self._rank:
                batch = self._own.batch(topic, partition, start, end, rank=self._rank)
                yield from batch.records
                start = batch.next_offset
                continue
            question = {"topic": topic, "partition": partition, "start": start, "end": end, "rank": self._rank}
            answer = self._answer_of(owner, question)
            if answer is None:
                yield from self._taken_over(self._log.read(topic, partition, start, end))
                return
            start, records = _unpacked(partition, answer)
            yield from records

    def _answer_of(self, owner: int, question: dict[str, Any]) -> bytes | None:
        """None: the owner is gone, and is asked no more."""
        if owner in self._gone:
            return None
        began = time.monotonic()
        try:
            answer = self._call(owner, "Read", json.dumps(question).encode(), _CALL_SECONDS)
        except grpc.RpcError as error:
            self._gone.add(owner)
            logger.warning("a member's part of the input is read here", extra={"rank": owner, "error": str(error)})
            return None
        finally:
            before = self.counts.waited_seconds.get(str(owner), 0.0)
            self.counts.waited_seconds[str(owner)] = round(before + time.monotonic() - began, 4)
        self.counts.received_bytes += len(answer)
        return answer

    def _taken_over(self, records: Iterator[Record]) -> Iterator[Record]:
        for record in records:
            self.counts.read_records += 1
            self.counts.taken_over_records += 1
            self.counts.read_bytes += len(record.value)
            yield record

    def _call(self, rank: int, name: str, question: bytes, seconds: float) -> bytes:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[rank].unary_unary(f"/{_SERVICE}/{name}")
        return call(question, timeout=seconds, metadata=(("secret", self._secret),))

    def _answered(self, answer: Callable[[bytes], bytes]) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def checked(question: bytes, context: grpc.ServicerContext) -> bytes:
            shown = str(dict(context.invocation_metadata()).get("secret", ""))
            if not hmac.compare_digest(shown, self._secret):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "only members of the round are answered")
            try:
                return answer(question)
            except HeadraceError as error:  # who asks reads it itself then, and has the log's own error
                context.abort(grpc.StatusCode.UNAVAILABLE, error.message)
                raise

        return checked

    def _answer_read(self, question: bytes) -> bytes:
        request = json.loads(question)
        batch = self._own.batch(
            request["topic"], request["partition"], request["start"], request["end"], rank=request["rank"]
        )  # fmt: skip
        return _packed(batch)


def _packed(batch: _Batch) -> bytes:
    records = [
        (
            record.offset, record.headers.schema_version, record.headers.example_count, record.headers.ingest_time,
            record.headers.chunk_id.hex(), [trace.hex() for trace in record.headers.traces], record.fault,
            len(record.value),
        )
        for record in batch.records
    ]  # fmt: skip
    about = json.dumps({"next": batch.next_offset, "records": records}).encode()
    return b"".join((about, b"\n", *(record.value for record in batch.records)))


def _unpacked(partition: int, answer: bytes) -> tuple[int, list[Record]]:
    """Where the stretch goes on, and the records; idempotency marks do not travel."""
    place = answer.index(b"\n") + 1
    about = json.loads(answer[:place])
    records = list[Record]()
    for offset, version, examples, ingest_time, chunk_id, traces, fault, size in about["records"]:
        spans = tuple(map(bytes.fromhex, traces))
        headers = RecordHeaders(version, examples, ingest_time, bytes.fromhex(chunk_id), traces=spans)
        records.append(Record(partition, offset, answer[place : place + size], headers, fault))
        place += size
    return int(about["next"]), records


class KnowsStreams(Protocol):
    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream: ...


def open_round_log(plan: RoundPlan, url: str, registry: KnowsStreams) -> SourcedLog:
    """With the stream's source as the round's version of the schema says it."""

    def stream_of(name: str) -> Attached:
        stream = registry.get_stream(name, schema_version=plan.schema_version if name == plan.stream else 0)
        return Attached(Schema.from_json(stream.schema_json), stream.log_name)

    return SourcedLog(open_event_log(url), url, stream_of=stream_of)
