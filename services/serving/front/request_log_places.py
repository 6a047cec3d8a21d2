"""Where the request log is written to: a topic per model of an event log, or TFRecord files in a folder.

segments:/absolute/dir, kafka:host:port     topic `predictions.<model>`, one partition
tfrecord:/absolute/dir                      <dir>/<model>/<time>-<process>.tfrecord, for a replica without a log
"""

import contextlib
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import quote

from common.errors import InvalidInput, Unavailable
from common.eventlog import tfrecord
from common.eventlog.base import EventLog, NewRecord, RecordHeaders
from common.eventlog.open import open_event_log
from common.eventlog.topics import predictions_topic

FOLDER_SCHEME = "tfrecord:"
_LARGEST_FILE_BYTES = 64 * 1024 * 1024


class Place(Protocol):
    """Used by one thread. Methods raise one of the six errors."""

    def append(self, model: str, records: Sequence[bytes]) -> None: ...

    def close(self) -> None: ...


def open_place(url: str) -> Place:
    """Raises InvalidInput when the URL names no place; Unavailable when it cannot be opened."""
    if not url.startswith(FOLDER_SCHEME):
        return Topics(open_event_log(url))
    folder = Path(url.removeprefix(FOLDER_SCHEME))
    if not folder.is_absolute():
        raise InvalidInput(f"request log {url!r} must name an absolute folder, as in tfrecord:/var/log/headrace")
    return Folder(folder)


class Topics:
    """Records of the event log hold as many framed predictions as were written at once."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: set[str] = set()

    def append(self, model: str, records: Sequence[bytes]) -> None:
        topic = predictions_topic(model)
        if topic not in self._known:
            self._log.create_topic(topic, partition_count=1)
            self._known.add(topic)
        headers = RecordHeaders(
            schema_version=0,
            example_count=len(records),
            ingest_time=round(time.time(), 6),
            chunk_id=secrets.token_bytes(16),
        )
        self._log.append(topic, 0, [NewRecord(tfrecord.frame(records), headers)])

    def close(self) -> None:
        self._log.close()


class Folder:
    """One open file per model; a new one begins when it is large. A crash may cut the last record of a file short,
    which readers of TFRecords notice by its length."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}

    def append(self, model: str, records: Sequence[bytes]) -> None:
        try:
            file = self._file_of(model)
            file.write(tfrecord.frame(records))
            file.flush()
        except OSError as error:
            with contextlib.suppress(KeyError, OSError):
                self._files.pop(model).close()
            raise Unavailable(f"the request log in {self._folder} cannot be written: {error.strerror}") from error

    def _file_of(self, model: str) -> BinaryIO:
        file = self._files.get(model)
        if file is not None and file.tell() < _LARGEST_FILE_BYTES:
            return file
        if file is not None:
            file.close()
        folder = self._folder / quote(model, safe="")
        folder.mkdir(parents=True, exist_ok=True)
        began = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        name = f"{began}-{os.getpid()}-{secrets.token_hex(3)}.tfrecord"
        self._files[model] = (folder / name).open("ab")
        return self._files[model]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
