"""Events to tf.train.Examples: the codec written by hand beside protobuf's own classes, in turns in one process.

`protobuf` only fills and serializes one Example message per event and checks nothing, so it is the least that a codec
on protobuf's classes would cost. The codec checks every value against the schema.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.report import Cell, publish
from common.examples.codec import ExampleCodec
from common.schema import Schema
from protos.example_pb2 import Example
from services.ingest.codec.columns import ColumnarEncoder

_EVENTS = 2_000
_TURNS = 15
_SCHEMA = Schema.from_mapping(
    {
        "features": [
            *({"name": f"number_{index}", "dtype": "float32"} for index in range(6)),
            *({"name": f"count_{index}", "dtype": "int64", "min": 0} for index in range(4)),
            *({"name": f"word_{index}", "dtype": "string"} for index in range(3)),
        ],
        "labels": [{"name": "late", "dtype": "int64", "min": 0, "max": 1}],
    }
)


def _event(number: int) -> dict[str, Any]:
    event: dict[str, Any] = {f"number_{index}": number * 0.5 + index for index in range(6)}
    event |= {f"count_{index}": number + index for index in range(4)}
    event |= {f"word_{index}": f"w{(number + index) % 50}" for index in range(3)}
    return event | {"late": number % 2}


def _by_protobuf(events: Sequence[dict[str, Any]]) -> list[bytes]:
    encoded = []
    for event in events:
        example = Example()
        features = example.features.feature
        for name, value in event.items():
            if isinstance(value, float):
                features[name].float_list.value.append(value)
            elif isinstance(value, int):
                features[name].int64_list.value.append(value)
            else:
                features[name].bytes_list.value.append(value.encode())
        encoded.append(example.SerializeToString())
    return encoded


def main() -> int:
    codec = ExampleCodec(_SCHEMA)
    columns = ColumnarEncoder(codec)
    events = [_event(number) for number in range(_EVENTS)]
    ways: dict[str, Callable[[], object]] = {
        "protobuf's classes, unchecked": lambda: _by_protobuf(events),
        "by hand, event by event": lambda: [codec.encode(event) for event in events],
        "by hand, in columns": lambda: columns.encode(events),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_TURNS):
        for name, encode in ways.items():
            started = time.perf_counter()
            encode()
            seconds[name].append(time.perf_counter() - started)
    base = min(seconds["protobuf's classes, unchecked"])
    rows: list[dict[str, Cell]] = [
        {
            "way": name,
            "us per event": min(taken) / _EVENTS * 1e6,
            "median us": statistics.median(taken) / _EVENTS * 1e6,
            "times as fast as protobuf": base / min(taken),
        }
        for name, taken in seconds.items()
    ]
    publish("ingest_codec", f"Encoding events of {len(events[0])} values", rows, notes=[f"{_TURNS} turns; the best."])
    return 0


if __name__ == "__main__":
    sys.exit(main())
