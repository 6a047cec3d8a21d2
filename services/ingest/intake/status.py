"""What a stream's door says of it."""

from typing import Any

from services.ingest.intake.accept import Intake
from services.ingest.intake.streams import OpenStream
from services.ingest.schemas import labels_name


async def status_of(intake: Intake, name: str) -> dict[str, Any]:
    """A stream's schema version, positions, and counts since this process started; raises as `Intake.open`."""
    stream, schema = await intake.open(name), await intake.schema_of(name)
    source = stream.validator(schema).schema.source
    return {
        "stream": name,
        "schema_version": schema.schema_version,
        **({"source": source.to_mapping()} if source else {}),
        **await _positions_of(intake, stream.topic),
        "deadletters": await _positions_of(intake, stream.letters_topic),
        "keys": {
            "shared": intake.shares_keys,
            "window_seconds": intake.settings.key_window_seconds,
            "window_count": intake.settings.key_window_count,
        },
        **_counts_of(stream),
        **(await _labels_status(intake, name)),
    }


async def _labels_status(intake: Intake, name: str) -> dict[str, Any]:
    if intake.schemas.known(labels_name(name)) is None:
        return {}
    labels = await intake.open(name, labels=True)
    end = await intake.in_thread(intake.log.end_position, labels.topic)
    return {"labels": {"topic": labels.topic, "end": end, **_counts_of(labels)}}


async def _positions_of(intake: Intake, topic: str) -> dict[str, Any]:
    start = await intake.in_thread(intake.log.start_position, topic)
    return {"topic": topic, "start": start, "end": await intake.in_thread(intake.log.end_position, topic)}


def _counts_of(stream: OpenStream) -> dict[str, int]:
    return {"accepted_since_start": stream.accepted_count, "refused_since_start": stream.refused_count}
