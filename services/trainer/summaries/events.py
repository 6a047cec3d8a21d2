"""TensorBoard event files, in the layouts of TensorFlow 2's summaries.

A version's file has the whole curve of its round, its metrics, and what was looked at on the way; a live file grows
block by block while a round trains. TensorBoard's own protos and writers; a file is plain records, so it can be read
while it grows.
"""

import io
import math
import re
import wave
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from tensorboard.plugins.audio import metadata as audio_metadata
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.image import metadata as image_metadata
from tensorboard.plugins.pr_curve import metadata as pr_metadata
from tensorboard.plugins.scalar import metadata
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from common.registry.catalog import VersionMetrics

_LOSSES = ("loss", "data_loss", "regularization_loss")
_SIDES = ("candidate", "parent", "progressive")
_LIVE_POINTS = 10
"""Of a block, at most, in the live file."""
_MOST_LIVE_BYTES = 32 * 1024 * 1024
"""A live file that is larger grows no more; the version's has it all."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """One loss and one learning rate per step; and of each loss what regularisers and layers added, where known (NaN:
    it is not)."""

    steps: Sequence[int]
    losses: Sequence[float]
    learning_rates: Sequence[float]
    added: Sequence[float] = ()


@dataclass(frozen=True)
class Seen:
    """What was looked at beside curves and metrics.

    Attributes:
        at_step: summaries of a step, in order.
        pr_curves: by tag, [6, thresholds] as drawings.pr_counts says.
        at_end: of the round's last step.
        hyperparameters: numbers, texts and flags by name.
        trial: what the table of hyperparameters calls them; those of equal trials are one row.
    """

    at_step: Sequence[tuple[int, Summary]] = ()
    pr_curves: Mapping[str, Floats] = field(default_factory=dict)
    at_end: Sequence[Summary] = ()
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    trial: str | None = None


def write_events(
    directory: Path, curves: Curves, metrics: VersionMetrics, *, wall_time: float, seen: Seen | None = None
) -> None:
    """Writes one event file.

    Args:
        metrics: {"candidate": {"auc": ...}, ...} becomes candidate/auc.
        wall_time: epoch seconds, of all events.
    """
    directory.mkdir(parents=True, exist_ok=True)
    writer = EventFileWriter(str(directory), max_queue_size=1000)
    try:
        for event in _events(curves, metrics, wall_time, seen or Seen()):
            writer.add_event(event)
    finally:
        writer.close()


def _events(curves: Curves, metrics: VersionMetrics, wall_time: float, seen: Seen) -> Iterator[Event]:
    yield Event(wall_time=wall_time, summary=_layout(metrics))
    if seen.hyperparameters:
        chosen = hparams_pb(dict(seen.hyperparameters), trial_id=seen.trial, start_time_secs=wall_time)
        yield Event(wall_time=wall_time, summary=chosen)
    for step, summary in curve_summaries(curves):
        yield Event(wall_time=wall_time, step=step, summary=summary)
    for step, summary in seen.at_step:
        yield Event(wall_time=wall_time, step=step, summary=summary)
    last_step = curves.steps[-1] if curves.steps else 0
    scalars = [
        scalar(f"{part}/{name}", float(value)) for part, measured in metrics.items() for name, value in measured.items()
    ]
    drawn = [_pr_curve(tag, counts) for tag, counts in seen.pr_curves.items()]
    for summary in (Summary(value=[*scalars, *drawn]), *seen.at_end):
        yield Event(wall_time=wall_time, step=last_step, summary=summary)


def curve_summaries(curves: Curves) -> Iterator[tuple[int, Summary]]:
    """A summary per step, with the step."""
    of_added = curves.added or [math.nan] * len(curves.steps)
    for step, loss, rate, added in zip(curves.steps, curves.losses, curves.learning_rates, of_added, strict=True):
        values = [scalar("loss", loss), scalar("learning_rate", rate)]
        if not math.isnan(added):
            values += [scalar("data_loss", loss - added), scalar("regularization_loss", added)]
        yield step, Summary(value=values)


def scalar(tag: str, value: float) -> Summary.Value:
    tensor = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(), float_val=[value])
    kind = metadata.create_summary_metadata(display_name="", description="")
    return Summary.Value(tag=tag, tensor=tensor, metadata=kind)


def histogram(tag: str, values: NDArray[np.generic]) -> Summary:
    """30 buckets whose counts add up to the number of values."""
    return histogram_pb(tag, values.astype(np.float64).ravel())


def text(tag: str, markdown: str) -> Summary:
    return text_pb(tag, markdown)


def image(tag: str, png: bytes, *, height: int, width: int, description: str = "") -> Summary:
    """`description`: Markdown, shown beside it."""
    kind = image_metadata.create_summary_metadata(display_name="", description=description)
    return Summary(value=[_value(tag, [str(width).encode(), str(height).encode(), png], kind)])


def audio(tag: str, samples: NDArray[np.int16], *, samples_per_second: int) -> Summary:
    """One channel, as a WAV file."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(samples_per_second)
        file.writeframes(samples.astype("<i2").tobytes())
    kind = audio_metadata.create_summary_metadata(
        display_name="", description="", encoding=audio_metadata.Encoding.Value("WAV")
    )
    return Summary(value=[_value(tag, [[content.getvalue(), b""]], kind)])


def _value(tag: str, data: Any, kind: Any) -> Summary.Value:
    return Summary.Value(tag=tag, tensor=make_tensor_proto(data), metadata=kind)


def _pr_curve(tag: str, counts: Floats) -> Summary.Value:
    kind = pr_metadata.create_summary_metadata(display_name=tag, description="", num_thresholds=counts.shape[1])
    return _value(f"{tag}/pr_curves", counts.astype("<f4"), kind)


def _layout(metrics: VersionMetrics) -> Summary:
    """Custom scalars: the parts of the loss in one chart, and each metric's sides in one."""
    names = dict.fromkeys(name for side in _SIDES for name in metrics.get(side, {}))
    of_metrics = [_chart(name, [f"({'|'.join(_SIDES)})/{re.escape(name)}$"]) for name in names]
    layout = layout_pb2.Layout(
        category=[
            layout_pb2.Category(title="losses", chart=[_chart("loss", [f"^{name}$" for name in _LOSSES])]),
            layout_pb2.Category(title="metrics", chart=of_metrics),
        ]
    )
    content = layout.SerializeToString(deterministic=True)
    kind = layout_metadata.create_summary_metadata()
    return Summary(value=[_value(layout_metadata.CONFIG_SUMMARY_TAG, content, kind)])


def _chart(title: str, tags: Sequence[str]) -> layout_pb2.Chart:
    return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=tags))


class LiveFile:
    """A file that grows while a round trains. An attempt that goes on from a resume point writes
    to the same file, and says where it begins, so that TensorBoard forgets what came after that."""

    def __init__(self, path: Path, *, first_step: int, wall_time: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._writer = RecordWriter(self._file)
        self._add(Event(wall_time=wall_time, file_version="brain.Event:2"))
        start = SessionLog(status=SessionLog.START)
        self._add(Event(wall_time=wall_time, step=first_step, session_log=start))
        self._file.flush()

    def add(self, summaries: Sequence[tuple[int, Summary]], *, wall_time: float) -> None:
        if self._file.tell() > _MOST_LIVE_BYTES:
            return
        for step, summary in summaries:
            self._add(Event(wall_time=wall_time, step=step, summary=summary))
        self._file.flush()

    def _add(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())

    def close(self) -> None:
        self._file.close()


def thinned(count: int) -> list[int]:
    """Places of at most ten of `count` points, the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, _LIVE_POINTS)).tolist()})
