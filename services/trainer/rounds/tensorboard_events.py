"""TensorBoard event files: losses and learning rate per step, metrics at the round's last step.

Scalars in the layout of TensorFlow 2's summaries (plugin `scalars`, a float32 tensor), by tensorboard's own writer.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from tensorboard.plugins.scalar import metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from common.registry.catalog import VersionMetrics


@dataclass(frozen=True)
class Curves:
    """One loss and one learning rate per step; and of each loss what regularisers and layers added, where known (NaN:
    it is not)."""

    steps: Sequence[int]
    losses: Sequence[float]
    learning_rates: Sequence[float]
    added: Sequence[float] = ()


def write_events(directory: Path, curves: Curves, metrics: VersionMetrics, *, wall_time: float) -> None:
    """Writes one event file.

    Args:
        metrics: {"candidate": {"auc": ...}, ...} becomes candidate/auc.
        wall_time: epoch seconds, of all events.
    """
    directory.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(directory), max_queue_size=1000)
    try:
        for event in _events(curves, metrics, wall_time):
            writer.add_event(event)
    finally:
        writer.close()


def _events(curves: Curves, metrics: VersionMetrics, wall_time: float) -> Iterator[Event]:
    of_added = curves.added or [math.nan] * len(curves.steps)
    for step, loss, rate, added in zip(curves.steps, curves.losses, curves.learning_rates, of_added, strict=True):
        values = [_scalar("loss", loss), _scalar("learning_rate", rate)]
        if not math.isnan(added):
            values += [_scalar("data_loss", loss - added), _scalar("regularization_loss", added)]
        yield Event(wall_time=wall_time, step=step, summary=Summary(value=values))
    last_step = curves.steps[-1] if curves.steps else 0
    scalars = [
        _scalar(f"{part}/{name}", float(value))
        for part, measured in metrics.items()
        for name, value in measured.items()
    ]
    yield Event(wall_time=wall_time, step=last_step, summary=Summary(value=scalars))


def _scalar(tag: str, value: float) -> Summary.Value:
    tensor = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(), float_val=[value])
    kind = metadata.create_summary_metadata(display_name="", description="")
    return Summary.Value(tag=tag, tensor=tensor, metadata=kind)
