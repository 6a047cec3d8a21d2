"""Replays an example into its stream at a steady rate: `python -m examples.demo.feeder SETTINGS_JSON`.

Before it sends a batch, two versions predict it (foresight.py). Prints a line of JSON after each request: {"accepted":
events so far, "seconds": since the first request, "position": {partition: offset}, "done": bool, "stretches": of
foresight, at the end}. A full ingest (429) or an ingest that is away makes it wait.
"""

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from common.errors import HeadraceError, NotFound
from common.process.lifecycle import die_with_parent
from examples.demo.foresight import Foresight, Question
from headrace.client.platform import Client
from headrace.files.event_files import NDJSON
from headrace.places import Addresses

_BATCHES_PER_SECOND = 5
_BATCH_BYTES = 2 * 1024 * 1024
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class FeederSettings:
    """`event_count` None: all there are. `events_per_second` is what the replay keeps to where ingest takes it."""

    example_dir: str
    stream: str
    event_count: int | None
    events_per_second: int
    ingest_url: str
    predictions_url: str
    question: dict[str, str]
    parent_pid: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def replay(example_dir: Path, event_count: int | None) -> Iterator[dict[str, Any]]:
    """The events of an example's replay.py.

    Raises:
        NotFound: there is no such example, or its data set is not installed.
    """
    path = example_dir / "replay.py"
    spec = importlib.util.spec_from_file_location(f"replay_of_{example_dir.name}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise NotFound(f"there is no {path}; run the demo from the root of the repository")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        yield from module.events(event_count)
    except FileNotFoundError as error:
        raise NotFound(str(error)) from error


def batches(events: Iterator[dict[str, Any]], most_events: int) -> Iterator[list[bytes]]:
    """Events as lines of JSON, in batches of at most `most_events` and about _BATCH_BYTES."""
    lines: list[bytes] = []
    size = 0
    for event in events:
        lines.append(orjson.dumps(event))
        size += len(lines[-1])
        if len(lines) >= most_events or size >= _BATCH_BYTES:
            yield lines
            lines, size = [], 0
    if lines:
        yield lines


def feed(settings: FeederSettings) -> None:
    addresses = Addresses(ingest=settings.ingest_url, predictions=settings.predictions_url)
    most_events = max(1, settings.events_per_second // _BATCHES_PER_SECOND)
    prepared = list(batches(replay(Path(settings.example_dir), settings.event_count), most_events))
    accepted = 0
    position: dict[int, int] = {}
    with Client(addresses, timeout_seconds=_PATIENCE_SECONDS) as client:
        foresight = Foresight(client, Question(**settings.question))
        began = time.monotonic()
        for lines in prepared:
            foresight.compare([orjson.loads(line) for line in lines], accepted)
            time.sleep(max(0.0, began + accepted / settings.events_per_second - time.monotonic()))
            answer = client.append_body(settings.stream, b"\n".join(lines) + b"\n", NDJSON)
            accepted += answer.accepted
            position |= answer.position
            _report(accepted, time.monotonic() - began, position)
    _report(accepted, time.monotonic() - began, position, done=True, stretches=foresight.stretches())


def _report(accepted: int, seconds: float, position: dict[int, int], *, done: bool = False, **rest: Any) -> None:
    line = {"accepted": accepted, "seconds": seconds, "position": position, "done": done, **rest}
    print(json.dumps(line), flush=True)


def main() -> int:
    settings = FeederSettings(**json.loads(sys.argv[1]))
    die_with_parent(settings.parent_pid)
    try:
        feed(settings)
    except HeadraceError as error:
        print(json.dumps({"error": error.message}), flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
