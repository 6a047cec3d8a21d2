"""Opens the event log that a setting names. Only the adapter asked for is imported."""

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from common.errors import InvalidInput
from common.eventlog.base import EventLog
from common.eventlog.kafka_security import kafka_of

if TYPE_CHECKING:
    from common.eventlog.kafka_log import KafkaLog

_KNOWN = "segments:/absolute/dir and kafka:host:port[,host:port]"


def open_event_log(url: str) -> EventLog:
    """The log at `segments:/absolute/dir` (made if it is not there) or `kafka:host:port[,host:port]`.

    After the folder, `?segment_bytes=N&retention_bytes=N&retention_seconds=N` (see SegmentSettings); every process that
    appends should name the same. A Kafka topic's limits are Kafka's configuration; what stands after its servers is in
    kafka_security.py.

    Raises:
        InvalidInput: the URL is none of the two.
        Unavailable: the folder cannot be made or written. (Kafka is first called when it is first used.)
    """
    scheme, _, rest = url.partition(":")
    if scheme == "segments":
        return _open_segments(url, rest)
    if scheme == "kafka":
        return _open_kafka(url, rest)
    raise InvalidInput(f"event log {url!r} has an unknown scheme; known are {_KNOWN}")


def brokers_of(url: str) -> list[str]:
    """host:port of each broker of the Kafka at `kafka:host:port[,host:port]`, which may be others than those that the
    URL names. Raises Unavailable."""
    log = _open_kafka(url, url.partition(":")[2])
    try:
        return log.brokers()
    finally:
        log.close()


def _open_kafka(url: str, rest: str) -> "KafkaLog":
    servers, security = kafka_of(rest)
    if not all(_is_server(server) for server in servers):
        raise InvalidInput(
            f"event log {url.partition('?')[0]!r} must list servers as host:port, as in kafka:broker-1:9092"
        )
    from common.eventlog.kafka_log import KafkaLog

    return KafkaLog(servers, security=security)


def _open_segments(url: str, rest: str) -> EventLog:
    from common.eventlog.segment_log import SegmentLog
    from common.eventlog.segment_writer import SegmentSettings

    directory, _, query = rest.partition("?")
    if not Path(directory).is_absolute():
        raise InvalidInput(f"event log {url!r} must name an absolute folder, as in segments:/var/lib/headrace/log")
    options = parse_qsl(query, keep_blank_values=True)
    known = {"segment_bytes": int, "retention_bytes": int, "retention_seconds": float}
    unknown = sorted({name for name, _ in options} - known.keys())
    if unknown or len(dict(options)) < len(options):
        raise InvalidInput(f"event log {url!r}: unknown or repeated option; known are {', '.join(known)}")
    try:
        values: dict[str, Any] = {name: known[name](text) for name, text in options}
    except ValueError as error:
        raise InvalidInput(f"event log {url!r} has an option that is not a number: {error}") from error
    if not all(value > 0 for value in values.values()):
        raise InvalidInput(f"event log {url!r} has an option that is not above zero")
    return SegmentLog(Path(directory), SegmentSettings(**values))


def _is_server(server: str) -> bool:
    host, _, port = server.rpartition(":")
    return bool(host) and port.isdigit() and 0 < int(port) < 65_536
