"""Ingest's two fast ways through the codec beside the plain path, event by event: CPU time of the same work.

    python -m benchmarks.ingest_fast_paths [--rounds N]

JSON is parsed, checked, encoded and framed, 1,000 events a body; TFRecords are cut and checked, 5,000 a body. CPU time
and not wall time, so that a busy machine says the same. docs/internals/decisions/0013 rests on the ratios.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import yaml

from benchmarks.report import publish
from common.errors import DataLoss
from common.eventlog import tfrecord
from common.examples.codec import ExampleCodec
from common.schema import Feature, Schema
from services.ingest.codec.columns import ColumnarEncoder
from services.ingest.codec.layout import LockstepChecker

_STREAM = Path(__file__).parents[1] / "examples" / "flights" / "stream.yaml"
_JSON_EVENTS, _TFRECORD_EVENTS, _BATCH_EVENTS = 1_000, 5_000, 512
_BODIES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    stream = yaml.safe_load(_STREAM.read_text())
    del stream["stream"]
    codec = ExampleCodec(Schema.from_mapping(stream))
    draw = random.Random(1)
    events = [
        {feature.name: _value(feature, draw) for feature in codec.schema.columns} for _ in range(_TFRECORD_EVENTS)
    ]
    body = orjson.dumps(events[:_JSON_EVENTS])
    framed = tfrecord.frame([codec.encode(event) for event in events])
    columns, lockstep = ColumnarEncoder(codec), LockstepChecker(codec)
    pairs = {
        "JSON": (_JSON_EVENTS, lambda: _json_fast(columns, body), lambda: _json_plain(codec, body)),
        "TFRecord": (_TFRECORD_EVENTS, lambda: _records_fast(lockstep, framed), lambda: _records_plain(codec, framed)),
    }
    rows = []
    for name, (count, fast, plain) in pairs.items():
        turns = [(_rate(fast, count), _rate(plain, count)) for _ in range(options.rounds)]
        quick, slow = (statistics.median(rates) for rates in zip(*turns, strict=True))
        rows.append({"body": name, "fast/s": round(quick), "plain/s": round(slow), "ratio": round(quick / slow, 1)})
    publish("ingest_fast_paths", "Ingest's fast ways: events a second of CPU time", rows)


def _value(feature: Feature, draw: random.Random) -> Any:
    if feature.dtype == "string":
        return draw.choice(feature.vocabulary or ("AA", "UA", "JFK", "LAX"))
    low = feature.minimum if feature.minimum is not None else 0
    high = feature.maximum if feature.maximum is not None else low + 100
    return draw.randint(int(low), int(high)) if feature.dtype == "int64" else round(draw.uniform(low, high), 3)


def _rate(work: Callable[[], None], count: int) -> float:
    began = time.process_time()
    for _ in range(_BODIES):
        work()
    return _BODIES * count / (time.process_time() - began)


def _json_fast(columns: ColumnarEncoder, body: bytes) -> None:
    events = orjson.loads(body)
    for start in range(0, len(events), _BATCH_EVENTS):
        tfrecord.frame(columns.encode(events[start : start + _BATCH_EVENTS]) or [])


def _json_plain(codec: ExampleCodec, body: bytes) -> None:
    tfrecord.frame([codec.encode(event) for event in orjson.loads(body)])


def _records_fast(lockstep: LockstepChecker, framed: bytes) -> None:
    examples, _ = tfrecord.cut(framed)
    lengths = np.fromiter(map(len, examples), dtype=np.int64, count=len(examples))
    if not lockstep.passed(framed, lengths).mask.all():
        raise DataLoss("an example of the benchmark did not pass")


def _records_plain(codec: ExampleCodec, framed: bytes) -> None:
    for example in tfrecord.cut(framed)[0]:
        codec.check(example)


if __name__ == "__main__":
    main()
