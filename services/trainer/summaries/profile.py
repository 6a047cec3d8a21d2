"""What a trace of some steps says: operations by time, and whether the round waits for its input or computes.

profile/plugins/profile/<time>/<host>.xplane.pb   as TensorBoard's profile plugin reads it
profile/trace.json                                the same for chrome://tracing and Perfetto: Trace Event Format
profile/profile.json                              the table
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from services.trainer.learn.code_places import LOOP

_MOST_EVENTS, _MOST_NODES = 50_000, 2000
_CALLS = frozenset({"While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"})
"""What these take is what the operations in them take."""
_INPUT_BOUND_SHARE = 0.5
_PICOSECONDS = 1e6
"""In a microsecond."""


@dataclass(frozen=True)
class Node:
    """An operation of the graph: its name without the loop over batches, how often it ran, and for how long; and the
    line that made it, where that is known."""

    name: str
    op: str
    count: int
    micros: float
    code: str


def write(
    folder: Path, *, steps: int, first_step: int, seconds: Mapping[str, float], places: Mapping[str, str]
) -> dict[str, Any]:
    """Writes trace.json and profile.json beside what the profiler left in the folder; returns what the latter says.

    Args:
        steps: that were traced.
        seconds: of the whole round, by stage.
        places: the line of code of each operation, by name.
    """
    space = XSpace()
    for path in sorted(folder.glob("plugins/profile/*/*.xplane.pb")):
        space.MergeFromString(path.read_bytes())
    nodes = _nodes(space, places)
    document: dict[str, Any] = {
        "first_step": first_step,
        "steps": steps,
        "seconds": {stage: round(spent, 4) for stage, spent in seconds.items()},
        **advice(seconds, nodes, steps=steps),
        "nodes": [asdict(node) for node in nodes[:_MOST_NODES]],
        "left_out": max(0, len(nodes) - _MOST_NODES),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.json").write_text(json.dumps(_chrome(space)))
    (folder / "profile.json").write_text(json.dumps(document, indent=1))
    return document


def advice(seconds: Mapping[str, float], nodes: list[Node], *, steps: int) -> dict[str, str]:
    """`bound` is input or compute, over the whole round; `advice` says it in a sentence."""
    read, train = sum(seconds.get(part, 0.0) for part in ("extract", "parse", "read")), seconds.get("train", 0.0)
    share = read / (read + train) if read + train else 0.0
    if share > _INPUT_BOUND_SHARE:
        return {
            "bound": "input",
            "advice": f"input-bound: {share:.0%} of the round's {read + train:.2f} s of reading and training went into "
            f"reading, parsing and transforming events; more passes or a larger model cost little",
        }
    of = f"of the round's {read + train:.2f} s of reading and training went into steps"
    sentence = f"compute-bound: {1 - share:.0%} {of}"
    if not steps:
        return {
            "bound": "compute",
            "advice": f"{sentence}; none was traced: the round had fewer, or TensorFlow takes none",
        }
    spent = sum(node.micros for node in nodes)
    top = f"; {nodes[0].op} {nodes[0].name} takes {nodes[0].micros / spent:.0%} of a step" if nodes and spent else ""
    return {"bound": "compute", "advice": sentence + top}


def _nodes(space: XSpace, places: Mapping[str, str]) -> list[Node]:
    """The longest first."""
    counts, micros = defaultdict[tuple[str, str], int](int), defaultdict[tuple[str, str], float](float)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name, colon, op = plane.event_metadata[event.metadata_id].name.rpartition(":")
                if not colon or not op.isidentifier() or op in _CALLS or not name or name.endswith(":"):
                    continue
                key = (LOOP.sub("", name), op)
                counts[key] += 1
                micros[key] += event.duration_ps / _PICOSECONDS
    found = [
        Node(name, op, count, round(micros[name, op], 3), places.get(name, "")) for (name, op), count in counts.items()
    ]
    return sorted(found, key=lambda node: (-node.micros, node.name))


def _chrome(space: XSpace) -> dict[str, Any]:
    """At most so many events, the longest."""
    names: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for process, plane in enumerate(space.planes):
        names.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": plane.name}})
        for thread, line in enumerate(plane.lines):
            named = {"name": line.display_name or line.name}
            names.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": named})
            events += _events_of(plane, line, process=process, thread=thread)
    kept = sorted(events, key=lambda event: -event["dur"])[:_MOST_EVENTS]
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *sorted(kept, key=lambda event: event["ts"])]}


def _events_of(plane: Any, line: Any, *, process: int, thread: int) -> Iterator[dict[str, Any]]:
    for event in line.events:
        begin = line.timestamp_ns / 1e3 + event.offset_ps / _PICOSECONDS
        stats = {
            plane.stat_metadata[stat.metadata_id].name: getattr(stat, str(stat.WhichOneof("value")))
            for stat in event.stats
            if stat.WhichOneof("value") in ("int64_value", "uint64_value", "str_value")
        }
        yield {
            "ph": "X",
            "pid": process,
            "tid": thread,
            "name": plane.event_metadata[event.metadata_id].name,
            "ts": begin,
            "dur": event.duration_ps / _PICOSECONDS,
            **({"args": stats} if stats else {}),
        }
