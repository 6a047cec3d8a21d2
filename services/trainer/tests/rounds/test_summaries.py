"""What TensorBoard is given of a round: what was asked for, bounded, and not one bit of the weights for it."""

import io
import json
import wave
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data
from tensorboard.util import tensor_util

from common.definition.row_labels import labels_of
from common.definition.summaries import parse_summaries
from common.errors import InvalidInput
from common.schema import Schema
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.protocol.assignment import LIVE_EVENTS
from services.trainer.protocol.messages import Done, Failed, Stopped
from services.trainer.summaries import drawings, graphs, projector
from services.trainer.tests.support.small_rounds import (
    FEATURES,
    LINEAR,
    SCHEMA,
    WIDE_AND_DEEP,
    Platform,
    definition,
    event,
    serialized,
)
from services.trainer.tests.support.small_rounds import events as small_events

WATCHED = {name: FEATURES[name] for name in ("x", "extra", "word", "word_vector", "tags", "tags_vector")}
Found = dict[str, dict[str, list[tuple[int, Any]]]]


def events_in(folder: Path) -> Found:
    """By plugin, by tag: (step, value), in the file's order."""
    found: Found = defaultdict(lambda: defaultdict(list))
    for path in sorted(folder.glob("events.*")):
        for one in EventFileLoader(str(path)).Load():
            for value in one.summary.value:
                plugin = value.metadata.plugin_data.plugin_name
                found[plugin][value.tag].append((one.step, tensor_util.make_ndarray(value.tensor)))
    return found


def of_version(platform: Platform, version: int = 1) -> Found:
    return events_in(platform.directory / "cache" / "model" / str(version) / "tensorboard")


def trial_of(platform: Platform, version: int) -> str:
    """What the table of hyperparameters calls the version's row."""
    folder = platform.directory / "cache" / "model" / str(version) / "tensorboard"
    (path,) = (path for path in folder.glob("events.*") if not path.name.endswith(".graph"))
    (told,) = (
        value.metadata.plugin_data.content
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag == SESSION_START_INFO_TAG
    )
    return parse_session_start_info_plugin_data(told).group_name


RARELY = {"taps": ["weights/hidden_0/kernel"], "tap_blocks": 1000}


@pytest.mark.covers("tb-scalar-hist", "tb-pr-curve", "tb-media", "eco-tfdv", "est-run-config", "loop-monitored")
def test_histograms_curves_and_worst_examples_are_kept_and_change_no_bit(tmp_path: Path) -> None:
    plain, watched = (Platform(tmp_path / name, exports=False) for name in ("plain", "watched"))
    asked = {"batch_size": 8, "optimizer": {"name": "adam", "learning_rate": 0.01}}
    for platform, summaries in (
        (plain, {"summaries": {"statistics": False, "graph": False, "projector": 0}}),
        (watched, {"summaries": {"histograms": 2, "weight_images": True, "worst": 3}}),
    ):
        platform.append(small_events(240))
        files = definition(features=WATCHED, training=asked | summaries)
        platform.learn(files)
    (without,), (version,) = plain.registry.versions, watched.registry.versions
    assert version.weights_digest == without.weights_digest
    assert not (tmp_path / "plain/cache/model/1/statistics").exists()
    statistics = json.loads((tmp_path / "watched/cache/model/1/statistics/round.json").read_text())["fields"]
    assert {one["examples"] for one in statistics.values()} == {240}, "trained and held out"
    assert (statistics["extra"]["missing"], statistics["tags"]["missing"] > 0) == (240, True)
    assert sorted(word for word, _ in statistics["tags"]["top"]) == ["a", "b", "c"]
    assert statistics["late"]["distinct"] == 2
    found = of_version(watched)
    with np.load(tmp_path / "watched/cache/model/1/checkpoint/weights.npz") as file:
        sizes = {path.removeprefix("model/"): file[path].size for path in file.files if path.startswith("model/")}
    drawn = found["histograms"]
    kernels = {tag.partition("/")[2] for tag in drawn if tag.startswith("weights/")}
    assert {"hidden_0/kernel", "tags_vector_table/table"} <= kernels, sorted(kernels)
    assert {tag.partition("/")[2] for tag in drawn if tag.startswith("gradients/")} <= kernels
    for tag, points in drawn.items():
        assert len(points) == 3, "six blocks, every second one"
        assert points[-1][0] == version.step, "the sixth"
        if not tag.startswith("activations/"):
            assert [buckets[:, 2].sum() for _, buckets in points] == [sizes[tag.partition("/")[2]]] * 3
    of_hidden = [buckets[:, 2].sum() for _, buckets in drawn["activations/hidden_0"]]
    assert of_hidden == [asked["batch_size"] * sizes["hidden_0/bias"]] * 3, (
        "what each unit gives to each row of a batch"
    )
    with np.load(tmp_path / "watched/cache/model/1/checkpoint/weights.npz") as file:
        kernel = file["model/hidden_0/kernel"]
    (_, (width, height, png)) = found["images"]["weights/hidden_0/kernel"][-1]
    assert (int(height), int(width)) == kernel.shape
    grey = (kernel - kernel.min()) / (kernel.max() - kernel.min())
    np.testing.assert_allclose(tf.io.decode_png(png).numpy()[:, :, 0] / 255, grey, atol=0.51 / 255)
    assert "weights/hidden_0/bias" not in found["images"], "it has one dimension"
    steps = [step for step, _ in drawn["weights/hidden_0/kernel"]]
    assert steps == sorted(set(steps))
    for look, (_, norm) in enumerate(found["scalars"]["gradient_norm"]):
        buckets = np.concatenate([drawn[tag][look][1] for tag in drawn if tag.startswith("gradients/")])
        middles = buckets[:, :2].mean(axis=1)
        assert norm == pytest.approx(np.sqrt((buckets[:, 2] * middles**2).sum()), rel=0.1), "of what is in the buckets"
    assert all(0 < ratio < 1 for _, ratio in found["scalars"]["update_ratio"])
    assert {tag for tag in found["text"] if tag.startswith("worst/")} == {"worst/0", "worst/1", "worst/2"}
    told = found["text"]["worst/0"][0][1].item().decode()
    assert "| head late | label " in told
    assert "| word | " in told
    (kept,) = (tmp_path / "plain/cache/model/1/tensorboard").iterdir()
    assert kept.name.startswith("events."), "neither a graph nor tables"
    assert not of_version(plain)["histograms"]
    assert not of_version(plain)["text"]
    assert {"confusion/late", "calibration/late"} <= set(found["images"])
    _, counts = found["pr_curves"]["candidate/pr_curves"][0]
    assert counts.shape == (6, drawings.THRESHOLDS)
    assert (counts[:4].sum(axis=0) == version.events_held_out).all()
    layout = layout_pb2.Layout.FromString(found["custom_scalars"]["custom_scalars__config__"][0][1].item())
    assert [category.title for category in layout.category] == ["losses", "metrics"]
    watched.append(small_events(120))
    few = definition(features=WATCHED, training=asked | {"summaries": {"histograms": 1000, "worst": 3} | RARELY})
    assert isinstance(watched.train(watched.lease(few, parent_version=1), work_dir="work-2"), Done)
    assert len(of_version(watched, 2)["histograms"]["weights/hidden_0/kernel"]) == 1, "a short round is seen once"
    (tap,) = (tmp_path / "watched/cache/model/2/taps.ndjson").read_text().splitlines()
    assert json.loads(tap)["step"] == watched.registry.versions[1].step
    tags = {plugin: {tag.split("/")[0] for tag in tags} for plugin, tags in of_version(watched, 2).items()}
    scalars = {"loss", "data_loss", "regularization_loss", "learning_rate", "gradient_norm", "update_ratio"}
    assert tags["scalars"] >= scalars | {"candidate", "parent", "progressive"}
    assert tags["histograms"] == {"weights", "gradients", "activations"}
    assert {"confusion", "calibration"} <= tags["images"]
    assert (tags["pr_curves"], tags["text"]) == ({"candidate", "parent", "progressive"}, {"worst"})
    assert {"custom_scalars", "hparams"} <= tags.keys()
    assert trial_of(watched, 1) != trial_of(watched, 2), "of equal hyperparameters a row for each version"


@pytest.mark.covers("dbg-tfdbg")
def test_tensors_are_printed_at_a_cadence_into_a_file_of_a_bounded_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    platform, wanted = Platform(tmp_path, exports=False), ["weights/hidden_0/kernel", "activations/hidden_0"]
    platform.append(small_events(240))
    x, training = WIDE_AND_DEEP, {"batch_size": 8, "summaries": {"taps": wanted, "tap_blocks": 2}}
    with caplog.at_level("INFO", "services.trainer.summaries.observing"):
        platform.learn(definition(features=x, training=training))
    folder = tmp_path / "cache/model/1"
    lines = [json.loads(line) for line in (folder / "taps.ndjson").read_text().splitlines()]
    assert [line["tensor"] for line in lines] == wanted * 3, "six blocks, every second one"
    assert len([record for record in caplog.records if record.message == "a tensor"]) == 6
    with np.load(folder / "checkpoint/weights.npz") as file:
        kernel = file["model/hidden_0/kernel"]
    last = lines[-2]
    assert (last["step"], last["shape"]) == (platform.registry.versions[0].step, list(kernel.shape))
    np.testing.assert_allclose(last["first"], kernel.ravel()[:8])
    told = [last["min"], last["max"], last["mean"]]
    np.testing.assert_allclose(told, [kernel.min(), kernel.max(), kernel.mean()], rtol=1e-5)

    few = {"summaries": {"taps": wanted, "tap_bytes": 1024, "debugger": True, "debugger_bytes": 1 << 20}}
    platform.append(small_events(240))
    lease = platform.lease(definition(features=x, training={"batch_size": 8} | few), parent_version=1)
    assert isinstance(platform.train(lease, work_dir="work-2"), Done)
    kept = (tmp_path / "cache/model/2/taps.ndjson").read_text()
    assert 512 < len(kept) <= 1024
    assert json.loads(kept.splitlines()[-1])["step"] == platform.registry.versions[1].step, "the newest"

    told = platform.registry.versions[1].environment["training"]["debugger"]
    assert (told["kept"], told["at_fault"], (tmp_path / "cache/model/2/debugger").exists()) == (False, False, False)
    assert told["bytes"] > 1 << 20, "beyond what is allowed"

    unknown = definition(features=x, training={"summaries": {"taps": ["activations/hiden"]}})
    platform.append(small_events(60))
    failed = platform.train(platform.lease(unknown, parent_version=2), work_dir="work-3")
    assert isinstance(failed, Failed)
    assert "taps: activations/hiden means none of activations/" in failed.reason


@pytest.mark.covers("tb-pr-curve")
def test_points_of_a_pr_curve_are_those_of_a_hand_calculation() -> None:
    labels, said = np.array([1.0, 0.0, 1.0, 0.0, 1.0]), np.array([0.9, 0.75, 0.5, 0.2, 0.1])
    weights = np.array([1.0, 1.0, 2.0, 1.0, 1.0])
    counts = drawings.pr_counts(labels, said, weights, thresholds=5)
    by_threshold = dict(zip((0.0, 0.25, 0.5, 0.75, 1.0), counts.T.tolist(), strict=True))
    assert by_threshold[0.0] == [4.0, 2.0, 0.0, 0.0, pytest.approx(4 / 6), 1.0]
    assert by_threshold[0.5] == [3.0, 1.0, 1.0, 1.0, 0.75, 0.75]
    assert by_threshold[0.75] == [1.0, 1.0, 1.0, 3.0, 0.5, 0.25]
    assert by_threshold[1.0] == [0.0, 0.0, 2.0, 4.0, 1.0, 0.0]


@pytest.mark.covers("tb-media")
def test_a_confusion_matrix_and_a_calibration_plot_are_images_with_their_numbers() -> None:
    drawn = {
        "confusion": {"classes": [0, 1], "counts": [[30.0, 10.0], [0.0, 20.0]]},
        "calibration": [[0.0, 1.0, 0.4], [1.0, 0.5, 0.6]],
    }
    found = {
        summary.value[0].tag: summary.value[0]
        for summary in drawings.summaries_of({"curves": {"candidate": {"late": drawn}, "parent": {"late": drawn}}})
    }
    assert [*found] == ["confusion/late", "calibration/late"], "of the candidate alone"
    matrix, plot = (tf.io.decode_png(one.tensor.string_val[2]).numpy()[:, :, 0] for one in found.values())
    corners = [int(matrix[row, column]) for row in (0, -1) for column in (0, -1)]
    assert corners == [63, 191, 255, 0], "of the label's row a quarter, three quarters, nothing and all"
    assert (plot[0, 0], plot[-1, 0], plot[plot.shape[0] // 2, -1]) == (0, 200, 0), "the dots, and the diagonal"
    told = found["confusion/late"].metadata.summary_description
    assert told.splitlines() == [
        "| label, predicted | 0 | 1 |",
        "| --- | --- | --- |",
        "| **0** | 30 | 10 |",
        "| **1** | 0 | 20 |",
    ]
    assert not [*drawings.summaries_of({})]


@pytest.mark.covers("tb-events")
def test_the_curve_can_be_seen_while_a_round_trains_and_its_steps_rise_across_a_resume(tmp_path: Path) -> None:
    platform = Platform(tmp_path, exports=False).append(small_events(240))
    lease = platform.lease(definition(**LINEAR))
    assert isinstance(platform.train(lease, stop_requested=platform.after_blocks(2)), Stopped)
    half = events_in(tmp_path / "work" / Path(LIVE_EVENTS).parent)["scalars"]["loss"]
    assert half, "the round is not over"
    assert isinstance(platform.train(platform.registry.taken_up(lease)), Done)
    whole = events_in(tmp_path / "work" / Path(LIVE_EVENTS).parent)["scalars"]["loss"]
    steps = [step for step, _ in whole]
    assert whole[: len(half)] == half
    assert steps == sorted(set(steps))
    assert len(steps) > len(half)
    curve = dict(of_version(platform)["scalars"]["loss"])
    assert all(curve[step] == pytest.approx(loss) for step, loss in whole)


@pytest.mark.covers("tb-media")
def test_the_worst_images_are_shown_as_images(tmp_path: Path) -> None:
    features = [{"name": "picture", "dtype": "float32", "shape": [4, 4, 1]}]
    platform = Platform(tmp_path, {"features": features, "labels": SCHEMA["labels"]}, exports=False)
    random = np.random.default_rng(5)
    labels = [{name: event(random)[name] for name in ("late", "kind", "amount")} for _ in range(60)]
    pictures = random.random((60, 4, 4)).astype(np.float32)
    platform.append(
        [serialized({"picture": one.ravel().tolist(), **label}) for one, label in zip(pictures, labels, strict=True)]
    )
    module = """
import keras

def build_model(schema, params):
    picture = keras.Input((4, 4, 1), name="picture")
    return keras.Model({"picture": picture}, keras.layers.Dense(1)(keras.layers.Flatten()(picture)))
"""
    files = definition(
        estimator=None, features=None, parameters=None, module="net.py", task="binary", net_py=module,
        training={"batch_size": 8, "summaries": {"worst": 2, "samples": 3}},
    )  # fmt: skip
    platform.learn(files)
    images = of_version(platform)["images"]
    assert {tag for tag in images if tag.startswith("worst/")} == {"worst/0/picture", "worst/1/picture"}
    assert {tag for tag in images if tag.startswith("sample/")} == {f"sample/{place}/picture" for place in range(3)}
    low, high = (extreme(axis=(1, 2), keepdims=True) for extreme in (pictures.min, pictures.max))
    drawn = np.round((pictures.astype(np.float64) - low) / (high - low) * 255)
    shown = [tf.io.decode_png(images[f"sample/{place}/picture"][0][1][2]).numpy()[:, :, 0] for place in range(3)]
    places = [int(np.abs(drawn - one).max(axis=(1, 2)).argmin()) for one in shown]
    assert places == sorted(set(places)), "in the log's order"
    np.testing.assert_allclose(drawn[places], shown, atol=1)
    ((_, (width, height, png)),) = images["worst/0/picture"]
    assert (width, height, png[:4]) == (b"4", b"4", b"\x89PNG")


@pytest.mark.covers("tb-media")
def test_the_worst_sounds_can_be_heard(tmp_path: Path) -> None:
    features = [{"name": "pcm", "dtype": "float32", "shape": [8]}]
    platform = Platform(tmp_path, {"features": features, "labels": SCHEMA["labels"]}, exports=False)
    random = np.random.default_rng(5)
    labels = [{name: event(random)[name] for name in ("late", "kind", "amount")} for _ in range(60)]
    platform.append([serialized({"pcm": (random.random(8) - 0.5).tolist(), **label}) for label in labels])
    specs = {"pcm": {"type": "numeric"}}
    summaries = {"worst": 2, "audio": {"pcm": 4000}}
    training = {"batch_size": 8, "summaries": summaries}
    files = definition(estimator="linear_classifier", parameters=None, features=specs, training=training)
    platform.learn(files)
    found = of_version(platform)
    assert set(found["audio"]) == {"worst/0/pcm", "worst/1/pcm"}
    ((_, sounds),) = found["audio"]["worst/0/pcm"]
    content, *_ = sounds.ravel().tolist()
    with wave.open(io.BytesIO(content)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (4000, 1, 2)
        samples = np.frombuffer(sound.readframes(9), "<i2")
    assert (len(samples), int(np.abs(samples.astype(int)).max())) == (8, 32_767)
    assert "pcm" not in str(found["text"]["worst/0"][0][1])
    schema = Schema.from_mapping({"features": features, "labels": SCHEMA["labels"]})
    for wrong, words in (({"pcn": 4000}, "the stream has no feature .pcn."), ({"pcm": 0}, "1 to 192000")):
        with pytest.raises(InvalidInput, match=words):
            parse_summaries({"worst": 2, "audio": wrong}).check_against_schema(schema)
    for alone, words in (({"audio": {"pcm": 4000}}, "say how many"), ({"weight_images": True}, "say after how many")):
        with pytest.raises(InvalidInput, match=words):
            parse_summaries(alone)


def test_a_graph_and_tables_that_are_too_large_are_named_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_MOST_BYTES", 100)
    answering = tf.function(lambda x: x + tf.constant(np.arange(1000.0))).get_concrete_function(
        tf.TensorSpec([1000], tf.float64)
    )
    graphs.write(tmp_path, answering, wall_time=1.0)
    assert "left out: " in events_in(tmp_path)["text"]["graph"][0][1].item().decode()
    monkeypatch.undo()
    graphs.write(tmp_path, answering, wall_time=1.0)
    assert (tmp_path / graphs.FILE_NAME).stat().st_size < 4000, "without the numbers of the constant"

    monkeypatch.setattr(projector, "_MOST_BYTES", 110)
    run = {"label": ("dimension",), "count": 2, "keys": None}
    of_words = {"label": ("vocabulary", "w"), "count": 3, "keys": ("a" * 100, "b\tc", "")}
    table = {"axes": [[of_words], [run]], "is_kernel": False}
    arrays = {"model/small": np.ones((3, 2), np.float32), "model/large": np.ones((300, 2), np.float32)}
    known = {
        "variables": {
            "small": table,
            "large": table | {"axes": [[of_words | {"count": 300, "keys": ["w" * 100] * 300}], [run]]},
        }
    }
    projector.write(tmp_path, None, Checkpoint(arrays, {}, known), rows=10)  # type: ignore[arg-type]  # no layers
    config = (tmp_path / "projector_config.pbtxt").read_text()
    assert config.startswith("# left out, as they are too large: large\n")
    assert 'tensor_name: "small"' in config
    assert (tmp_path / "projector/0.labels.tsv").read_text() == "a" * 80 + "\nb c\nvocabulary\n"


def test_labels_of_a_table_with_more_rows_than_memory_cost_what_is_asked() -> None:
    hashed = {"label": ("hash", "w"), "count": 10**15, "keys": None}
    variables = {"large": {"axes": [[hashed], []], "is_kernel": False}}
    assert labels_of({"variables": variables}, "large", 10**15, most=2) == ["hash 0", "hash 1"]
    assert labels_of({"variables": variables}, "other", 10**15, most=2) == ["0", "1"]
