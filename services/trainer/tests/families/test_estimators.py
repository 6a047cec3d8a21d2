"""Every estimator and a Keras module: trains, exports, loads again, answers the same through both signatures."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from common.definition.identity import variables_of
from common.definition.inputs import INPUTS_PATH, parse_inputs
from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.schema import Schema
from services.trainer.export import saved_model as export
from services.trainer.families.building import build
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import load_user_module
from services.trainer.features.fitting import Fitting
from services.trainer.features.parsing import parse
from services.trainer.learn.training import Training
from services.trainer.tests.support.small_rounds import FEATURES, SCHEMA, definition, events, fresh_process, serialized

SCHEMA_OF_TESTS = Schema.from_mapping(SCHEMA)
EXAMPLES = events(96)
FEW = {name: FEATURES[name] for name in ("x", "word", "code")}
CASES: dict[str, dict[str, Any]] = {
    "linear_classifier": {"estimator": "linear_classifier", "features": FEW, "parameters": {"l2": 0.001}},
    "linear_regressor": {"estimator": "linear_regressor", "label": "amount", "features": FEW, "parameters": {}},
    "wide_deep_classifier": {"parameters": {"hidden_units": [8], "dropout": 0.1, "batch_norm": True, "l2": 0.0001}},
    "linear_classifier of 3": {
        "estimator": "linear_classifier",
        "label": "kind",
        "features": FEW,
        "parameters": {"classes": 3},
    },
}
OTHERS: list[dict[str, Any]] = [
    {"estimator": "dnn_classifier", "parameters": {"hidden_units": [8], "activation": "tanh"}},
    {"estimator": "dnn_regressor", "label": "amount", "parameters": {"hidden_units": [8, 4]}},
    {"label": "kind", "parameters": {"hidden_units": [8], "classes": 3}},
    {"estimator": "factorization_machine_classifier", "parameters": {"dimension": 3, "l2": 0.0001}},
    {
        "estimator": "factorization_machine_regressor",
        "label": "amount",
        "parameters": {"dimension": 2, "embedding_initializer": "he_normal"},
    },
]


def built(case: dict[str, Any]) -> tuple[BuiltModel, TrainingSet, dict[str, tf.Tensor]]:
    """The model, with all examples ready to train on, and their raw features."""
    spec = parse_definition(definition(**({"features": FEATURES} | case)))
    raw = parse(EXAMPLES, SCHEMA_OF_TESTS.columns).raw
    fitting = Fitting(spec.features, SCHEMA_OF_TESTS, {})
    fitting.add({name: column.numpy() for name, column in raw.items()})
    model = build(spec, SCHEMA_OF_TESTS, fitting.result(), None, seed=5)
    return model, all_examples(model, raw), raw


def all_examples(model: BuiltModel, raw: dict[str, tf.Tensor]) -> TrainingSet:
    labels = {head.name: head.labels_of(raw[head.label.name]) for head in model.heads}
    weights = {head.name: tf.ones(len(EXAMPLES)) for head in model.heads}
    return TrainingSet(model.transformed(raw).columns, labels, weights, len(EXAMPLES))


@dataclass(frozen=True)
class Learned:
    """A case that has learned, and its export, which passed the check. Several tests look at it; none changes it."""

    model: BuiltModel
    raw: dict[str, tf.Tensor]
    losses: list[float]
    saved_model: Path


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Learned]:
    @cache
    def of_case(case: str) -> Learned:
        folder = tmp_path_factory.mktemp("learned")
        model, examples, raw = built(CASES[case])
        training = Training(model, seed=5)
        losses = [training.train_block(examples, pass_index=index, block_index=0).mean() for index in range(12)]
        export.export(model, folder / "saved_model")
        export.check(folder / "saved_model", export.trial_of(model, EXAMPLES[:4]), fresh_process(), folder)
        return Learned(model, raw, losses, folder / "saved_model")

    return of_case


@pytest.mark.covers("est-canned-nn", "est-export", "feat-cross", "api-layers")
@pytest.mark.parametrize("case", CASES)
def test_it_learns_and_its_export_answers_as_it_does(case: str, learned: Callable[[str], Learned]) -> None:
    done = learned(case)
    model, raw = done.model, done.raw
    assert done.losses[-1] < done.losses[0] * 0.95
    loaded = tf.saved_model.load(str(done.saved_model))
    inputs = {feature.name: raw[feature.name] for feature in model.inputs}
    by_features = loaded.signatures["serving_default"](**inputs)
    by_examples = loaded.signatures["serving_examples"](tf.constant(EXAMPLES))
    again = loaded.signatures["serving_default"](**inputs)
    assert all(np.array_equal(again[name], value) for name, value in by_features.items()), "nothing is dropped"
    assert by_features.keys() == by_examples.keys() == expected_outputs(model)
    for name, value in model.serve(raw).items():
        np.testing.assert_allclose(by_features[name], value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(by_examples[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.covers("est-canned-nn")
@pytest.mark.parametrize("case", [*CASES.values(), *OTHERS])
def test_every_row_has_a_meaning_and_the_answers_are_those_of_the_task(case: dict[str, Any]) -> None:
    model, examples, raw = built(case)
    meaning = variables_of(model.definition, model.schema)
    shapes = {one.path: tuple(one.shape) for one in model.network.variables if "seed_generator" not in one.path}
    assert {path: known.shape for path, known in meaning.items()} == shapes
    assert model.serve(raw).keys() == expected_outputs(model)
    assert np.isfinite(model.loss(examples.columns, examples.labels, examples.weights))


@pytest.mark.covers("est-export", "srv-classify-regress")
@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("linear_classifier", {"classification", "regression"}),
        ("linear_classifier of 3", {"classification"}),
        ("linear_regressor", {"regression"}),
    ],
)
def test_classify_and_regress_answer_what_predict_answers(
    case: str, names: set[str], learned: Callable[[str], Learned]
) -> None:
    done = learned(case)
    loaded = tf.saved_model.load(str(done.saved_model))
    served = done.model.serve(done.raw)
    assert set(loaded.signatures) - {"serving_default", "serving_examples"} == names
    if "classification" in names:
        answered = loaded.signatures["classification"](inputs=tf.constant(EXAMPLES))
        classes = [[b"0", b"1", b"2"][: answered["scores"].shape[1]]] * len(EXAMPLES)
        assert answered["classes"].numpy().tolist() == classes
        expected = served["probabilities"] if "probabilities" in served else served["probability"]
        scores = answered["scores"] if "probabilities" in served else answered["scores"][:, 1]
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    if "regression" in names:
        answered = loaded.signatures["regression"](inputs=tf.constant(EXAMPLES))
        expected = served["prediction" if "prediction" in served else "probability"]
        np.testing.assert_allclose(answered["outputs"], expected, rtol=1e-5, atol=1e-6)
    saved = saved_model_pb2.SavedModel.FromString((done.saved_model / "saved_model.pb").read_bytes())
    assert saved.meta_graphs[0].meta_info_def.stripped_default_attrs
    methods = {name: signature.method_name for name, signature in saved.meta_graphs[0].signature_def.items()}
    assert {name: methods[name].rpartition("/")[2] for name in names} == {
        name: {"classification": "classify", "regression": "regress"}[name] for name in names
    }


@pytest.mark.covers("mode-bottleneck", "srv-classify-regress")
def test_a_label_with_a_vocabulary_is_answered_by_its_words(tmp_path: Path) -> None:
    words = ["cat", "dog", "owl"]
    label = {"name": "kind", "dtype": "string", "vocabulary": words}
    schema = Schema.from_mapping({"features": [{"name": "x", "dtype": "float32"}], "labels": [label]})
    features = {"x": {"type": "numeric"}}
    spec = parse_definition(definition(estimator="linear_classifier", label="kind", features=features, parameters={}))
    export.export(build(spec, schema, {}, None, seed=5), tmp_path / "saved_model")
    example = tf.train.Example(features=tf.train.Features(feature={"x": _floats(0.5)}))
    given = tf.constant([example.SerializeToString()])
    answered = tf.saved_model.load(str(tmp_path / "saved_model")).signatures["classification"](inputs=given)
    assert answered["classes"].numpy().tolist() == [[word.encode() for word in words]]


@pytest.mark.covers("feat-vocab", "fmt-assets", "est-export")
def test_a_vocabulary_file_is_an_asset_and_words_that_are_known_unknown_or_empty_have_the_rows_of_training(
    tmp_path: Path,
) -> None:
    schema = Schema.from_mapping(
        {"features": [{"name": "word", "dtype": "string"}], "labels": [{"name": "late", "dtype": "int64"}]}
    )
    features = {"word": {"type": "vocabulary", "file": "words.txt", "oov": "bucket"}}
    asked: dict[str, Any] = {"features": features, "parameters": {}, "export": {"assets": ["card.md"]}}
    files = definition(estimator="linear_classifier", **asked) | {"words.txt": b"b\na\n", "card.md": b"# A model"}
    model = build(parse_definition(files), schema, {}, None, seed=5)
    next(one for one in model.network.variables if one.path.endswith("word_weights")).assign([[1.0], [2.0], [4.0]])
    export.export(model, tmp_path / "saved_model")
    assets = {path.name: path.read_bytes() for path in (tmp_path / "saved_model" / export.ASSETS).iterdir()}
    assert assets == {"words.txt": b"b\na\n", "card.md": b"# A model"}
    words = tf.constant(["b", "a", "?", ""])
    assert model.transformed({"word": words}).columns["word"].numpy().tolist() == [[0], [1], [2], [2]]
    answered = tf.saved_model.load(str(tmp_path / "saved_model")).signatures["serving_default"](word=words)
    assert answered["logits"].numpy().tolist() == [1.0, 2.0, 4.0, 4.0]
    for missing, sentence in (
        ("card.md", "export: assets names 'card.md', expected a file of the definition: model"),
        ("words.txt", r"no file words\.txt"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            parse_definition({name: content for name, content in files.items() if name != missing})


def _floats(value: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))


def expected_outputs(model: BuiltModel) -> set[str]:
    return {
        "binary": {"probability", "logits"},
        "multiclass": {"probabilities", "class_id"},
        "regression": {"prediction"},
    }[model.definition.task]


@pytest.mark.covers("feat-input-spec", "fmt-signatures")
def test_the_signatures_name_the_raw_features_that_the_model_needs(tmp_path: Path) -> None:
    features = {name: FEATURES[name] for name in ("x", "code")}
    model, _, _ = built({"estimator": "linear_classifier", "features": features, "parameters": {}})
    export.export(model, tmp_path / "saved_model")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signatures = tf.compat.v1.saved_model.loader.load(
            session, ["serve"], str(tmp_path / "saved_model")
        ).signature_def
    inputs = signatures["serving_default"].inputs
    assert {name: (info.dtype, len(info.tensor_shape.dim)) for name, info in inputs.items()} == {
        "x": (tf.float32.as_datatype_enum, 1),
        "code": (tf.int64.as_datatype_enum, 1),
    }
    assert set(signatures["serving_examples"].inputs) == {"examples"}


@pytest.mark.covers("feat-missing")
def test_the_schemas_defaults_and_bounds_travel_with_the_export(learned: Callable[[str], Learned]) -> None:
    done = learned("wide_deep_classifier")
    model = done.model
    inputs = parse_inputs(json.loads((done.saved_model / INPUTS_PATH).read_text()))["serving_default"]
    assert inputs.features == model.inputs
    assert any(not feature.required for feature in inputs.features)
    lengths = {feature.name: feature.dtype for feature in model.inputs if feature.is_variable_length}
    assert inputs.padding == {name: {"string": "\uffff", "int64": -(2**63)}[dtype] for name, dtype in lengths.items()}
    assert lengths


def test_the_export_holds_weights_and_what_was_fitted_but_no_optimizer_slots(learned: Callable[[str], Learned]) -> None:
    done = learned("wide_deep_classifier")
    stored = tf.train.list_variables(str(done.saved_model / "variables" / "variables"))
    shapes = sorted(tuple(shape) for name, shape in stored if "OBJECT_GRAPH" not in name)
    assert done.model.transform is not None
    variables = [*done.model.network.variables, *done.model.transform.fitted.variables]
    assert shapes == sorted(tuple(variable.shape) for variable in variables)


def test_an_export_of_other_weights_does_not_pass_the_check(tmp_path: Path, learned: Callable[[str], Learned]) -> None:
    done, (new, _, _) = learned("linear_classifier"), built(CASES["linear_classifier"])
    with pytest.raises(DefinitionFailedError, match=r"does not answer as the model does: serving_default, .* differs"):
        export.check(done.saved_model, export.trial_of(new, EXAMPLES[:4]), fresh_process(), tmp_path)


TWO_INPUTS = """
import keras
import tensorflow as tf

def build_model(schema, parameters):
    pair = keras.Input((2,), name="pair", dtype="float32")
    tags = keras.Input((None,), name="tags", dtype="string")
    count = keras.layers.Lambda(lambda tags: tf.reduce_sum(tf.cast(tags != "", tf.float32), 1, keepdims=True),
                                output_shape=(1,))(tags)
    hidden = keras.layers.Dense(parameters["units"], "relu")(keras.layers.Concatenate()([pair, count]))
    hidden = keras.layers.BatchNormalization()(hidden)
    return keras.Model([tags, pair], keras.layers.Dense(3)(hidden))
"""


def test_a_keras_module_takes_several_raw_features_by_name(tmp_path: Path) -> None:
    files = definition(
        estimator=None, features=None, parameters={"units": 6}, module="net.py", task="multiclass", label="kind",
        net_py=TWO_INPUTS,
    )  # fmt: skip
    spec = parse_definition(files)
    module = load_user_module(spec, files, digest="two-inputs", directory=tmp_path)
    model = build(spec, SCHEMA_OF_TESTS, {}, module, seed=5)
    assert [feature.name for feature in model.inputs] == ["pair", "tags"]
    assert model.heads[0].class_count == 3
    raw = parse(EXAMPLES, SCHEMA_OF_TESTS.columns).raw
    examples = all_examples(model, raw)
    training = Training(model, seed=5)
    moving_mean = next(path for path in training.variables if path.endswith("moving_mean"))
    before = training.variables[moving_mean].numpy().copy()
    training.train_block(examples, pass_index=0, block_index=0)
    assert (training.variables[moving_mean].numpy() != before).any()


def test_a_list_answers_the_same_alone_and_among_longer_ones_whatever_it_holds(tmp_path: Path) -> None:
    """The empty word and -1 counted as padding: an event with them answered as one without."""
    schema = Schema.from_mapping(
        {
            "features": [
                {"name": "tags", "dtype": "string", "shape": [None]},
                {"name": "codes", "dtype": "int64", "shape": [None]},
            ],
            "labels": [{"name": "late", "dtype": "int64"}],
        }
    )
    features = {
        "tags": {"type": "hashed", "bins": 8},
        "codes": {"type": "identity", "size": 5, "out_of_range": "clip"},
        "tags_vector": {"type": "embedding", "of": "tags", "dimension": 2},
        "codes_vector": {"type": "embedding", "of": "codes", "dimension": 2, "combiner": "sum"},
    }
    said: dict[str, Any] = {
        "estimator": "dnn_classifier",
        "features": features,
        "parameters": {"hidden_units": [4], "activation": "tanh"},
    }
    model = build(parse_definition(definition(**said)), schema, {}, None, seed=5)
    export.export(model, tmp_path / "saved_model")
    rows: list[dict[str, Any]] = [
        {"tags": ["a"], "codes": [1]},
        {"tags": ["a", ""], "codes": [1]},
        {"tags": ["a"], "codes": [1, -1]},
        {"tags": [], "codes": []},
        {"tags": [""], "codes": [-1, -1, -1]},
    ]
    serialized_rows = [serialized(row | {"late": 0}) for row in rows]
    signatures = tf.saved_model.load(str(tmp_path / "saved_model")).signatures
    by_examples = signatures["serving_examples"](tf.constant(serialized_rows))["logits"].numpy()
    alone = [
        signatures["serving_default"](
            tags=tf.constant([row["tags"]], tf.string, shape=[1, len(row["tags"])]),
            codes=tf.constant([row["codes"]], tf.int64, shape=[1, len(row["codes"])]),
        )["logits"].numpy()[0]
        for row in rows
    ]
    columns = model.transformed(parse(serialized_rows, schema.columns).raw).columns
    trained = model.outputs(columns, training=False)["late"]
    np.testing.assert_allclose(by_examples, alone, rtol=1e-6)
    np.testing.assert_allclose(trained, alone, rtol=1e-6)
    assert len(set(np.round(by_examples, 6).tolist())) == len(rows), "no two of the rows mean the same"
