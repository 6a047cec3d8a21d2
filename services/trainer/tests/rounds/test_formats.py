"""A version in other formats: each is checked against its SavedModel, and what cannot be made is said by name."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from common.definition.export import FORMATS, Export, parse_export
from common.errors import InvalidInput
from common.schema import Schema
from services.trainer.export.arrays import Arrays
from services.trainer.export.converting import make
from services.trainer.export.formats import FormatRows, write_formats
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.rounds.publishing import rows_of
from services.trainer.tests.support.small_rounds import FEATURES, Platform, definition, events

pytestmark = pytest.mark.usefixtures("warm_python")
NUMERIC = {name: FEATURES[name] for name in ("x", "pair", "code_columns")} | {"code": FEATURES["code"]}
WIDE: dict[str, Any] = {
    "estimator": "dnn_classifier", "features": NUMERIC, "parameters": {"hidden_units": [256, 256]},
    "training": {"optimizer": {"name": "adam", "learning_rate": 0.01}},
}  # fmt: skip


@pytest.mark.covers("fmt-tflite", "fmt-frozen", "perf-ptq")
@pytest.mark.timeout(300)
def test_every_format_is_written_and_held_against_the_saved_model(tmp_path: Path) -> None:
    platform = Platform(tmp_path).append(events(200))
    platform.learn(definition(**WIDE, export={"formats": list(FORMATS), "max_difference_share": 1.0}))
    told = platform.registry.versions[0].environment["formats"]
    assert set(told) == set(FORMATS)
    for name in ("tflite", "frozen", "onnx"):
        assert told[name]["largest_difference"] < 1e-4, (name, told[name])
        assert told[name]["metric"]["value"] == pytest.approx(told[name]["saved_model_metric"]["value"], abs=1e-6)
    assert told["tflite_int8"]["bytes"] < 0.35 * told["tflite"]["bytes"]
    assert told["tflite_float16"]["bytes"] < 0.6 * told["tflite"]["bytes"]
    assert told["tflite_int8"]["metric"]["name"] == "auc"
    assert all(one["held_out"] and one["rows"] > 10 for one in told.values())
    folder = tmp_path / "cache/model/1"
    runner = Interpreter(str(folder / "exports/tflite/model.tflite")).get_signature_runner("serving_default")
    assert set(runner.get_output_details()) == {"logits", "probability"}
    for name in FORMATS:
        if name.startswith("tflite"):
            assert_one_answer(folder / "exports" / name / "model.tflite")
    graph = tf.compat.v1.GraphDef.FromString((folder / "exports/frozen/frozen_graph.pb").read_bytes())
    assert not [node.op for node in graph.node if "Variable" in node.op or node.op == "VarHandleOp"]
    assert set(json.loads((folder / "exports/frozen/tensors.json").read_text())["outputs"]) == {"logits", "probability"}
    assert np.isfinite(told["onnx"]["metric"]["value"])


@pytest.mark.covers("fmt-tflite", "perf-ptq")
@pytest.mark.timeout(300)
def test_formats_are_held_against_learned_events_where_none_is_held_out_and_that_is_said(tmp_path: Path) -> None:
    platform = Platform(tmp_path).append(events(40))
    files = definition(**WIDE, export={"formats": ["tflite"]}, evaluation={"holdout_fraction": 0})
    platform.learn(files)
    told = platform.registry.versions[0].environment["formats"]["tflite"]
    assert (told["held_out"], told["rows"] > 0, "metric" in told) == (False, True, False)


@pytest.mark.covers("fmt-tflite", "rec-raw-tensor")
def test_a_format_is_asked_the_bytes_of_tensors_and_not_their_values() -> None:
    scan = {"name": "scan", "dtype": "bytes", "tensor": {"dtype": "uint8", "shape": [2]}}
    schema = Schema.from_mapping({"features": [scan], "labels": [{"name": "y", "dtype": "float32"}]})
    contents = [b"\x07\x00", b"\xff\x01"]
    examples = [
        tf.train.Example(features=tf.train.Features(feature={
            "scan": tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
            "y": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0])),
        })).SerializeToString(deterministic=True)
        for content in contents
    ]  # fmt: skip
    held_out = SimpleNamespace(count=2, labels={}, weights={})
    decoded = {"scan": tf.constant([[7, 0], [255, 1]], tf.uint8)}
    block = SimpleNamespace(index=3, held_out=held_out, held_out_raw=decoded, held_out_rows=np.array([4, 9]))
    data = SimpleNamespace(
        prepared=lambda model: [block],
        serialized=lambda rows: [(examples[[4, 9].index(row)], why) for row, why in rows[3].items()],
    )
    signature = SimpleNamespace(inputs=(schema.feature("scan"),))
    model = SimpleNamespace(schema=schema, signatures=lambda: {"serving_default": signature})
    asked = rows_of(cast(Any, model), cast(Any, data), [])
    assert asked.held_out
    assert asked.inputs["scan"].tolist() == contents


@pytest.mark.covers("fmt-tflite", "perf-ptq")
def test_a_quantised_format_is_bounded_by_itself_and_says_where_nothing_was_quantised(tmp_path: Path) -> None:
    """Inputs of a thousand cancel each other out: eight bits for each leave nothing of an answer between 0 and 1."""
    weights = np.array([[1.0], [-1.0]], np.float32)
    large = np.random.default_rng(1).uniform(-1000, 1000, [64, 1])
    rows = np.hstack([large + np.linspace(0, 1, 64)[:, None], large]).astype(np.float32)
    made = tf.Module()
    made.serve = tf.function(
        lambda x: {"logits": tf.squeeze(x @ tf.constant(weights), 1)}, [tf.TensorSpec([None, 2], tf.float32, name="x")]
    )
    tf.saved_model.save(made, str(tmp_path / "output/saved_model"), {"serving_default": made.serve})

    def furthest(answers: Arrays) -> tuple[str, float]:
        return "furthest", float(np.abs(answers["logits"] - (rows @ weights)[:, 0]).max())

    asked = FormatRows({"x": rows}, held_out=True, metric=furthest)
    export = Export(formats=("tflite_dynamic", "tflite_int8"), on_unsupported="warn")
    found = write_formats(export, tmp_path / "output", tmp_path, asked)
    assert found["tflite_dynamic"]["note"].startswith("no weight is int8: LiteRT leaves tensors of up to 1,024 values")
    assert "problem" not in found["tflite_dynamic"]
    int8 = found["tflite_int8"]
    span = float(np.ptp(rows @ weights))
    assert int8["largest_difference_share"] == pytest.approx(int8["largest_difference"] / span, rel=1e-5)
    assert int8["problem"].endswith("of the span of these; allowed is 10% (export: max_difference_share)")
    assert "note" not in int8
    assert int8["saved_model_metric"] == {"name": "furthest", "value": pytest.approx(0.0, abs=1e-3)}
    assert int8["metric"] == {"name": "furthest", "value": pytest.approx(int8["largest_difference"], rel=1e-3)}
    assert int8["calibrated_on"] == "events"
    assert not (tmp_path / "output/exports/tflite_int8").exists(), "what answers otherwise is left out"
    assert (tmp_path / "output/exports/tflite_dynamic/model.tflite").exists()


def assert_one_answer(path: Path) -> None:
    """The same bits in every run, on one thread as on several, and to a row alone as among others."""
    random = np.random.default_rng(1)
    details = Interpreter(str(path)).get_signature_runner("serving_default").get_input_details()
    rows = {
        name: random.uniform(0, 3, [32, *one["shape_signature"][1:]]).astype(one["dtype"])
        for name, one in details.items()
    }

    def answered(threads: int, *, first: int = 32) -> Any:
        runner = Interpreter(str(path), num_threads=threads).get_signature_runner("serving_default")
        return runner(**{name: values[:first] for name, values in rows.items()})["logits"].copy()

    once = answered(1)
    assert len(np.unique(once)) > 1
    for threads in (1, 2, 4):
        np.testing.assert_array_equal(answered(threads), once)
    np.testing.assert_array_equal(answered(1, first=1), once[:1])


@pytest.mark.covers("perf-ptq")
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated:UserWarning")
def test_made_up_values_calibrate_int8_without_an_event(tmp_path: Path) -> None:
    module = tf.Module()
    module.serve = tf.function(lambda x: {"y": tf.nn.relu(x)}, [tf.TensorSpec([None, 2], tf.float32, name="x")])
    tf.saved_model.save(module, str(tmp_path / "saved_model"), {"serving_default": module.serve})
    rows = {"x": np.full([3, 2], 1000.0, np.float32)}
    scales = []
    for calibration in ("events", "made_up"):
        make("tflite_int8", tmp_path / "saved_model", tmp_path / calibration, rows, calibration)
        tensors = Interpreter(str(tmp_path / calibration / "model.tflite")).get_tensor_details()
        scales.append(max(one["quantization"][0] for one in tensors if one["dtype"] == np.int8))
    assert scales[0] == pytest.approx(1000 / 255, rel=0.01)
    assert 2 / 255 < scales[1] < 10 / 255, "of values that are drawn from a normal distribution"
    with pytest.raises(InvalidInput, match="int8_calibration is of the format tflite_int8"):
        parse_export({"formats": ["tflite"], "int8_calibration": "made_up"})


@pytest.mark.covers("fmt-tflite")
@pytest.mark.timeout(300)
def test_operations_that_a_format_lacks_fail_the_round_by_name_or_warn(tmp_path: Path) -> None:
    made = tf.Module()
    made.serve = tf.function(
        lambda x: {"logits": tf.cast(tf.strings.to_hash_bucket_fast(x, 5), tf.float32)},
        [tf.TensorSpec([None], tf.string, name="x")],
    )
    output = tmp_path / "output"
    tf.saved_model.save(made, str(output / "saved_model"), {"serving_default": made.serve})
    asked = FormatRows({"x": np.array([b"a"], object)}, held_out=True, metric=lambda answers: None)
    warned = write_formats(Export(formats=("tflite",), on_unsupported="warn"), output, tmp_path, asked)
    assert "StringToHashBucket" in warned["tflite"]["problem"]
    assert not (output / "exports/tflite").exists()
    reason = "format tflite cannot be made of this model: LiteRT has no operation for.*StringToHashBucket"
    with pytest.raises(DefinitionFailedError, match=reason):
        write_formats(Export(formats=("tflite",)), output, tmp_path, asked)
