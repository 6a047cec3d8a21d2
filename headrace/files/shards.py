"""TFRecord files: read record by record, and written as the shards of an archive.

    DIR/archive.json                        {"stream", "position": {partition: offset}, "shards": [{"file", "partition",
                                            "from_offset", "to_offset", "examples", "bytes", "sha256"}]}
    DIR/<stream>-<partition>-<n>.tfrecord   examples in the log's order, as tf.data.TFRecordDataset reads them

A shard is written aside and renamed, and counts once archive.json names it: after a crash the next run writes those
again that were not named.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO

from common.errors import Conflict, DataLoss, InvalidInput, NotFound
from common.eventlog.base import EventLog
from common.eventlog.tfrecord import cut, frame, masked_crc32c
from common.eventlog.topics import examples_topic
from common.storage import Place
from headrace.files.packed import opened_records

INDEX = "archive.json"
_MOST_RECORD_BYTES = 1 << 30
_HEADER = struct.Struct("<QI")
_FRAME_BYTES = 16


@dataclass(frozen=True)
class Shard:
    """Examples of one partition, of the records from_offset to before to_offset; its ends may lie within a record."""

    file: str
    partition: int
    from_offset: int
    to_offset: int
    examples: int
    bytes: int
    sha256: str


def records_of(path: Place) -> Iterator[bytes]:
    """Every record of a TFRecord file, also packed by gzip or zlib, its checksums verified.

    Raises:
        InvalidInput: the file cannot be read. DataLoss: a record is damaged or cut short; which and where.
    """
    try:
        with opened_records(path) as file:
            yield from _records(file, path)
    except (NotFound, OSError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error


def _records(file: IO[bytes], path: Place) -> Iterator[bytes]:
    offset = number = 0
    while header := file.read(_HEADER.size):
        place = f"{path}: record {number} at byte {offset}"
        if len(header) < _HEADER.size:
            raise DataLoss(f"{place} is cut short")
        length, expected = _HEADER.unpack(header)
        if masked_crc32c(header[:8]) != expected:
            raise DataLoss(f"{place} has a length whose checksum is wrong")
        if length > _MOST_RECORD_BYTES:
            raise DataLoss(f"{place} claims {length} bytes")
        data, footer = file.read(length), file.read(4)
        if len(data) < length or len(footer) < 4:
            raise DataLoss(f"{place} is cut short")
        if masked_crc32c(data) != int.from_bytes(footer, "little"):
            raise DataLoss(f"{place} has data whose checksum is wrong")
        yield data
        offset += length + _FRAME_BYTES
        number += 1


def archive(log: EventLog, stream: str, directory: Place, *, shard_bytes: int) -> tuple[list[Shard], dict[int, int]]:
    """Writes what the log holds of the stream and the archive does not; the new shards, and where the archive ends.

    Raises:
        Conflict: the folder holds another stream's archive, or the log no longer has what follows it.
        DataLoss: the log's bytes are damaged.
    """
    directory.make_dirs()
    shards, position = _known(directory, stream)
    topic = examples_topic(stream)
    begin, end = log.start_position(topic), log.end_position(topic)
    made: list[Shard] = []
    for partition in sorted(end):
        start = position.get(partition, begin[partition])
        if start < begin[partition]:
            raise Conflict(
                f"the archive of {stream} ends at {start} in partition {partition}, and the log begins at "
                f"{begin[partition]}: what lies between is gone"
            )
        number = sum(shard.partition == partition for shard in shards)
        writer = _Writer(directory, stream, partition, number, shard_bytes)
        for record in log.read(topic, partition, start, end[partition]):
            if not record.fault:
                writer.add(record.offset, cut(record.value)[0])
        made += writer.finish()
        position[partition] = end[partition]
    _write_index(directory, stream, [*shards, *made], position)
    return made, position


class _Writer:
    """The shards of one partition."""

    def __init__(self, directory: Place, stream: str, partition: int, number: int, shard_bytes: int) -> None:
        self._directory, self._stream, self._partition = directory, stream, partition
        self._number, self._shard_bytes = number, shard_bytes
        self._made: list[Shard] = []
        self._examples: list[bytes] = []
        self._size = self._from = self._to = 0

    def add(self, offset: int, examples: list[bytes]) -> None:
        for example in examples:
            size = len(example) + _FRAME_BYTES
            if self._examples and self._size + size > self._shard_bytes:
                self._flush()
            if not self._examples:
                self._from = offset
            self._examples.append(example)
            self._size += size
            self._to = offset + 1

    def finish(self) -> list[Shard]:
        if self._examples:
            self._flush()
        return self._made

    def _flush(self) -> None:
        name = f"{self._stream}-{self._partition:03d}-{self._number:06d}.tfrecord"
        content = frame(self._examples)
        (self._directory / name).write(content, overwrite=True)
        digest = hashlib.sha256(content).hexdigest()
        count = len(self._examples)
        self._made.append(Shard(name, self._partition, self._from, self._to, count, len(content), digest))
        self._examples, self._size = [], 0
        self._number += 1


def _known(directory: Place, stream: str) -> tuple[list[Shard], dict[int, int]]:
    path = directory / INDEX
    if not path.exists():
        return [], {}
    try:
        found = json.loads(path.read())
        shards = [Shard(**shard) for shard in found["shards"]]
        position = {int(partition): int(offset) for partition, offset in found["position"].items()}
        its_stream = found["stream"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is no archive's index: {error}") from error
    if its_stream != stream:
        raise Conflict(f"{directory} holds the archive of stream {its_stream}, not of {stream}")
    return shards, position


def _write_index(directory: Place, stream: str, shards: list[Shard], position: dict[int, int]) -> None:
    document = {
        "stream": stream,
        "position": {str(partition): offset for partition, offset in sorted(position.items())},
        "shards": [asdict(shard) for shard in shards],
    }
    (directory / INDEX).write((json.dumps(document, indent=1) + "\n").encode(), overwrite=True)
