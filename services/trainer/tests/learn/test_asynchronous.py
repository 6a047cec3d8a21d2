"""A network trained by a parameter server and its workers, each in a thread, beside the same one trained here."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

from common.definition.asynchronous import Asynchronous
from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import Model, TrainingSet
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import load_module
from services.trainer.learn import adapters
from services.trainer.learn.asynchronous import server_optimizer
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.training import Training
from services.trainer.parameters import wire
from services.trainer.parameters.coordinator import Coordinator
from services.trainer.parameters.peers import Peer
from services.trainer.parameters.server import ParameterServer
from services.trainer.parameters.worker import Worker
from services.trainer.shards.team import ALONE, Team

_EXAMPLES = 240
_SCHEMA = {
    "features": [
        {"name": "item", "dtype": "int64"},
        {"name": "seen", "dtype": "int64", "shape": [2]},
        {"name": "x", "dtype": "float32", "shape": [4]},
    ],
    "labels": [{"name": "y", "dtype": "int64"}],
}
_ESTIMATOR = {
    "estimator": "wide_deep_classifier",
    "features": {
        "item": {"type": "identity", "size": 40, "out_of_range": "clip"},
        "item_vector": {"type": "embedding", "of": "item", "dimension": 3},
        "x": {"type": "numeric"},
    },
    "parameters": {"hidden_units": [8], "l2": 0.01},
}
_LARGE = {
    "estimator": "dnn_classifier",
    "features": {
        "item": {"type": "identity", "size": 4000, "out_of_range": "clip"},
        "seen": {"type": "identity", "size": 4000, "out_of_range": "drop"},
        "item_vector": {"type": "embedding", "of": "item", "dimension": 8, "parts": 3, "table": "items"},
        "seen_vector": {"type": "embedding", "of": "seen", "dimension": 8, "parts": 3, "table": "items"},
        "once": {"type": "embedding", "of": "item", "dimension": 2, "table": "once"},
        "x": {"type": "numeric"},
    },
    "parameters": {"hidden_units": [8]},
}
_MODULE = """
import keras

def build_model(schema, parameters):
    item = keras.Input((), dtype="int64", name="item")
    x = keras.Input((4,), name="x")
    both = keras.layers.Concatenate()([keras.layers.Embedding(40, 3)(item), x])
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8)(both))
    model = keras.Model({"item": item, "x": x}, keras.layers.Dense(1)(keras.layers.Dropout(0.3)(hidden)))
    model.compile(optimizer=OPTIMIZER)
    return model
"""


def _model(
    tmp_path: Path,
    name: str,
    *,
    module: str = "",
    estimator: dict[str, Any] = _ESTIMATOR,
    contributes: bool = False,
    **training: Any,
) -> Model:
    sections = {"module": "model.py", "task": "binary"} if module else estimator
    mapping = {"name": "m", "stream": "s", "label": "y", **sections, "training": {"batch_size": 20, **training}}
    files = {"model.yaml": yaml.safe_dump(mapping).encode()} | ({"model.py": module.encode()} if module else {})
    loaded = load_module(files, "model.py", digest=f"{tmp_path.name}-{name}", directory=tmp_path) if module else None
    definition, schema = parse_definition(files), Schema.from_mapping(_SCHEMA)
    return adapters.build(definition, schema, {}, loaded, seed=3, contributes=contributes)


def _block(model: Model, index: int, *, bad: int = -1, items: int = 40) -> TrainingSet:
    draws = np.random.default_rng(index)
    item, x = draws.integers(0, items, (_EXAMPLES, 1)), draws.normal(size=(_EXAMPLES, 4)).astype(np.float32)
    if bad >= 0:
        x[bad] = np.nan
    labels = tf.constant((item[:, 0] % 3 + x[:, 0] > 1).astype(np.int64))
    seen = draws.integers(-items // 4, items, (_EXAMPLES, 2))
    raw = {"item": tf.constant(item[:, 0] if model.definition.module else item), "x": tf.constant(x)}
    raw["seen"] = tf.constant(seen)
    weights = tf.cast(1 + tf.range(_EXAMPLES) % 3, tf.float32)
    return TrainingSet(model.transformed(raw).columns, {"y": labels}, {"y": weights}, _EXAMPLES)


@contextmanager
def _served(tmp_path: Path, *, workers: int, servers: int, **given: Any) -> Iterator[Training]:
    section = {"workers": workers, "servers": servers}
    models = [_model(tmp_path, f"w{rank}", contributes=True, asynchronous=section, **given) for rank in range(workers)]
    chief = _model(tmp_path, "chief", asynchronous=section, **given)
    behind = [ParameterServer(partial(server_optimizer, chief.definition.training)) for _ in range(servers)]
    threads = list[threading.Thread]()

    def connected(server: ParameterServer) -> socket.socket:
        ours, theirs = socket.socketpair()
        threads.append(threading.Thread(target=server.serve, args=(theirs,), daemon=True))
        return ours

    peers = [Peer(number, connected(server), 0) for number, server in enumerate(behind)]
    members = list[Peer]()
    for rank, model in enumerate(models):
        ours, theirs = socket.socketpair()
        members.append(Peer(rank, ours, 0))
        to_servers = [connected(server) for server in behind]
        threads.append(threading.Thread(target=_live, args=(theirs, to_servers, model), daemon=True))
    coordinator = Coordinator(
        Asynchronous(workers, servers), members, peers, checkpoint=tmp_path / "to-workers", straggler_seconds=60.0
    )
    with closing(coordinator):
        found = adapters.trainable_of(chief, seed=3, team=Team(coordinator=coordinator))
        assert isinstance(found, Training)
        point = adapters.for_contributors(chief.definition, Checkpoint(found.captured(), {}))
        for model in models:
            adapters.restore_frozen(model, point.arrays, {})
        for thread in threads:
            thread.start()
        yield found


def _live(chief: socket.socket, servers: list[socket.socket], model: Model) -> None:
    with suppress(OSError), closing(chief):
        asked, _ = wire.receive(chief)
        wire.send(chief, {"ready": True})
        Worker(chief, servers, adapters.contributor_of(model), asked["placement"]).work()


def _told(served: Training) -> dict[str, Any]:
    coordinator = served._steps._team.coordinator
    assert coordinator is not None
    return coordinator.facts()


def _alone(tmp_path: Path, **training: Any) -> Training:
    found = adapters.trainable_of(_model(tmp_path, "alone", **training), seed=3, team=ALONE)
    assert isinstance(found, Training)
    return found


@pytest.mark.covers("dist-ps-async")
def test_one_worker_and_two_servers_train_what_one_process_does(tmp_path: Path) -> None:
    rate = {"schedule": "cosine", "initial": 0.01, "decay_steps": 20}
    optimizer = {"name": "adam", "learning_rate": rate, "use_ema": True}
    training: dict[str, Any] = {"optimizer": optimizer, "learning_rates": {"deep": 0.5}}
    alone = _alone(tmp_path, **training)
    with _served(tmp_path, workers=1, servers=2, **training) as served:
        for index in range(2):
            mine = served.train_block(_block(served.model, index), pass_index=0, block_index=index)
            theirs = alone.train_block(_block(alone.model, index), pass_index=0, block_index=index)
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        found, expected = dict[str, Any](served.captured()), dict[str, Any](alone.captured())
        assert found.keys() == expected.keys()
        assert served.step == alone.step == 24
        for path, array in expected.items():
            np.testing.assert_allclose(found[path], array, rtol=1e-4, atol=1e-6, err_msg=path)
        assert _told(served)["by_row"] == [], "l2 needs all rows in each step"


@pytest.mark.covers("dist-ps-async", "mode-deeprec")
def test_of_a_table_a_worker_has_the_rows_that_its_batches_look_up_and_no_others(tmp_path: Path) -> None:
    given: dict[str, Any] = {"estimator": _LARGE, "optimizer": {"name": "adam", "learning_rate": 0.05}}
    alone = _alone(tmp_path, **given)
    with _served(tmp_path, workers=1, servers=2, **given) as served:
        for index in range(2):
            mine = served.train_block(_block(served.model, index, items=4000), pass_index=0, block_index=index)
            theirs = alone.train_block(_block(alone.model, index, items=4000), pass_index=0, block_index=index)
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        found, expected = dict[str, Any](served.captured()), dict[str, Any](alone.captured())
        assert found.keys() == expected.keys()
        for path, array in expected.items():
            np.testing.assert_allclose(found[path], array, rtol=1e-4, atol=1e-6, err_msg=path)
        told = _told(served)
    by_row = {one["variable"]: (one["rows"], one["most_held"]) for one in told["by_row"]}
    assert {path: rows for path, (rows, _) in by_row.items()} == {
        "items_table/part_0": 1334,
        "items_table/part_1": 1333,
        "items_table/part_2": 1333,
        "once_table/table": 4000,
    }
    assert all(0 < most <= 20 * 3 for _, most in by_row.values()), "a batch has 20 examples with three ids each"
    (held,), (fetched,) = told["held_bytes_by_worker"], told["fetched_bytes_by_worker"]
    assert held < told["served_bytes"] / 10
    assert fetched <= 24 * held, "of 24 batches"
    worker = _model(tmp_path, "worker", contributes=True, asynchronous={}, **given)
    assert isinstance(worker, BuiltModel)
    assert max(int(one.shape[0]) for one in worker.network.variables) < 100, "no table is built"


@pytest.mark.covers("dist-ps-async", "eco-horn")
def test_two_workers_learn_with_batch_norm_dropout_and_the_modules_own_optimizer(tmp_path: Path) -> None:
    module = _MODULE.replace("OPTIMIZER", "keras.optimizers.Adam(0.02)")
    with _served(tmp_path, module=module, workers=2, servers=2) as served:
        first = served.train_block(_block(served.model, 0), pass_index=0, block_index=0)
        for index in range(1, 5):
            last = served.train_block(_block(served.model, index), pass_index=0, block_index=index)
        assert (len(first), served.step) == (12, 60)
        assert last.mean() < first.mean() - 0.05
        found = served.captured()
        moved = next(array for path, array in found.items() if path.endswith("moving_mean"))
        assert np.abs(moved).max() > 0.01, "batch norm's averages are learned, too"
        seeds = [array for path, array in found.items() if path.endswith("seed_generator_state")]
        assert 60 in [int(state[1]) for state in seeds], "of the dropout, as after 60 batches of one process"


def test_an_example_at_fault_is_set_aside_and_the_rest_is_learned(tmp_path: Path) -> None:
    with _served(tmp_path, workers=2, servers=1, on_not_finite="set_aside") as served:
        served.train_block(_block(served.model, 0, bad=7), pass_index=0, block_index=0)
        assert [*served.set_aside] == [(0, 7)]
        assert served.step == 12
        assert all(np.isfinite(array).all() for array in served.captured().values() if array.dtype.kind == "f")


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        ("Own(0.1)", "a server does not have the code of the module's optimizer"),
        ("keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)", "accumulates gradients"),
        ("keras.optimizers.SGD(0.1, global_clipnorm=1.0)", "global_clipnorm needs the gradients of all variables"),
    ],
)
def test_a_module_that_servers_cannot_serve_is_refused(tmp_path: Path, optimizer: str, sentence: str) -> None:
    own = "\nclass Own(keras.optimizers.SGD):\n    pass\n"
    module = _MODULE.replace("OPTIMIZER", optimizer).replace("import keras\n", f"import keras\n{own}")
    with pytest.raises(DefinitionFailedError, match=sentence), _served(tmp_path, module=module, workers=1, servers=2):
        pass
