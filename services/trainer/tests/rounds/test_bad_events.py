"""One bad event does not stop a model: it is set aside with its reason, and the same one every time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorflow.python.debug.lib.debug_events_reader import DebugDataReader

from common.eventlog.dead_letters import MAX_PAYLOAD_BYTES
from common.eventlog.tfrecord import cut
from protos import example_pb2
from services.trainer.protocol.messages import Done, Failed, FailureKind
from services.trainer.rounds.unusable import Unusable
from services.trainer.tests.support.small_rounds import (
    FEATURES,
    LINEAR,
    MOMENTUM,
    Platform,
    definition,
    event,
    events,
    rebuilt,
    serialized,
)

MODULE = """
import keras
import tensorflow as tf

def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    hidden = keras.layers.Reshape((1,))(x)
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(3)(hidden))
    return keras.Model(x, keras.layers.Dense(1)(hidden))
"""
RAISES = MODULE.replace(
    "hidden = keras.layers.Reshape((1,))(x)",
    """hidden = keras.layers.Reshape((1,))(x)
    def checked(value):
        check = tf.debugging.assert_less(value, 100.0, message="x is too large for this sensor")
        with tf.control_dependencies([check] if check is not None else []):
            return tf.identity(value)
    hidden = keras.layers.Lambda(checked, output_shape=(1,), name="sensor")(hidden)""",
)


def with_bad_events(platform: Platform, *values: float) -> list[bytes]:
    """120 good events with a bad one after every twentieth; the bad ones are trained on or held out as they fall."""
    good = events(120)
    bad = [serialized({**event(np.random.default_rng(50 + i)), "x": value}) for i, value in enumerate(values)]
    mixed = list(good)
    for index, example in enumerate(bad):
        mixed.insert(20 * (index + 1), example)
    platform.append(mixed)
    return bad


def files(source: str, **training: Any) -> dict[str, bytes]:
    return definition(
        estimator=None, features=None, parameters={}, module="net.py", task="binary", net_py=source,
        training={"batch_size": 8, "passes": 2, "optimizer": MOMENTUM, **training},
    )  # fmt: skip


def letters(platform: Platform) -> dict[bytes, str]:
    found = [
        example_pb2.DeadLetter.FromString(value)
        for record in platform.log.read("deadletter.stream", 0, 0, platform.log.end_position("deadletter.stream")[0])
        for value in cut(record.value)[0]
    ]
    return {letter.payload: letter.reason for letter in found}


@pytest.mark.covers("hook-nan")
@pytest.mark.parametrize(
    ("source", "value", "reason"),
    [(MODULE, 3.0e38, "not finite|became"), (RAISES, 1000.0, "x is too large for this sensor")],
    ids=["a loss that is not finite", "a layer that raises"],
)
def test_bad_events_are_set_aside_with_their_reason_and_the_round_goes_on(
    tmp_path: Path, source: str, value: float, reason: str
) -> None:
    platform = Platform(tmp_path, exports=False, eager=True)
    bad = with_bad_events(platform, value, value * 1.1, value * 0.9, value * 0.8)
    planned = lease = platform.lease(files(source))
    attempts = 0
    while not isinstance(
        outcome := platform.train(lease, stop_requested=platform.after_blocks(3), work_dir=f"work-{attempts}"), Done
    ):
        assert not isinstance(outcome, Failed), outcome
        lease, attempts = platform.registry.taken_up(lease), attempts + 1
    assert attempts >= 2
    version = platform.registry.versions[0]
    assert version.events_unusable == len(bad)
    assert version.events_trained + version.events_held_out == 120
    found = letters(platform)
    assert found.keys() == set(bad)
    assert all(any(part in said for part in reason.split("|")) for said in found.values()), found
    assert sum(platform.registry.drafts[0].unusable["reasons"].values()) == len(bad)
    for sample in platform.registry.drafts[0].unusable["samples"]:
        partition, offset = map(int, sample["at"].split(":"))
        (record,) = platform.log.read("examples.stream", partition, offset, offset + 1)
        assert set(cut(record.value)[0]) & set(bad)
    assert np.isfinite(version.metrics["candidate"]["log_loss"])
    equal = rebuilt(platform, planned, 1)
    assert (equal.missing, equal.differences) == ((), ()), "as a round that was not stopped"


@pytest.mark.covers("hook-nan", "dbg-tfdbg")
def test_the_definition_says_what_happens_instead(tmp_path: Path) -> None:
    for policy in ("fail", "skip_batch"):
        platform = Platform(tmp_path / policy, exports=False)
        bad = with_bad_events(platform, 3.0e38, 3.0e38, 3.0e38)
        asked = {"on_not_finite": policy, "debug": policy == "fail", "summaries": {"debugger": True}}
        outcome = platform.train(platform.lease(files(MODULE, **asked)))
        if policy == "fail":
            assert isinstance(outcome, Failed)
            assert outcome.kind is FailureKind.NUMERIC
            assert "at step" in outcome.reason
            assert "layer " in outcome.told["layer"]
            assert outcome.reason.endswith(f", in {outcome.told['layer']}")
            assert outcome.told["events"], "those at fault, with their places"
            for one in outcome.told["events"]:
                partition, offset = map(int, one["at"].split(":"))
                (record,) = platform.log.read("examples.stream", partition, offset, offset + 1)
                assert set(cut(record.value)[0]) & set(bad)
                assert float(one["event"]["x"]) > 2.0e38
            continue
        assert isinstance(outcome, Done), outcome
        assert platform.registry.versions[0].events_unusable > 3, "whole batches"
        assert any("its batch was skipped" in reason for reason in letters(platform).values())
        folder = tmp_path / policy / "cache/model/1/debugger"
        told = platform.registry.versions[0].environment["training"]["debugger"]
        assert (told["at_fault"], told["kept"]) == (True, True), told
        assert told["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
        assert "batch_normalization.py" in first_not_finite(folder), "whose variance squares 3e38"


def first_not_finite(folder: Path) -> set[str]:
    """Files of the lines that made the first operation with an infinite value or NaN, as TensorFlow reads the dump."""
    with DebugDataReader(str(folder)) as reader:
        reader.update()
        for one in reader.graph_execution_traces():
            health = one.debug_tensor_value  # id, device, dtype, rank, values, then counts: -inf, inf, NaN, ...
            if any(health[5:8]):
                digest = reader.graph_by_id(one.graph_id).get_op_creation_digest(one.op_name)
                _, frames = reader.read_graph_op_creation_stack_trace(digest)
                return {Path(frame[0]).name for frame in frames}
    return set()


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            {"module": "net.py", "net_py": MODULE.replace("Dense(1)(hidden)", "Dense(2)(hidden)"), "label": "kind"},
            "a module says task: multiclass and its last layer has N units",
        ),
        (
            {"estimator": "linear_classifier", "features": FEATURES, "label": "kind", "parameters": {"classes": 2}},
            "an estimator says parameters: {classes: N}",
        ),
    ],
    ids=["a module", "an estimator"],
)
def test_a_model_with_fewer_classes_than_its_labels_is_refused_when_they_are_seen(
    tmp_path: Path, said: dict[str, Any], hint: str
) -> None:
    """Trained on what was left, such a model looked good, and a third of the events were unusable."""
    platform = Platform(tmp_path, exports=False).append(events(60))
    task = {"task": "multiclass"} if "module" in said else {}
    outcome = platform.train(
        platform.lease(definition(**{"estimator": None, "features": None, "parameters": {}, **task, **said}))
    )
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.DEFINITION
    assert outcome.reason.startswith("label kind is 2 in ")
    assert outcome.reason.endswith(f"the model has classes 0 to 1; for more, {hint}")
    assert not platform.registry.versions


def test_a_few_labels_without_a_class_are_set_aside(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False, eager=True)
    bad = [serialized({**event(np.random.default_rng(i)), "late": 7 + i}) for i in range(4)]
    platform.append([*bad, *events(60)])
    platform.learn(definition(**LINEAR))
    assert letters(platform).keys() == set(bad)


def test_events_too_large_for_a_dead_letter_are_counted_with_the_version() -> None:
    small, large = (b"a", "odd"), (bytes(MAX_PAYLOAD_BYTES + 1), "odd")
    assert Unusable([small, large, large], (), {}).facts()["without_payload"] == 2
    assert "without_payload" not in Unusable([small], (), {}).facts()
