"""The loss of a round, from the event file that lies with a version: TensorBoard's format, read without TensorFlow."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from common.errors import DataLoss
from common.eventlog.tfrecord import cut
from common.registry.catalog import FileEntry
from protos.tensorboard_pb2 import BoardEvent
from services.registry.catalog import Catalog

_MAX_BYTES = 4 * 1024 * 1024
_MAX_POINTS = 500


def loss_curve(catalog: Catalog, files: Sequence[FileEntry]) -> dict[str, Any]:
    """{"x": steps, "lines": {tag: {"value": [...]}}} of the curves with `loss` in their names; {} for none."""
    entry = next((file for file in files if file.path.startswith("tensorboard/events")), None)
    if entry is None or entry.size_bytes > _MAX_BYTES:
        return {}
    points: dict[str, dict[int, float]] = {}
    try:
        for step, tag, value in _scalars(b"".join(catalog.blobs.read(entry.digest))):
            if "loss" in tag:
                points.setdefault(tag, {})[step] = value
    except (DataLoss, DecodeError):
        return {}  # Whatever it is, it is no event file that can be drawn.
    points = {tag: of_tag for tag, of_tag in points.items() if len(of_tag) > 1}
    steps = sorted({step for of_tag in points.values() for step in of_tag})
    steps = steps[:: max(1, len(steps) // _MAX_POINTS)]
    lines = {tag: {"value": [of_tag.get(step) for step in steps]} for tag, of_tag in points.items()}
    return {"x": steps, "lines": lines} if len(steps) > 1 else {}


def _scalars(content: bytes) -> Iterator[tuple[int, str, float]]:
    for event in map(BoardEvent.FromString, cut(content)[0]):
        for value in event.summary.value:
            tensor = value.tensor
            numbers = tensor.float_val or np.frombuffer(tensor.tensor_content, "<f4", len(tensor.tensor_content) // 4)
            if len(numbers) == 1:
                yield event.step, value.tag, float(numbers[0])
