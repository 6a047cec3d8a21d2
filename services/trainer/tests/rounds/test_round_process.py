"""A round from assignment to version, with real files and a real log."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from common.definition.inputs import INPUTS_PATH
from common.definition.serving import OPTIONS_PATH
from common.errors import InvalidInput
from common.eventlog.tfrecord import cut
from protos import example_pb2, warmup_pb2
from services.trainer.data.holdout import holdout_mask, position_keys
from services.trainer.export.saved_model import WARMUP_PATH
from services.trainer.learn import checkpoint
from services.trainer.protocol.messages import Done, Progress, Stopped
from services.trainer.tests.support.small_rounds import (
    FEATURES,
    LINEAR,
    SCHEMA,
    Platform,
    definition,
    event,
    events,
    serialized,
)


def test_a_label_of_words_teaches_what_its_places_in_the_vocabulary_teach(tmp_path: Path) -> None:
    kinds = ["low", "middle", "high"]
    words = {**SCHEMA, "labels": [{"name": "kind", "dtype": "string", "vocabulary": kinds}]}
    digests: list[str] = []
    for schema, of in ((SCHEMA, lambda kind: kind), (words, lambda kind: kinds[kind])):
        platform = Platform(tmp_path / str(len(digests)), schema, exports=schema is words, eager=True)
        random = np.random.default_rng(1)
        drawn = [event(random) for _ in range(60)]
        platform.append([serialized({**values, "kind": of(values["kind"])}) for values in drawn])
        sections = {**LINEAR, "label": "kind", "parameters": {"classes": 3}}
        digests.append(platform.learn(definition(**sections)).weights_digest)
    assert digests[0] == digests[1]
    inputs = {entry.path: entry for entry in platform.registry.versions[0].files}[f"saved_model/{INPUTS_PATH}"]
    written = json.loads((platform.directory / "registry" / inputs.digest).read_bytes())
    assert {name: one.get("words") for name, one in written.items()} == {"serving_default": {"class_id": kinds}}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """With a version of 100 events."""
    platform = Platform(tmp_path_factory.mktemp("exported"), eager=True).append(events(100))
    platform.learn(definition())
    return platform


@pytest.mark.covers("est-train-evaluate", "loop-monitored", "pipe-etl", "api-device")
def test_a_first_round_registers_a_version_whose_counts_add_up(exported: Platform) -> None:
    platform, version = exported, exported.registry.versions[0]
    assert version.events_trained + version.events_held_out + version.events_unusable == 100
    assert 10 < version.events_held_out < 40
    assert set(version.metrics["candidate"]) == {"auc", "log_loss", "accuracy", "calibration"}
    assert version.metrics["parent"] == {}
    assert {"queue", "extract", "parse", "read", "train", "evaluate", "export", "upload"} <= set(version.timings)
    assert {entry.path.split("/")[0] for entry in version.files} == {
        "saved_model",
        "checkpoint",
        "statistics",
        "tensorboard",
    }
    assert all(progress.loss for progress in platform.trained_blocks())
    devices = [dict(device) for progress in platform.trained_blocks() for device in progress.devices]
    assert {device["device"] for device in devices} == {"CPU:0"}
    assert all(0 < device["memory_bytes"] <= device["peak_bytes"] for device in devices)


def test_an_export_carries_real_requests_and_serving_options_as_the_definition_says(
    exported: Platform,
) -> None:
    platform = exported
    platform.train(platform.lease(definition()))
    serving = {"slo_ms": 5, "batching": {"max_batch_size": 8}}
    platform.train(platform.lease(definition(export={"warmup_requests": 0}, serving=serving)))
    path = f"saved_model/{WARMUP_PATH}"
    first, again, without = ({entry.path: entry for entry in v.files} for v in platform.registry.versions)
    assert first[path].digest == again[path].digest
    assert path not in without
    options = without[f"saved_model/{OPTIONS_PATH}"].digest
    assert json.loads((platform.directory / "registry" / options).read_bytes()) == serving
    assert f"saved_model/{OPTIONS_PATH}" not in first
    plain, _, tuned = platform.registry.versions
    assert tuned.configuration_digest == plain.configuration_digest
    assert tuned.weights_digest == plain.weights_digest
    records, _ = cut((platform.directory / "registry" / first[path].digest).read_bytes())
    requests = [warmup_pb2.PredictionLog.FromString(record).predict_log.request for record in records]
    assert len(requests) == 16
    assert [r.model_spec.signature_name for r in requests[:2]] == ["serving_default", "serving_examples"]
    assert [r.inputs["examples"].tensor_shape.dim[0].size for r in requests[1::2]] == [1, 8, 1, 1, 1, 1, 1, 1]
    assert set(requests[1].inputs["examples"].string_val) <= set(events(100))
    keys = position_keys([(0, record, 10) for record in range(10)])
    held_out = holdout_mask(keys, seed=3, fraction=0.25)
    first_of_all = events(100).index(requests[1].inputs["examples"].string_val[0])
    assert held_out[first_of_all], "what a reader tries the version with was not trained on"
    assert (
        requests[0].inputs["word"].string_val[0]
        == example_pb2.Example.FromString(requests[1].inputs["examples"].string_val[0])
        .features.feature["word"]
        .bytes_list.value[0]
    )


@pytest.mark.covers("loop-global-step", "mode-warm-start", "pipe-generator", "loop-monitored")
def test_the_next_round_continues_step_weights_and_statistics_of_its_parent(platform: Platform) -> None:
    files = definition(features={name: FEATURES[name] for name in ("x", "pair", "word", "word_vector")})
    platform.append(events(120))
    platform.train(platform.lease(files, block_examples=1000))
    platform.append(events(120, seed=2))
    platform.train(platform.lease(files, parent_version=1, block_examples=1000))
    assert platform.trained_blocks()[-1].weights_from == "version 1"
    first, second = platform.registry.versions
    assert first.step == -(-first.events_trained // 8), "a step for each batch of 8 of the one block"
    assert second.step == first.step + -(-second.events_trained // 8)
    before = checkpoint.read(platform.directory / "cache" / "model" / "1")
    after = checkpoint.read(platform.directory / "cache" / "model" / "2")
    assert int(after.arrays["optimizer/sgd/iteration"]) == second.step
    assert after.arrays["statistics/x/count"].tolist() == [first.events_trained + second.events_trained], "updated"
    np.testing.assert_array_equal(after.arrays["statistics/pair/minimum"], before.arrays["statistics/pair/minimum"])
    assert set(second.metrics["parent"]) == set(second.metrics["progressive"]) == set(second.metrics["candidate"])
    assert second.environment.get("warm_start") is None


def test_held_out_examples_touch_neither_weights_nor_statistics(tmp_path: Path) -> None:
    examples = events(100)
    is_held_out = holdout_mask(position_keys([(0, record, 10) for record in range(10)]), seed=3, fraction=0.25)
    kept = [example for example, held_out in zip(examples, is_held_out, strict=True) if not held_out]
    versions = []
    for name, given, fraction in (("all", examples, 0.25), ("kept", kept, 0)):
        platform = Platform(tmp_path / name, exports=False, eager=True).append(given)
        asked = definition(**LINEAR, evaluation={"holdout_fraction": fraction})
        versions.append(platform.learn(asked, block_examples=1000))
    assert [version.events_held_out for version in versions] == [int(is_held_out.sum()), 0]
    assert versions[0].weights_digest == versions[1].weights_digest


@pytest.mark.covers("rec-parse", "pipe-generator")
def test_unusable_examples_are_set_aside_with_their_reasons(platform: Platform) -> None:
    features = {**LINEAR["features"], "code": {"type": "identity", "size": 5, "out_of_range": "error"}}
    good = event(np.random.default_rng(5))
    bad = [
        b"\xff\xff not an Example",
        serialized({key: value for key, value in good.items() if key != "x"}),
        serialized({**good, "word": 3}),
        serialized({**good, "late": 2}),
        serialized({**good, "code": 9}),
        serialized({**good, "pair": [1.0, 2.0, 3.0]}),
    ]
    platform.append([*events(40), *bad, *events(40, seed=9)])
    platform.train(platform.lease(definition(**{**LINEAR, "features": features})))
    version = platform.registry.versions[0]
    assert version.events_unusable == len(bad)
    assert version.events_trained + version.events_held_out == 80
    assert sum(version.unusable["reasons"].values()) == len(bad)
    letters = [
        example_pb2.DeadLetter.FromString(value)
        for record in platform.log.read("deadletter.stream", 0, 0, 1)
        for value in cut(record.value)[0]
    ]
    assert {letter.payload for letter in letters} == set(bad)
    reasons = {letter.payload: letter.reason for letter in letters}
    assert "x" in reasons[bad[1]]
    assert "late" in reasons[bad[3]]
    assert "code" in reasons[bad[4]]
    assert all(part in reasons[bad[5]] for part in ("pair", "size: 3", "shape: [2]"))
    assert [one["at"] for one in version.unusable["samples"] if "pair" in one["reason"]] == ["0:4"]


@pytest.mark.covers("loop-monitored")
def test_progress_counts_the_events_of_a_pass_and_names_the_pass_also_after_a_stop(platform: Platform) -> None:
    """It counted each event once for every pass."""
    platform.append(events(100))
    lease = platform.lease(definition(**LINEAR, training={"passes": 3}))
    assert isinstance(platform.train(lease, stop_requested=platform.after_blocks(5)), Stopped)
    assert isinstance(platform.train(platform.registry.taken_up(lease)), Done)
    trained = platform.registry.versions[0].events_trained
    told = [(one.pass_number, one.examples_done) for one in platform.trained_blocks()]
    firsts = [done for number, done in told if number == 1]
    assert firsts == sorted(firsts)
    assert firsts[-1] == trained
    assert told == [(number, done) for number in (1, 2, 3) for done in firsts]
    assert {one.passes for one in platform.trained_blocks()} == {3}
    assert [one.weights_from for one in platform.trained_blocks()] == ["initializers"] * 5 + ["resume point"] * (
        len(platform.trained_blocks()) - 5
    )
    after = [m for m in platform.messages if isinstance(m, Progress) and m.stage in ("evaluate", "export", "register")]
    assert {one.examples_done for one in after} == {trained}


def test_a_range_without_a_usable_example_is_refused(platform: Platform) -> None:
    platform.append([b"\xff"] * 5)
    with pytest.raises(InvalidInput, match="none of the"):
        platform.train(platform.lease(definition()))


@pytest.mark.covers("perf-threads")
def test_threads_are_set_before_tensorflow_starts_read_back_from_it_and_refused_later(warm_python_path: Path) -> None:
    script = (
        "import json\n"
        "from tensorflow.python.eager import context\n"
        "from services.trainer.rounds.zygote import resolve\n"
        "resolve('services.trainer.rounds.process:run_round')\n"
        "print(json.dumps(context.context()._initialized))\n"
        "import tensorflow as tf\n"
        "from services.trainer import determinism\n"
        "determinism.configure(intra_op_threads=3, inter_op_threads=2)\n"
        "tf.constant(1.0) + 1.0\n"
        "of = tf.config.threading\n"
        "print(json.dumps([of.get_intra_op_parallelism_threads(), of.get_inter_op_parallelism_threads()]))\n"
        "try:\n"
        "    determinism.configure(intra_op_threads=1, inter_op_threads=1)\n"
        "except RuntimeError as error:\n"
        "    print(json.dumps(str(error)))\n"
    )
    command = [str(warm_python_path), "-c", script]
    result = subprocess.run(command, capture_output=True, check=True, text=True, timeout=280)
    is_started, threads, refusal = map(json.loads, result.stdout.splitlines())
    assert (is_started, threads) == (False, [3, 2])
    assert "cannot be modified after initialization" in refusal
