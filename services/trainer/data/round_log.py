"""The event log as a round's plan knows it."""

from typing import Protocol

from common.eventlog.open import open_event_log
from common.eventlog.sourced_log import Attached, SourcedLog
from common.registry.catalog import RoundPlan, Stream
from common.schema import Schema


class KnowsStreams(Protocol):
    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream: ...


def open_round_log(plan: RoundPlan, url: str, registry: KnowsStreams) -> SourcedLog:
    """With the stream's source as the round's version of the schema says it."""

    def stream_of(name: str) -> Attached:
        stream = registry.get_stream(name, schema_version=plan.schema_version if name == plan.stream else 0)
        return Attached(Schema.from_json(stream.schema_json), stream.log_name)

    return SourcedLog(open_event_log(url), url, stream_of=stream_of)
