"""predict --to: every row of a file or of a topic answered, each answer under the row's name.

An answer is a line of JSON, or a record of a topic whose key is the row's: {"id", "prediction", "version"}, or {"id",
"error"} for a row that cannot be asked about, so that there are as many answers as rows. A row of a topic is named by
its record's key, or by partition:offset where it has none; one of a file by its number, from 0. A run that was cut off
may be run again: the same rows have the same names.
"""

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from common.counted import counted
from common.errors import InvalidInput
from common.storage import place_of
from headrace.client.bodies import plain

if TYPE_CHECKING:
    from headrace.commands.predict import Asking, Known

_TOPIC = re.compile(r"kafka://([^/\s]+:\d+(?:,[^/\s]+:\d+)*)/([A-Za-z0-9._-]+)")
_ROWS_AT_ONCE = 1000


def is_topic(text: str) -> bool:
    return text.startswith("kafka:")


def answer_all(asking: "Asking", source: str, to: str, known: "Known | None") -> dict[str, Any]:
    """Writes an answer for each row; how many.

    Raises:
        InvalidInput: a file cannot be read, or a place is none. Conflict: the file to write is there already.
    """
    counts = {"rows": 0, "refused": 0}
    versions: dict[int, None] = {}
    with _sink(to) as write:
        for answers in _answers(asking, source, known):
            write(answers)
            counts["rows"] += len(answers)
            counts["refused"] += sum("error" in answer for answer in answers)
            versions |= dict.fromkeys(answer["version"] for answer in answers if "version" in answer)
    return {**counts, "versions": list(versions), "to": to}


def sentence_of(totals: dict[str, Any]) -> str:
    refused = f", {totals['refused']:,} of them refused with the reason" if totals["refused"] else ""
    by = ", ".join(map(str, totals["versions"])) or "none"
    return f"{counted(totals['rows'], 'row')} answered in {totals['to']} by version {by}{refused}"


def _answers(asking: "Asking", source: str, known: "Known | None") -> Iterator[list[dict[str, Any]]]:
    if not is_topic(source):
        with place_of(source).as_local() as path:
            rows = asking.rows_in(path, known).rows
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            answered = enumerate(asking.answers(rows[first : first + _ROWS_AT_ONCE]), first)
            yield [_answer(str(number), prediction, version) for number, (prediction, version) in answered]
        return
    with tempfile.TemporaryDirectory(prefix="headrace-predict-") as directory:
        for records in _records(source):
            yield _answered(asking, records, known, Path(directory) / "rows.ndjson")


def _answered(
    asking: "Asking", records: list[tuple[str, bytes]], known: "Known | None", path: Path
) -> list[dict[str, Any]]:
    """Together where all of them fit, else each alone."""
    try:
        answered = list(asking.answers(_rows(asking, [value for _, value in records], known, path)))
    except InvalidInput as error:
        if len(records) == 1:
            reason = error.message.removeprefix(f"{path}, line 1").lstrip(": ")
            return [{"id": records[0][0], "error": reason}]
        return [answer for record in records for answer in _answered(asking, [record], known, path)]
    found = zip(records, answered, strict=True)
    return [_answer(name, prediction, version) for (name, _), (prediction, version) in found]


def _rows(asking: "Asking", values: list[bytes], known: "Known | None", path: Path) -> list[Any]:
    from headrace.files.tables import parsed_json

    lines = []
    for value in values:
        try:
            lines.append(orjson.dumps(parsed_json(value, "the record")) + b"\n")
        except orjson.JSONEncodeError as error:
            raise InvalidInput("the record is nested too deeply to be read") from error
    path.write_bytes(b"".join(lines))
    return asking.rows_in(path, known).rows


def _answer(name: str, prediction: Any, version: int) -> dict[str, Any]:
    return {"id": name, "prediction": prediction, "version": version}


def _records(url: str) -> Iterator[list[tuple[str, bytes]]]:
    """(name, value) of what the topic holds at this moment, a thousand at a time."""
    from common.eventlog.base import Record, RecordHeaders
    from common.eventlog.kafka_log import KafkaLog, KafkaMessage

    names: dict[tuple[int, int], str] = {}

    def record_of(message: KafkaMessage) -> Record:
        place = (message.partition, message.offset)
        names[place] = message.key.decode(errors="backslashreplace") if message.key else "{}:{}".format(*place)
        return Record(*place, message.value or b"", RecordHeaders(0, 1, 0.0, bytes(16)))

    servers, topic = _topic(url)
    with closing(KafkaLog(servers, record_of=record_of, committed_only=True)) as log:
        start, end = log.start_position(topic), log.end_position(topic)
        part: list[tuple[str, bytes]] = []
        for partition in sorted(end):
            for record in log.read(topic, partition, start[partition], end[partition]):
                part.append((names.pop((record.partition, record.offset)), record.value))
                if len(part) == _ROWS_AT_ONCE:
                    yield part
                    part = []
        if part:
            yield part


@contextmanager
def _sink(to: str) -> Iterator[Callable[[list[dict[str, Any]]], object]]:
    """What writes answers there."""
    if is_topic(to):
        from common.eventlog.kafka_log import KafkaLog

        servers, topic = _topic(to)
        with closing(KafkaLog(servers)) as log:
            log.partition_count(topic)
            yield lambda answers: log.append_keyed(
                topic, [(answer["id"].encode(), orjson.dumps(answer, default=plain)) for answer in answers]
            )
        return
    with place_of(to).writer() as file:
        yield lambda answers: file.write(b"".join(orjson.dumps(answer, default=plain) + b"\n" for answer in answers))


def _topic(url: str) -> tuple[list[str], str]:
    found = _TOPIC.fullmatch(url)
    if found is None:
        raise InvalidInput(f"a topic is kafka://HOST:PORT/TOPIC, got {url!r}")
    return found[1].split(","), found[2]
