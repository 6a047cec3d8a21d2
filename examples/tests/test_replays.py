"""The replays give what stream.yaml promises: every event, in order, with nothing known only afterwards."""

import gzip
import itertools
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from common.schema import Schema
from examples.digits import replay as digits
from examples.flights import replay as flights

EXAMPLES = Path(__file__).parents[1]
KNOWN_AFTERWARDS = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum"}


def _schema(example: str) -> Schema:
    mapping = yaml.safe_load((EXAMPLES / example / "stream.yaml").read_text())
    mapping.pop("stream")
    return Schema.from_mapping(mapping)


def _fits(schema: Schema, event: dict[str, Any]) -> bool:
    if set(event) != {feature.name for feature in schema.columns}:
        return False
    for feature in schema.columns:
        values = event[feature.name] if feature.shape else [event[feature.name]]
        kind = {"float32": float, "int64": int, "string": str}[feature.dtype]
        if len(values) != feature.value_count or not all(type(value) is kind for value in values):
            return False
        if feature.minimum is not None and min(values) < feature.minimum:
            return False
        if feature.maximum is not None and max(values) > feature.maximum:
            return False
        if feature.vocabulary and not set(values) <= set(feature.vocabulary):
            return False
    return True


def test_flights_of_2013_come_by_scheduled_departure_and_hold_nothing_that_is_known_only_afterwards() -> None:
    every = list(flights.events())
    assert len(every) == 336_776
    departures = [flight["scheduled_at"] for flight in every]
    assert departures == sorted(departures)
    assert departures[0] == 1_357_035_300, "1 January 2013, 5:15 in New York"
    schema = _schema("flights")
    assert not {feature.name for feature in schema.columns} & KNOWN_AFTERWARDS
    assert all(_fits(schema, flight) for flight in every[::10])
    late = Counter(flight["late"] for flight in every)[1]
    assert late == 9_430 + 80_100, "cancelled or diverted, and fifteen minutes behind at least"
    # Delayed flights leave later: in the file's order they would gather at the end of their minute.
    positions: dict[int, list[float]] = {0: [], 1: []}
    for _, minute in itertools.groupby(every, key=lambda flight: flight["scheduled_at"]):
        group = list(minute)
        for place, flight in enumerate(group):
            if len(group) > 1:
                positions[flight["late"]].append(place / (len(group) - 1))
    means = {late: sum(places) / len(places) for late, places in positions.items()}
    assert abs(means[1] - means[0]) < 0.1


def test_every_digit_comes_once_in_a_random_order_that_is_the_same_each_time() -> None:
    first = list(digits.events())
    assert Counter(event["digit"] for event in first) == dict.fromkeys(range(10), 500)
    assert len({event["digit"] for event in first[:50]}) > 5
    assert first[:500] == list(digits.events(500))
    assert all(_fits(_schema("digits"), event) for event in first[:500])


@pytest.mark.covers("ex-mnist")
@pytest.mark.parametrize("is_packed", [False, True])
def test_images_of_mnists_own_files_are_events_of_the_same_stream(tmp_path: Path, is_packed: bool) -> None:
    """Fashion-MNIST is published in these files, too."""
    images = np.random.default_rng(1).integers(0, 256, (3, 28, 28), np.uint8)
    contents = {
        "train-images-idx3-ubyte": struct.pack(">4I", 0x0803, 3, 28, 28) + images.tobytes(),
        "train-labels-idx1-ubyte": struct.pack(">2I", 0x0801, 3) + bytes([9, 0, 4]),
    }
    for name, content in contents.items():
        (tmp_path / (f"{name}.gz" if is_packed else name)).write_bytes(gzip.compress(content) if is_packed else content)
    found = list(digits.of_idx(tmp_path))
    assert [event["digit"] for event in found] == [9, 0, 4]
    np.testing.assert_array_equal([event["pixels"] for event in found], images.reshape(3, 784))
    assert all(_fits(_schema("digits"), event) for event in found)
    assert len(list(digits.of_idx(tmp_path, 2))) == 2
