"""A traced round: what is kept of it, what it is told to be bound by, and that nothing else changes."""

import importlib.util
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from services.trainer.families.package_name import PACKAGE_PREFIX
from services.trainer.learn.code_places import places_of
from services.trainer.protocol.messages import Done
from services.trainer.summaries import profile
from services.trainer.tests.support.small_rounds import LINEAR, WIDE_AND_DEEP, Platform, definition, events


def folder_of(platform: Platform) -> Path:
    return platform.directory / "cache" / "model" / "1" / "profile"


@pytest.mark.covers("perf-tfprof", "perf-timeline")
def test_the_steps_of_the_window_are_traced_and_no_bit_depends_on_it(tmp_path: Path) -> None:
    plain, traced = (Platform(tmp_path / name, exports=False) for name in ("plain", "traced"))
    for platform, window in ((plain, (0, 0)), (traced, (7, 3))):
        platform.append(events(160))
        assert isinstance(platform.train(platform.lease(definition(features=WIDE_AND_DEEP)), profile=window), Done)
    (without,), (version,) = plain.registry.versions, traced.registry.versions
    assert version.weights_digest == without.weights_digest
    assert not folder_of(plain).exists()
    assert {"profile/profile.json", "profile/trace.json"} <= {file.path for file in version.files}
    told = json.loads((folder_of(traced) / "profile.json").read_text())
    assert (told["first_step"], told["steps"]) == (7, 3)
    by_name = {(node["name"], node["op"]): node for node in told["nodes"]}
    product = next(node for (name, op), node in by_name.items() if op.endswith("MatMul") and "hidden_0" in name)
    assert product["count"] % 3 == 0, "as often in each step"
    assert re.fullmatch(r"services/trainer/families/.+\.py:\d+ \(\w+\)", product["code"])
    (xplane,) = folder_of(traced).glob("plugins/profile/*/*.xplane.pb")
    marks = [
        event
        for plane in XSpace.FromString(xplane.read_bytes()).planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name == "train_step"
    ]
    assert len(marks) == 3
    trace = json.loads((folder_of(traced) / "trace.json").read_text())["traceEvents"]
    assert any("hidden_0" in event["name"] for event in trace)
    assert all({"name", "ts", "dur", "pid", "tid"} <= set(event) for event in trace if event["ph"] == "X")
    steps = [event for event in trace if event["name"] == "train_step"]
    assert [event["dur"] for event in steps] == pytest.approx([mark.duration_ps / 1e6 for mark in marks])
    begins = [event["ts"] for event in steps]
    assert begins == sorted(begins)
    assert begins[1] >= begins[0] + steps[0]["dur"], "one step after the other, in microseconds"


class SlowLog:
    """A log whose reads take their time; all else is the log's."""

    def __init__(self, log: Any, seconds: float) -> None:
        self._log, self._seconds = log, seconds

    def read(self, *args: Any, **named: Any) -> Iterator[Any]:
        time.sleep(self._seconds)
        found: Iterator[Any] = self._log.read(*args, **named)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


_NET = """
import tensorflow as tf

def half(x):
    return x / 2.0

def loop(x):
    return tf.while_loop(lambda x: tf.reduce_sum(x) > 1.0, lambda x: [half(x) - 0.1], [x])[0] * 3.0
"""


@pytest.mark.covers("perf-tfprof")
def test_each_operation_is_told_with_the_line_of_the_definition_that_made_it(tmp_path: Path) -> None:
    path = tmp_path / f"{PACKAGE_PREFIX}1" / "net.py"
    path.parent.mkdir()
    path.write_text(_NET)
    spec = importlib.util.spec_from_file_location("net", path)
    assert spec is not None
    assert spec.loader is not None
    net = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(net)
    graph = tf.function(net.loop, autograph=False).get_concrete_function(tf.TensorSpec([2])).graph
    found = places_of(graph)
    kinds = {name.rpartition("/")[2]: place for name, place in found.items()}
    assert (kinds["truediv"], kinds["sub"], kinds["mul"]) == (
        "net.py:5 (half)",
        "net.py:8 (<lambda>)",
        "net.py:8 (loop)",
    )


@pytest.mark.covers("perf-tfprof")
def test_a_round_that_waits_for_its_events_is_told_to_be_input_bound(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False).append(events(60))
    platform.log = SlowLog(platform.log, seconds=0.5)
    assert isinstance(platform.train(platform.lease(definition(**LINEAR)), profile=(1000, 5)), Done)
    told = json.loads((folder_of(platform) / "profile.json").read_text())
    assert (told["steps"], told["nodes"]) == (0, [])
    assert told["seconds"]["extract"] >= 0.5
    assert {"bound": told["bound"], "advice": told["advice"]} == profile.advice(told["seconds"], [], steps=0)
    waited = profile.advice({"extract": 2.0, "parse": 0.5, "read": 0.5, "train": 1.0}, [], steps=0)
    assert waited["bound"] == "input"
    assert "input-bound: 75% of the round's 4.00 s" in waited["advice"]
    assert profile.advice({"extract": 0.5, "train": 3.0}, [], steps=0)["bound"] == "compute"
