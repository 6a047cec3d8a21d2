"""A module's whole contract, each part in one small round: trained, tried elsewhere, rebuilt to the same bits."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.families.port import TrainingSet
from services.trainer.families.user_module import load_module
from services.trainer.learn import adapters, checkpoint
from services.trainer.learn.training import Training
from services.trainer.protocol.messages import Done, Rebuilt, Stopped
from services.trainer.rounds.kept import Kept
from services.trainer.rounds.process import rebuild
from services.trainer.tests.support.small_rounds import MOMENTUM, SCHEMA, Platform, definition, events

HEAD = "import keras\nimport numpy as np\nimport pathlib\nimport tensorflow as tf\n"
PREPROCESSING = """
def build_model(schema, parameters):
    x = keras.Input((), name="x", dtype="float32")
    word = keras.Input((), name="word", dtype="string")
    code = keras.Input((), name="code", dtype="int64")
    column = lambda tensor: keras.layers.Reshape((1,))(tensor)
    parts = [
        keras.layers.Normalization(axis=None, name="norm")(column(x)),
        keras.layers.Discretization(num_bins=4, output_mode="one_hot", name="bins")(column(x)),
        keras.layers.Embedding(8, 2)(keras.layers.StringLookup(max_tokens=8, name="words")(word)),
        keras.layers.Embedding(8, 2)(keras.layers.IntegerLookup(max_tokens=8, name="codes")(code)),
        keras.layers.TextVectorization(9, output_mode="tf_idf", pad_to_max_tokens=True, name="text")(word),
        keras.layers.Embedding(5, 2)(keras.layers.Hashing(5)(word)),
        keras.layers.CategoryEncoding(6, output_mode="one_hot")(column(code)),
        keras.layers.Embedding(4, 2)(keras.layers.StringLookup(vocabulary=["red", "green", "blue"])(word)),
    ]
    hidden = keras.layers.Concatenate()(parts)
    return keras.Model([x, word, code], keras.layers.Dense(1)(hidden))

def adapt(network, dataset):
    network.get_layer("norm").adapt(dataset.map(lambda row: row["x"][:, tf.newaxis]))
    network.get_layer("bins").adapt(dataset.map(lambda row: row["x"]))
    network.get_layer("words").adapt(dataset.map(lambda row: row["word"]))
    network.get_layer("codes").adapt(dataset.map(lambda row: row["code"]))
    network.get_layer("text").adapt(dataset.map(lambda row: row["word"]))
"""
SMALL = """
def small(outputs=1):
    x = keras.Input((1,), name="x", dtype="float32")
    word = keras.Input((), name="word", dtype="string")
    ids = keras.layers.Hashing(6)(word)
    parts = [x, keras.layers.Embedding(6, 3)(ids)]
    hidden = keras.layers.Dense(4, "relu")(keras.layers.Concatenate()(parts))
    return {"x": x, "word": word}, keras.layers.Dense(outputs)(hidden)
"""
SUBCLASSED = """
inputs = ["x", "word"]

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.ids = keras.layers.Hashing(6)
        self.table = keras.layers.Embedding(6, 3)
        self.out = keras.layers.Dense(1, kernel_regularizer="l2")
        self.other = keras.layers.Dense(2)

    def call(self, inputs, training=False):
        hidden = tf.concat([inputs["x"][:, tf.newaxis], self.table(self.ids(inputs["word"]))], 1)
        self.add_loss(0.01 * tf.reduce_mean(tf.square(hidden)))
        return {"late": self.out(hidden), "more": {"vector": self.other(hidden), "pair": (hidden, hidden + 1)}}

def build_model(schema, parameters):
    return Net()
"""
TWO_STEPS = SUBCLASSED.replace(
    "return Net()",
    "net = Net()\n    net.first, net.second = "
    "(keras.optimizers.SGD(0.01, 0.9, name=name) for name in ('first', 'second'))\n    return net",
).replace(
    "def build_model",
    """    def train_step(self, data):
        x, labels, weights = data
        with tf.GradientTape(persistent=True) as tape:
            logits = self(x, training=True)["late"][:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels["late"], tf.float32), logits))
        tables, others = self.table.trainable_variables, self.out.trainable_variables
        self.first.apply_gradients(zip(tape.gradient(loss, tables), tables))
        self.second.apply_gradients(zip(tape.gradient(loss, others), others))
        return {"loss": loss}

def build_model""",
)
COMPILED = (
    SMALL
    + """
def build_model(schema, parameters):
    model = keras.Model(*small())
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([4], [0.05, 0.01])
    model.compile(
        keras.optimizers.SGD(rate, use_ema=True, ema_momentum=0.5, global_clipnorm=0.5),
        loss=keras.losses.BinaryFocalCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryIoU(target_class_ids=[1], threshold=0.0, name="iou")],
        **{"weighted_metrics": [keras.metrics.BinaryAccuracy(threshold=0.0, name="right")]},
    )
    return model
"""
)

FITTED = """
def build_model(schema, parameters):
    x, scaled = keras.Input((), name="x"), keras.Input((1,), name="scaled")
    pair = keras.Input((2,), name="pair")
    part = keras.Input((1,), dtype="int32", name="part")
    word = keras.Input((1,), dtype="int32", name="word")
    tables = [keras.layers.Flatten()(keras.layers.Embedding(5, 2)(one)) for one in (part, word)]
    columns = [keras.layers.Reshape((1,))(x), scaled, pair, *tables]
    answer = keras.layers.Dense(1)(keras.layers.Concatenate()(columns))
    return keras.Model([x, scaled, pair, part, word], answer)
"""
FITTED_FEATURES = {
    "scaled": {"type": "numeric", "of": "x", "normalize": "zscore"},
    "pair": {"type": "numeric", "normalize": "minmax", "update": False},
    "part": {"type": "bucketized", "of": "x", "quantiles": 4},
    "word": {"type": "vocabulary", "max_words": 4, "oov": "bucket"},
}


def module(source: str, **sections: Any) -> dict[str, bytes]:
    """A definition's files; the steps are MOMENTUM's where neither the source nor `training` says an optimizer."""
    defaults: dict[str, Any] = {
        "estimator": None,
        "features": None,
        "parameters": {},
        "module": "net.py",
        "task": "binary",
    }
    training = sections.get("training", {"batch_size": 8, "passes": 2})
    if not any(word in source for word in ("optimizer", "compile(", "model_fn", "train_step")):
        training = training if "optimizers" in training else {"optimizer": MOMENTUM, **training}
    return definition(**{**defaults, **sections, "training": training}, net_py=HEAD + source)


def trained_twice(
    directory: Path,
    files: dict[str, bytes],
    schema: Mapping[str, Any] = SCHEMA,
    *,
    stops: Sequence[int] = (1,),
    exports: bool = True,
    parts: tuple[list[bytes], list[bytes]] | None = None,
) -> Platform:
    """A first round, a second in the same process that is stopped on its way and goes on in a new one; the process of
    the first then rebuilds the second bit for bit, which traces nothing anew.

    Args:
        stops: after how many blocks more the second one is stopped, each time.
        exports: whether the second one is exported, at its end.
        parts: the events of each; by default 60 small ones.
    """
    first, second = parts or (events(60), events(60, seed=2))
    platform = Platform(directory, schema, exports=False).append(first)
    kept = Kept()
    assert isinstance(platform.train(platform.lease(files), kept=kept), Done)
    platform.append(second)
    lease = planned = platform.lease(files, parent_version=1)
    for number, blocks in enumerate(stops):
        process = None if number else kept
        stop = platform.after_blocks(blocks)
        stopped = platform.train(lease, stop_requested=stop, work_dir=f"w{number}", kept=process)
        assert isinstance(stopped, Stopped), stopped
        lease = platform.registry.taken_up(lease)
    platform.exports = exports
    outcome = platform.train(lease, work_dir="last")
    assert isinstance(outcome, Done), outcome
    again = replace(platform.assignment(planned, "again"), rebuild_of=2)
    found = rebuild(again, platform.messages.append, lambda: False, platform.around(kept=kept))
    assert isinstance(found, Rebuilt), found
    assert (found.missing, found.differences) == ((), ())
    return platform


@pytest.mark.covers("api-keras", "api-layers", "norm-batch")
@pytest.mark.parametrize(
    "source",
    [PREPROCESSING, SUBCLASSED, TWO_STEPS, COMPILED],
    ids=["preprocessing layers", "subclassed, two outputs, add_loss", "train_step, two optimizers", "compiled"],
)
def test_it_trains_resumes_exports_and_rebuilds_to_the_same_bits(tmp_path: Path, source: str) -> None:
    platform = trained_twice(tmp_path, module(source), exports=source in (PREPROCESSING, SUBCLASSED))
    version = platform.registry.versions[1]
    assert np.isfinite(version.metrics["candidate"]["log_loss"])
    assert version.metrics["parent"]
    if source is COMPILED:
        assert 0.0 <= version.metrics["candidate"]["iou"] <= 1.0
        assert version.metrics["candidate"]["right"] == pytest.approx(version.metrics["candidate"]["accuracy"])
    if source is PREPROCESSING:
        arrays = checkpoint.read(platform.directory / "cache" / "model" / "1").arrays
        assert arrays["layers/words/word_lengths"].size > 3
        assert arrays["layers/bins/boundaries"].shape == (3,)
        assert arrays["layers/text/idf"].size > 3
        again = checkpoint.read(platform.directory / "cache" / "model" / "2").arrays
        np.testing.assert_array_equal(arrays["layers/words/words"], again["layers/words/words"])
    if source is SUBCLASSED:
        saved = tf.saved_model.load(str(tmp_path / "cache" / "model" / "2" / "saved_model"))
        answers = saved.signatures["serving_examples"](tf.constant(events(4)))
        assert set(answers) == {"probability", "logits", "more/vector", "more/pair/0", "more/pair/1"}
        np.testing.assert_allclose(answers["more/pair/1"], answers["more/pair/0"] + 1)
        assert answers["more/vector"].shape == (4, 2)


@pytest.mark.covers("api-keras", "feat-numeric-bucket", "feat-vocab", "eco-tft")
def test_a_module_takes_what_the_rounds_fitted_beside_what_the_stream_has(tmp_path: Path) -> None:
    platform = trained_twice(tmp_path, module(FITTED, features=FITTED_FEATURES))
    first, second = (checkpoint.read(tmp_path / "cache" / "model" / str(number)).arrays for number in (1, 2))
    counts = [version.events_trained for version in platform.registry.versions]
    assert first["statistics/scaled/count"].tolist() == [counts[0]]
    assert second["statistics/scaled/count"].tolist() == [sum(counts)]
    np.testing.assert_array_equal(first["statistics/pair/maximum"], second["statistics/pair/maximum"], "update: false")
    assert first["statistics/part/boundaries"].shape == (3,)
    assert first["statistics/word/word_lengths"].shape == (4,)
    path = tmp_path / "cache" / "model" / "2" / "statistics" / "round.json"
    assert set(json.loads(path.read_text())["transformed"]) == set(FITTED_FEATURES)
    answer = tf.saved_model.load(str(tmp_path / "cache" / "model" / "2" / "saved_model")).signatures["serving_default"]
    assert set(answer.structured_input_signature[1]) == {"x", "pair", "word"}, "what the stream has, not what is made"


@pytest.mark.covers("est-model-fn")
def test_a_model_fn_takes_what_the_rounds_fitted_too(tmp_path: Path) -> None:
    source = """
def model_fn(features, labels, mode, params):
    logits = keras.layers.Dense(1)(tf.concat([features["scaled"], tf.one_hot(features["word"][:, 0], 5)], 1))
    if mode == "infer":
        return {"predictions": {"logits": logits}}
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), logits[:, 0])
    return {"loss": tf.reduce_mean(losses), "optimizer": keras.optimizers.SGD(0.01)}
"""
    platform = Platform(tmp_path, exports=False, eager=True).append(events(40))
    platform.learn(module(source, features=FITTED_FEATURES))
    assert "statistics/word/word_lengths" in checkpoint.read(tmp_path / "cache" / "model" / "1").arrays


@pytest.mark.covers("feat-input-spec")
@pytest.mark.parametrize(
    ("source", "features", "reason"),
    [
        (FITTED, {"more": {"type": "hashed", "of": "word", "bins": 5}}, "has more, and the network has no input"),
        (FITTED, {"word": {"type": "numeric", "of": "x"}}, "word is int32 (1,), the section's feature is float32"),
        (
            FITTED.replace('"part"', '"prat"'),
            {},
            "nor of the section features: scaled, pair, part, word; did you mean part?",
        ),
    ],
    ids=["unused", "another dtype", "misspelt"],
)
def test_a_feature_that_the_network_does_not_take_is_refused(
    tmp_path: Path, source: str, features: dict[str, Any], reason: str
) -> None:
    platform = Platform(tmp_path).append(events(20))
    assert reason in platform.refused(module(source, features=FITTED_FEATURES | features))


@pytest.mark.covers("opt-ema", "api-keras")
def test_what_is_served_are_the_averages_and_what_goes_on_are_the_weights(tmp_path: Path) -> None:
    platform = Platform(tmp_path).append(events(60))
    platform.learn(module(COMPILED))
    stored = checkpoint.read(tmp_path / "cache" / "model" / "1")
    averages = stored.state["averages"]
    served = tf.train.load_checkpoint(str(tmp_path / "cache/model/1/saved_model/variables/variables"))
    exported = [served.get_tensor(name) for name in served.get_variable_to_shape_map()]

    def is_exported(path: str) -> bool:
        return any(np.array_equal(stored.arrays[path], one) for one in exported)

    assert averages
    assert all(map(is_exported, averages.values()))
    assert not any(map(is_exported, averages))
    platform.exports = False
    platform.append(events(20, seed=2))
    platform.learn(module(COMPILED.replace("[0.05, 0.01]", "[0.0, 0.0]")), parent_version=1)
    after = checkpoint.read(tmp_path / "cache" / "model" / "2").arrays
    for path in averages:
        np.testing.assert_array_equal(after[path], stored.arrays[path], "at a rate of 0 the weights stay")
    for path in averages.values():
        assert (after[path] != stored.arrays[path]).any(), "and their averages come nearer"


@pytest.mark.covers("loss-custom")
@pytest.mark.parametrize(
    ("source", "sections", "reason"),
    [
        (COMPILED, {"training": {"optimizer": {"name": "sgd"}}}, "compile() names none) and model.yaml names sgd"),
        (COMPILED + "\ndef loss(labels, outputs):\n    return outputs", {}, "keep one"),
        (TWO_STEPS, {"class_weights": {1: 5}}, "(loss, weight, class_weights, positive_weight or label_smoothing)"),
        (COMPILED.replace("from_logits=True", ""), {}, "takes probabilities, the outputs are logits"),
        (COMPILED.replace("metrics=[", "run_eagerly=True, metrics=["), {}, "run_eagerly"),
        (COMPILED.replace("metrics=[", "steps_per_execution=4, metrics=["), {}, "steps_per_execution=4"),
        (COMPILED.replace("metrics=[", "jit_compile=True, metrics=["), {}, "say training.jit_compile in model.yaml"),
        (SUBCLASSED.replace("def call", "def test_step(self, data): ...\n\n    def call"), {}, "test_step"),
        (SUBCLASSED.replace("def call", "def fit(self, data): ...\n\n    def call"), {}, "its own fit, which nothing"),
        (SUBCLASSED.replace('"late"', '"main"'), {}, "name the taught output after the label, late"),
        (SUBCLASSED.replace('"x", "word"', '"x", "wrod"'), {}, "input 'wrod' is no feature of the stream"),
        ("def build_model(s, p):\n    return keras.Sequential([keras.layers.Dense(1)])", {}, "has no inputs yet"),
        (SUBCLASSED.replace("return Net()", "return keras.Model(x := keras.Input((2,)), keras.layers.Dense(1)(x))"), {},
         "has the name of its feature"),
        (
            SMALL + "\ndef build_model(s, p):\n    return keras.Model(*small())\n"
            "def loss(labels, outputs):\n    return tf.reduce_mean(outputs)",
            {},
            r"loss() returned shape (), expected one loss per example, [n]",
        ),
        (
            SMALL + "\ndef build_model(s, p):\n    return keras.Model(*small())\n"
            "def loss(labels, outputs):\n    return tf.cast(tf.not_equal(outputs > 0, labels > 0), tf.float32)",
            {},
            "the loss depends on none of the model's trainable variables",
        ),
        (
            SMALL + "\ndef build_model(s, p):\n    return keras.Model(*small())\n"
            "def loss(labels, outputs):\n    return outputs[:, tf.newaxis]",
            {},
            r"expected one loss per example, [n]",
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`")
def test_what_cannot_be_used_is_refused_with_a_sentence(
    tmp_path: Path, source: str, sections: dict[str, Any], reason: str
) -> None:
    platform = Platform(tmp_path).append(events(20))
    assert reason in platform.refused(module(source, **sections))


@pytest.mark.covers("loss-custom")
def test_class_weights_weigh_a_compiled_loss_as_fit_does(tmp_path: Path) -> None:
    source = """
def build_model(schema, parameters):
    pair = keras.Input((2,), name="pair")
    model = keras.Model(pair, keras.layers.Dense(1, kernel_initializer="ones")(pair))
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    return model
"""
    files = module(source, class_weights={0: 0.5, 1: 6}, training={"batch_size": 64})
    own = load_module(files, "net.py", digest=tmp_path.name, directory=tmp_path)
    training = adapters.trainable_of(
        adapters.build(parse_definition(files), Schema.from_mapping(SCHEMA), {}, own, seed=1), seed=1
    )
    assert isinstance(training, Training)
    random = np.random.default_rng(1)
    pairs, labels = random.normal(size=(64, 2)).astype(np.float32), random.integers(0, 2, 64)
    block = TrainingSet({"pair": tf.constant(pairs)}, {"late": tf.constant(labels)}, {"late": tf.ones(64)}, 64)
    losses = training.train_block(block, pass_index=0, block_index=0)
    assert own.build_model is not None
    keras_alone = own.build_model(Schema.from_mapping(SCHEMA), {})
    fitted = keras_alone.fit(pairs, labels[:, None], batch_size=64, class_weight={0: 0.5, 1: 6.0}, verbose=0)
    np.testing.assert_allclose(losses, fitted.history["loss"], rtol=1e-6)


@pytest.mark.covers("api-keras")
def test_a_compute_metrics_of_the_models_own_measures_the_held_out_slice(tmp_path: Path) -> None:
    measuring = """def compute_metrics(self, x, y, y_pred, sample_weight):
        return {"rows": len(y["late"]), "right": np.mean((y_pred["late"] > 0) == y["late"])}

    def call"""
    platform = Platform(tmp_path, exports=False).append(events(60))
    platform.learn(module(SUBCLASSED.replace("def call", measuring)))
    (version,) = platform.registry.versions
    found = version.metrics["candidate"]
    assert found["rows"] == version.events_held_out
    assert found["right"] == pytest.approx(found["accuracy"])


@pytest.mark.covers("api-keras")
def test_a_data_file_lies_beside_its_module_and_adapt_may_assign_weights(tmp_path: Path) -> None:
    source = (
        SMALL
        + """
def build_model(schema, parameters):
    words = pathlib.Path(__file__).with_name(parameters["words"]).read_text().split()
    layers = [keras.layers.StringLookup(vocabulary=words), keras.layers.Embedding(len(words) + 1, 2)]
    return keras.Sequential([keras.Input((), name="word", dtype="string"), *layers, keras.layers.Dense(1)])

def adapt(network, dataset):
    count = sum(len(row["word"]) for row in dataset)
    network.get_layer("embedding").embeddings.assign(np.full((3, 2), count, np.float32))
"""
    )
    platform = Platform(tmp_path, exports=False).append(events(40))
    training = {"batch_size": 8, "frozen": ["*/embedding"]}
    files = module(source, parameters={"words": "words.txt"}, training=training) | {"words.txt": b"red\ngreen\n"}
    platform.learn(files)
    arrays = checkpoint.read(tmp_path / "cache" / "model" / "1").arrays
    np.testing.assert_array_equal(
        np.float64(arrays["model/sequential/embedding/embeddings"]),
        np.full((3, 2), platform.registry.versions[0].events_trained),
    )
