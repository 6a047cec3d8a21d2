"""Freshness (DESIGN.md section 5, row 1): from an event's acknowledgement to a model that has learned from it.

Served by every replica, whole model, gate included, while events come at a fixed rate.

`python -m benchmarks.freshness [--model flights|digits|table|module] [--seconds 240] [--rate 1000] [--replicas 2]
[--mode local|compose]`

The platform runs as `headrace up` or `headrace --platform compose up` starts it. A feeder posts a tenth of a second's
events at a time and notes when each post was answered and where in the log it ended. An event counts as served when
every replica answers with a promoted version whose chain of parents covers it.
"""

import argparse
import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import psutil

from benchmarks.freshness_models import MODELS, TRIGGERS, Followed, followed, keras_seconds
from benchmarks.report import Cell, publish
from common.errors import Unavailable
from common.registry.catalog import Version
from examples.demo.asker import percentile
from examples.demo.watcher import Seen, Watcher
from headrace.client.platform import Client
from headrace.compose.platform import ComposeLauncher
from headrace.files.event_files import NDJSON
from headrace.local.launcher import Launcher
from headrace.places import SERVICES

_POSTS_PER_SECOND = 10
_LOOK_SECONDS = 0.3
_DRAIN_SECONDS = 90.0
_REJECTED_SECONDS = 5.0
"""After the last event: if no round is open then and the newest version is rejected, its events wait for others."""
_TARGET_SECONDS = 2.0
_STAGES = ("download", "read", "build", "train", "evaluate", "export", "upload")


@dataclass(frozen=True)
class Post:
    """One acknowledged request; times are epoch seconds."""

    acknowledged_at: float
    event_count: int
    end_offset: int
    """Of partition 0, the only one: every event of the post lies below it."""


class Feeder:
    """Posts events at a fixed rate in a separate thread; late events are posted at once, not left out."""

    def __init__(self, client: Client, stream: str, bodies: Sequence[bytes], events_per_post: int) -> None:
        self.posts: list[Post] = []
        self.error: Exception | None = None
        self._client, self._stream, self._bodies = client, stream, bodies
        self._events_per_post = events_per_post
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            for index, body in enumerate(self._bodies):
                time.sleep(max(0.0, begin + index / _POSTS_PER_SECOND - time.monotonic()))
                answer = self._client.append_body(self._stream, body, NDJSON)
                self.posts.append(Post(time.time(), answer.accepted, answer.position[0]))
        except Exception as error:
            self.error = error


def main() -> int:
    arguments = _arguments()
    model = followed(arguments.model)
    arguments.rate = arguments.rate or model.rate
    data_dir = Path(tempfile.mkdtemp(prefix="headrace-freshness-"))
    launcher = _launcher(arguments.mode, data_dir)
    try:
        launcher.up(replicas=arguments.replicas, port_offset=None)
        launcher.wait_until_ready(timeout_seconds=90.0)
        before = _cpu_seconds(launcher)
        posts, seen = _run(launcher, model, seconds=arguments.seconds, rate=arguments.rate)
        used = {name: now - before.get(name, 0.0) for name, now in _cpu_seconds(launcher).items()}
    finally:
        launcher.close()
    slowest = _publish(posts, seen, used, arguments, model)
    shutil.rmtree(data_dir, ignore_errors=True)
    return 0 if slowest <= _TARGET_SECONDS else 1


def _cpu_seconds(launcher: Launcher | ComposeLauncher) -> dict[str, float]:
    """By local process, with its children, those that have ended among them; empty in containers."""
    if not isinstance(launcher, Launcher):
        return {}
    found = {}
    for process in launcher.state().processes:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            found[process.name] = sum(sum(each.cpu_times()[:4]) for each in (parent, *parent.children(recursive=True)))
    return found


def _launcher(mode: str, data_dir: Path) -> Launcher | ComposeLauncher:
    if mode == "compose":
        return ComposeLauncher(project="headrace-freshness", services=("proxy", *SERVICES), is_temporary=True)
    return Launcher(data_dir)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.freshness")
    parser.add_argument(
        "--model", choices=MODELS, default="flights", help="table: 1,000,000 x 32; module: Keras layers"
    )
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--rate", type=int, help="events per second; 1000, of digits 100")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--mode", choices=["local", "compose"], default="local")
    return parser.parse_args()


def _run(
    launcher: Launcher | ComposeLauncher, model: Followed, *, seconds: float, rate: int
) -> tuple[list[Post], Seen]:
    events_per_post = rate // _POSTS_PER_SECOND
    events = model.events(int(seconds * _POSTS_PER_SECOND) * events_per_post)
    bodies = [
        b"\n".join(map(orjson.dumps, events[start : start + events_per_post]))
        for start in range(0, len(events), events_per_post)
    ]
    with launcher.client(by="benchmark") as client, launcher.client(by="feeder") as feeding:
        client.register_stream(model.stream, model.schema)
        client.register_model(model.model, stream=model.stream, files=model.files)
        feeder = Feeder(feeding, model.stream, bodies, events_per_post)
        feeder.start()
        watcher = Watcher(client, model.model)
        replica_count = len(launcher.state().addresses.serving)
        give_up_at = time.monotonic() + seconds + _DRAIN_SECONDS
        ended_at = math.inf
        while feeder.is_running() or not _all_served(feeder.posts, watcher.seen, replica_count):
            if feeder.error is not None:
                raise feeder.error
            ended_at = ended_at if feeder.is_running() else min(ended_at, time.monotonic())
            if time.monotonic() > ended_at + _REJECTED_SECONDS and _waits_for_more(watcher.seen):
                break
            if time.monotonic() > give_up_at:
                raise Unavailable(f"not every event was served {_DRAIN_SECONDS:.0f} s after the last one")
            watcher.look()
            time.sleep(_LOOK_SECONDS)
        return feeder.posts, watcher.seen


def _served(seen: Seen, replica_count: int) -> list[tuple[int, float, Version]]:
    """(end offset, served by every replica at, version) of the promoted versions, oldest first."""
    found = []
    for version in seen.versions:
        served_at = seen.served_at(version, replica_count) if seen.is_promoted(version) else None
        if served_at is not None:
            found.append((version.end_position[0], served_at, version))
    return found


def _all_served(posts: Sequence[Post], seen: Seen, replica_count: int) -> bool:
    served = _served(seen, replica_count)
    return bool(posts and served) and served[-1][0] >= posts[-1].end_offset


def _waits_for_more(seen: Seen) -> bool:
    """The newest version was rejected, and no round is open: its events wait for further events."""
    newest = max(seen.versions, key=lambda version: version.version, default=None)
    return newest is not None and not seen.is_promoted(newest) and seen.open_round is None


def _fresh_seconds(posts: Sequence[Post], served: Sequence[tuple[int, float, Version]]) -> dict[int, list[float]]:
    """Seconds of each event that was served, from its acknowledgement until then, ascending, by version."""
    ends = [end for end, _, _ in served]
    by_version: dict[int, list[float]] = {version.version: [] for _, _, version in served}
    for post in posts:
        if post.end_offset > ends[-1]:
            break
        _, served_at, version = served[bisect_right(ends, post.end_offset - 1)]
        by_version[version.version] += [served_at - post.acknowledged_at] * post.event_count
    return {version: sorted(seconds) for version, seconds in by_version.items()}


def _row(version: Version, seconds: Sequence[float], served_at: float, planned_at: float) -> dict[str, Cell]:
    timings: Mapping[str, float] = version.timings
    return {
        "version": version.version,
        "events": len(seconds),
        "p50 s": percentile(seconds, 0.5),
        "p95 s": percentile(seconds, 0.95),
        "last event s": served_at - version.last_event_at,
        "wait for trigger": planned_at - version.last_event_at,
        "lease+fork": timings["queue"],
        **(stages := {stage: timings.get(stage, 0.0) for stage in _STAGES}),
        "register": version.created_at - planned_at - timings["queue"] - sum(stages.values()),
        "whole round": version.created_at - planned_at,
        "load": served_at - version.created_at,
    }


def _publish(
    posts: Sequence[Post], seen: Seen, cpu_seconds: Mapping[str, float], arguments: argparse.Namespace, model: Followed
) -> float:
    served = _served(seen, arguments.replicas)
    by_version = _fresh_seconds(posts, served)
    rows = []
    for _, served_at, version in served:
        found = seen.round_of(version)
        assert found is not None
        rows.append(_row(version, by_version[version.version], served_at, found.planned_at))
    every = sorted(value for seconds in by_version.values() for value in seconds)
    total: dict[str, Cell] = dict.fromkeys(rows[0])
    for key in rows[0]:
        values = [row[key] for row in rows]
        total[key] = statistics.median(float(value) for value in values if isinstance(value, int | float))
    p50, p95, p99 = percentile(every, 0.5), percentile(every, 0.95), percentile(every, 0.99)
    per_version = {name: round(used / len(seen.versions), 3) for name, used in cpu_seconds.items()}
    assert p50 is not None
    assert p95 is not None
    total |= {"version": "all", "events": len(every), "p50 s": p50, "p95 s": p95}
    batch = model.events(max(1, round(len(every) / len(served))))
    fit = keras_seconds(model, batch)
    ratio = round(float(str(total["last event s"])) / fit, 1)
    sent = [int(version.environment.get("uploaded_bytes", 0)) for _, _, version in served]
    rejected = sum(not seen.is_promoted(version) for version in seen.versions)
    publish(
        "freshness" if arguments.mode == "local" else "freshness_compose",
        f"Freshness of {arguments.model} ({arguments.mode}) at {arguments.rate:,} events/s, {arguments.replicas} "
        "replicas: seconds from "
        f"acknowledged to served by every replica (target: p95 <= {_TARGET_SECONDS:.0f} s)",
        [*rows, total],
        notes=[
            f"p50 and p95 are over events and hold the wait for the trigger: {TRIGGERS}.",
            f"{sum(post.event_count for post in posts) - len(every):,} events wait for a later version at the end.",
            "The last line is over all events; its other columns are medians over the versions.",
            f"Keras fit of {len(batch):,} events, a version's: {fit:.3f} s; 'last event': {ratio} times that.",
            f"Uploaded for a version: {statistics.median(sent):,.0f} bytes (median).",
            f"p99 {p99} s. CPU seconds for a version, ingest and serving with their other work: {per_version}.",
            "'last event' runs from the ingest of the newest event of the range; the stages after it make it up.",
            f"{len(served)} versions promoted, {rejected} rejected by the gate (their events wait for a later one).",
        ],
        facts={
            "events": len(every),
            "rate": arguments.rate,
            "load_average": os.getloadavg()[0],
            "replicas": arguments.replicas,
            "target_p95_seconds": _TARGET_SECONDS,
            "p50_seconds": p50,
            "p95_seconds": p95,
            "p99_seconds": p99,
            "keras_fit_seconds": fit,
            "last_event_over_keras_fit": ratio,
            "uploaded_bytes_median": statistics.median(sent),
            **{f"{name}_cpu_seconds_per_version": used for name, used in per_version.items()},
            "versions": len(served),
        },
    )
    return p95


if __name__ == "__main__":
    sys.exit(main())
