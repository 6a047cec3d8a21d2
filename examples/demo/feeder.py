"""Replays an example into its stream as fast as ingest takes it: `python -m examples.demo.feeder SETTINGS_JSON`.

Prints a line of JSON after each request: {"accepted": events so far, "seconds": since the first request,
"position": {partition: offset}, "done": bool}. A full ingest (429) or one that is away makes it wait.
"""

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from common.errors import HeadraceError, NotFound
from common.process.lifecycle import die_with_parent
from headrace.client.platform import Client
from headrace.files.event_files import NDJSON
from headrace.places import Addresses

_BATCH_EVENTS = 2_000
_BATCH_BYTES = 2 * 1024 * 1024
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class FeederSettings:
    """`event_count` None: all there are."""

    example_dir: str
    stream: str
    event_count: int | None
    ingest_url: str
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


def bodies(events: Iterator[dict[str, Any]]) -> Iterator[tuple[bytes, int]]:
    """NDJSON bodies with the number of events in each."""
    lines: list[bytes] = []
    size = 0
    while chunk := list(islice(events, 100)):
        for event in chunk:
            lines.append(orjson.dumps(event))
            size += len(lines[-1])
        if len(lines) >= _BATCH_EVENTS or size >= _BATCH_BYTES:
            yield b"\n".join(lines) + b"\n", len(lines)
            lines, size = [], 0
    if lines:
        yield b"\n".join(lines) + b"\n", len(lines)


def feed(settings: FeederSettings) -> None:
    client = Client(Addresses(ingest=settings.ingest_url), timeout_seconds=_PATIENCE_SECONDS)
    prepared = list(bodies(replay(Path(settings.example_dir), settings.event_count)))
    accepted = 0
    position: dict[int, int] = {}
    began = time.monotonic()
    for body, _ in prepared:
        answer = client.append_body(settings.stream, body, NDJSON)
        accepted += answer.accepted
        position |= answer.position
        _say(accepted, time.monotonic() - began, position, done=False)
    _say(accepted, time.monotonic() - began, position, done=True)


def _say(accepted: int, seconds: float, position: dict[int, int], *, done: bool) -> None:
    print(json.dumps({"accepted": accepted, "seconds": seconds, "position": position, "done": done}), flush=True)


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
