"""Definitions drawn at random: each trains, goes on after a stop, is rebuilt to the same bits and served alike.

A few with every run of the suite, the same ones each time; `make definitions COUNT=200` draws others.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import given as given_by
from hypothesis import strategies as draws

from common.definition.model import parse_definition
from services.trainer.protocol.messages import Done, Stopped
from services.trainer.tests.families.test_modules import module
from services.trainer.tests.support.small_rounds import FEATURES, Platform, definition, events, rebuilt

COUNT = int(os.environ.get("HEADRACE_RANDOM_DEFINITIONS", "0"))
_IN_SUITE = 2
_EVENTS = 90
MODULE = """
def build_model(schema, parameters):
    x, pair = keras.Input((), name="x"), keras.Input((2,), name="pair")
    joined = keras.layers.Concatenate()([keras.layers.Reshape((1,))(x), pair])
    for size in parameters["sizes"]:
        joined = keras.layers.Dense(size, activation=parameters["activation"])(joined)
        joined = keras.layers.BatchNormalization()(joined) if parameters["norm"] else joined
        joined = keras.layers.Dropout(0.3)(joined)
    return keras.Model({"x": x, "pair": pair}, keras.layers.Dense(1)(joined))
"""
OPTIMIZERS: draws.SearchStrategy[dict[str, Any]] = draws.one_of(
    draws.fixed_dictionaries({"name": draws.sampled_from(["adam", "adamw", "nadam", "lion", "rmsprop"])}),
    draws.fixed_dictionaries({"name": draws.just("sgd"), "momentum": draws.sampled_from([0.0, 0.9])}),
    draws.fixed_dictionaries({"name": draws.just("adam"), "use_ema": draws.just(True)}),
    draws.fixed_dictionaries({"name": draws.just("adam"), "gradient_accumulation_steps": draws.just(2)}),
    draws.fixed_dictionaries({"name": draws.sampled_from(["sgd", "adagrad"]), "clip_norm": draws.just(0.5)}),
    draws.fixed_dictionaries({"name": draws.just("sgd"), "clip_average_norm": draws.just(0.01)}),
)
RATES: draws.SearchStrategy[Any] = draws.one_of(
    draws.sampled_from([0.001, 0.05]),
    draws.just({"schedule": "exponential", "initial": 0.05, "decay_steps": 5, "decay_rate": 0.5}),
    draws.just({"schedule": "constant", "initial": 0.02, "warmup": {"steps": 4}}),
)
HEADS: draws.SearchStrategy[dict[str, Any]] = draws.sampled_from(
    [
        {"label": "late", "task": "binary"},
        {"label": "late", "task": "binary", "loss": "focal"},
        {"label": "kind", "task": "multiclass", "classes": 3, "label_smoothing": 0.1},
        {"label": "amount", "task": "regression", "loss": "huber"},
        {"label": "amount", "task": "quantiles", "levels": [0.1, 0.5, 0.9]},
        {"label": None, "heads": {"late": {"task": "binary"}, "amount": {"task": "regression", "weight": 0.2}}},
    ]
)  # fmt: skip


@draws.composite
def trainings(draw: Callable[..., Any], *, may_pad: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "batch_size": draw(draws.sampled_from([6, 12])),
        "passes": draw(draws.integers(1, 3)),
        "shards": draw(draws.sampled_from([1, 1, 3])),
        "mixed_precision": draw(draws.sampled_from(["float32", "float32", "float32", "bfloat16", "float16"])),
        "fixed_batch": may_pad and draw(draws.booleans()),
        "optimizer": draw(OPTIMIZERS) | {"learning_rate": draw(RATES)},
    }
    if draw(draws.booleans()):
        found["max_steps"] = draw(draws.integers(3, 20))
    if draw(draws.booleans()):
        found["evaluate_every_steps"] = draw(draws.integers(2, 9))
        found["norms_every_steps"] = draw(draws.sampled_from([None, 3]))
    return found


@draws.composite
def definitions(draw: Callable[..., Any]) -> dict[str, bytes]:
    """The files of one definition over the stream of small_rounds.py."""
    if draw(draws.integers(0, 3)) == 0:
        norm = draw(draws.booleans())
        parameters = {
            "sizes": draw(draws.lists(draws.integers(1, 5), max_size=2)),
            "activation": draw(draws.sampled_from(["relu", "tanh", "gelu"])),
            "norm": norm,
        }
        fitted = {"pair": {"type": "numeric", "normalize": draw(draws.sampled_from(["zscore", "minmax"]))}}
        sections = {"parameters": parameters, "features": draw(draws.sampled_from([None, fitted]))}
        return _stopping(draw, module(MODULE, training=draw(trainings(may_pad=not norm)), **sections))
    estimator = draw(draws.sampled_from(["linear", "dnn", "wide_deep"]))
    left_out = draw(draws.sets(draws.sampled_from(["pair", "extra", "x_bucket", "word_code", "tags_vector"])))
    features = {name: spec for name, spec in FEATURES.items() if name not in left_out}
    parameters = {"l2": draw(draws.sampled_from([0.0, 0.01]))}
    if estimator != "linear":
        parameters |= {"hidden_units": [draw(draws.integers(1, 6))], "dropout": draw(draws.sampled_from([0.0, 0.3]))}
    sections = draw(HEADS) | {"parameters": parameters, "seed": draw(draws.integers(0, 1000))}
    return _stopping(
        draw, definition(estimator=estimator, features=features, training=draw(trainings(may_pad=True)), **sections)
    )


def _stopping(draw: Callable[..., Any], files: dict[str, bytes]) -> dict[str, bytes]:
    """With early stopping by the gate's metric, in some of those that measure on the way."""
    spec = parse_definition(files)
    if not spec.training.evaluate_every_steps or not draw(draws.booleans()):
        return files
    stopping = {
        "metric": spec.gate.shown_metric,
        "patience": draw(draws.integers(1, 3)),
        "restore_best": draw(draws.booleans()),
    }
    mapping = yaml.safe_load(files["model.yaml"])
    mapping["training"]["early_stopping"] = stopping
    return files | {"model.yaml": yaml.safe_dump(mapping, sort_keys=False).encode()}


@pytest.mark.timeout(0 if COUNT else 600)
@pytest.mark.covers("ckpt-resume", "loop-seed", "est-export")
@settings(
    max_examples=COUNT or _IN_SUITE,
    deadline=None,
    derandomize=not COUNT,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given_by(files=definitions(), stop_after=draws.integers(1, 4))
def test_any_definition_trains_resumes_rebuilds_and_is_served_as_it_answers(
    files: dict[str, bytes], stop_after: int
) -> None:
    note(files["model.yaml"].decode())
    with tempfile.TemporaryDirectory() as directory:
        platform = Platform(Path(directory)).append(events(_EVENTS))
        first = lease = platform.lease(files, block_examples=30)
        ended = platform.train(lease, stop_requested=platform.after_blocks(stop_after), work_dir="first")
        if isinstance(ended, Stopped):
            ended = platform.train(platform.registry.taken_up(lease))
        assert isinstance(ended, Done), ended
        (version,) = platform.registry.versions
        counts = (version.events_trained, version.events_held_out, version.events_unusable)
        assert sum(counts) + version.metrics["examples"].get("left_out", 0) == _EVENTS
        platform.registry.resume_point = None
        found = rebuilt(platform, first, 1)
        assert (found.missing, found.differences) == ((), ()), "the rebuild has not stopped"
        for values in _served(platform).values():
            assert values.dtype in (np.float32, np.int64)


def _served(platform: Platform) -> dict[str, Any]:
    """What the version's SavedModel answers; the round has held it against the model already."""
    loaded = tf.saved_model.load(str(platform.directory / "cache" / "model" / "1" / "saved_model"))
    answered = loaded.signatures["serving_examples"](examples=tf.constant(events(6, seed=9)))
    return {name: value.numpy() for name, value in answered.items()}
