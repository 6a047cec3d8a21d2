"""The graph that a version serves, as an event file for TensorBoard's tab of that name."""

from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from services.trainer.summaries.events import text

FILE_NAME = "events.out.tfevents.9999999999.graph"
"""It sorts behind the curves, which the registry's pages read without it."""
_MOST_BYTES = 4 * 1024 * 1024
_MOST_CONSTANT_BYTES = 256


def write(folder: Path, function: Any, *, wall_time: float) -> None:
    """Nodes keep the scopes of their layers, by which TensorBoard groups them; the values of larger constants are left
    out. Of a graph that is too large a text says so.

    Args:
        folder: of the version's events.
        function: a concrete function of TensorFlow.
        wall_time: epoch seconds, of the event.
    """
    graph = function.graph.as_graph_def(add_shapes=True)
    for node in [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]:
        if node.op == "Const" and node.attr["value"].tensor.ByteSize() > _MOST_CONSTANT_BYTES:
            value = node.attr["value"].tensor
            kept = type(value)(dtype=value.dtype, tensor_shape=value.tensor_shape)
            value.CopyFrom(kept)
    written = graph.SerializeToString(deterministic=True)
    if len(written) <= _MOST_BYTES:
        event = Event(wall_time=wall_time, graph_def=written)
    else:
        event = Event(
            wall_time=wall_time, summary=text("graph", f"left out: {len(written):,} bytes, more than {_MOST_BYTES:,}")
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE_NAME).open("wb") as file:
        writer = RecordWriter(file)
        for entry in (Event(wall_time=wall_time, file_version="brain.Event:2"), event):
            writer.write(entry.SerializeToString())
        file.flush()
