"""One round's training on 1, 2 and 4 processes, beside TensorFlow's own mirrored strategies, and what more would give.

Every figure is of a separate process that trains a block over and over, with one thread for each process. The time of
a step is parted into computing (the same shards in one process, divided by the processes), exchanging (the same floats
and nothing else) and the rest: waiting for the slower process, and cores that are not there.

Processes of one machine exchange through shared memory. Between machines TensorFlow's collectives do, in P - 1 hops:
seconds = (P - 1) * latency + bytes received / bandwidth. Both are fitted to what the collectives took here, on the
loopback of one machine; a network has its own.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a fork needs a process of one thread

import keras
import numpy as np
import tensorflow as tf
import yaml

from benchmarks.report import publish
from benchmarks.training import built, flights, model_of, training_set
from common.schema import Schema
from services.trainer import determinism
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import TrainingSet
from services.trainer.learn import adapters
from services.trainer.learn.training import Training
from services.trainer.rounds.teamwork import LocalWorkers, join_cluster
from services.trainer.shards.cluster_spec import ClusterSpec, on_this_machine
from services.trainer.shards.cut import owned_shards, parts_of, whole
from services.trainer.shards.shared_memory import SharedMemory
from services.trainer.shards.team import Team

_SHARDS, _BATCHES, _REPEATS = 4, 4, 5
_SPEED_TARGET, _EXCHANGE_TARGET = 1.6, 0.1
_EXTRAPOLATED = (2, 4, 8, 16, 32, 64)
_EXCHANGED_FLOATS = (1_000, 100_000, 1_000_000)
_TIMEOUT_SECONDS = 300
_CONVOLUTION = """
import keras

def build_model(schema, parameters):
    image = keras.Input((32, 32, 3), name="x")
    hidden = image
    for filters in (32, 64, 64):
        hidden = keras.layers.Conv2D(filters, 3, activation="relu", padding="same", strides=2)(hidden)
    return keras.Model(image, keras.layers.Dense(1)(keras.layers.Flatten()(hidden)))
"""
_FLIGHTS = "wide_deep on flights"
_DENSE = {"features": {"x": {"type": "numeric"}}, "estimator": "dnn_classifier"}
_MODELS: dict[str, dict[str, Any]] = {
    "dense, 1 M parameters": {
        **_DENSE, "parameters": {"hidden_units": [512, 512, 1024]}, "batch": 2048, "shape": [256],
    },
    _FLIGHTS: {"batch": 512},
    "convolution": {"module": "model.py", "task": "binary", "batch": 128, "shape": [32, 32, 3]},
    "embedding, 200 k rows": {
        "estimator": "dnn_classifier", "parameters": {"hidden_units": [256, 128]}, "batch": 1024, "shape": [32],
        "features": {
            "x": {"type": "numeric"},
            "item": {"type": "identity", "size": 200_000, "out_of_range": "clip"},
            "item_vector": {"type": "embedding", "of": "item", "dimension": 32},
        },
    },
}  # fmt: skip


def main() -> None:
    """Prints the tables and writes build/bench/scaling.json and scaling-exchange.json."""
    rows = [row for name in _MODELS for row in _rows_of(name)]
    heavy = next(iter(_MODELS))
    alone = _measured({"model": heavy, "processes": 1})
    rows += [_row_of("  by collectives", heavy, 2, alone, exchange="collectives")]
    lighter = ({"compress": "bfloat16"}, {"local_steps": _BATCHES})
    rows += [_lighter_row(heavy, training) for training in lighter]
    rows += [_strategy_row(heavy, kind, processes) for kind, processes in (("mirrored", 1), ("multi-worker", 2))]
    publish(
        "scaling",
        f"One round on several processes, {_SHARDS} shards",
        rows,
        notes=[
            f"medians of {_REPEATS} blocks of {_BATCHES} batches after one that compiles; one thread for each process",
            f"{os.cpu_count()} cores: 4 processes share them",
            "MirroredStrategy: two logical CPUs of one process; loops of our own: Keras 3's fit fails under the other",
        ],
    )
    _publish_exchange()


def _rows_of(name: str) -> list[dict[str, str | int | float | None]]:
    alone = _measured({"model": name, "processes": 1})
    return [_row(name, 1, alone, alone, None), *(_row_of(name, name, processes, alone) for processes in (2, 4))]


def _row_of(
    title: str, model: str, processes: int, alone: dict[str, Any], **how: str
) -> dict[str, str | int | float | None]:
    found = _measured({"model": model, "processes": processes, **how})
    memory, collectives = (
        _measured({"floats": alone["floats"], "processes": processes, "exchange": exchange})["seconds"]
        for exchange in ("memory", "collectives")
    )
    row = _row(title, processes, found, alone, collectives if how else memory)
    return row | {"by collectives": collectives * 1000}


def _row(
    name: str, processes: int, found: dict[str, Any], alone: dict[str, Any], exchange: float | None
) -> dict[str, str | int | float | None]:
    is_aim = processes == 2 and name == next(iter(_MODELS))
    seconds = found["seconds"]
    computing = alone["seconds"] / processes
    return {
        "model": name,
        "processes": processes,
        "examples/s": round(found["batch"] / seconds),
        "times one": alone["seconds"] / seconds,
        "target": _SPEED_TARGET if is_aim else None,
        "ms/step": seconds * 1000,
        "computing": computing * 1000,
        "exchange": None if exchange is None else exchange * 1000,
        "by collectives": None,
        "share": None if exchange is None else exchange / seconds,
        "limit": _EXCHANGE_TARGET if is_aim else None,
        "rest": None if exchange is None else (seconds - computing - exchange) * 1000,
        "MB received": None if exchange is None else _bytes_received(found["floats"], processes) / 1e6,
    }


def _bytes_received(floats: int, processes: int, shards: int = _SHARDS) -> float:
    """By each process in a step. Two have of each other all that it has added up of the tree of shards. More of them
    have their part of that from each of the others, and then the others' parts of the sum."""
    parts = max(
        len(parts_of(whole(shards), owned_shards(rank, workers=processes, shards=shards))) for rank in range(processes)
    )
    if processes == 2:
        return 4 * floats * parts
    return (processes - 1) / processes * 4 * floats * (parts + 1)


def _lighter_row(name: str, training: dict[str, Any]) -> dict[str, str | int | float | None]:
    """With less to exchange, on two processes; against a process that computes the same."""
    alone, found = (_measured({"model": name, "processes": count, "training": training}) for count in (1, 2))
    listed = ", ".join(f"{key}: {value}" for key, value in training.items())
    return _row(f"  {listed}", 2, found, alone, None) | {"target": _SPEED_TARGET}


def _strategy_row(name: str, kind: str, processes: int) -> dict[str, str | int | float | None]:
    found = _measured({"model": name, "strategy": kind, "processes": processes})
    titles = {"mirrored": "MirroredStrategy", "multi-worker": "MultiWorkerMirroredStrategy"}
    row = _row(f"  {titles[kind]}", processes, found, found, None)
    return row | {"processes": 2, "times one": None, "computing": None}


def _publish_exchange() -> None:
    found = {
        (processes, floats): _measured({"floats": floats, "processes": processes, "exchange": "collectives"})["seconds"]
        for processes in (2, 4)
        for floats in _EXCHANGED_FLOATS
    }
    design = np.array([[p - 1, _bytes_received(floats, p)] for p, floats in found])
    latency, seconds_per_byte = np.linalg.lstsq(design, np.array(list(found.values())), rcond=None)[0]
    heavy = _measured({"model": next(iter(_MODELS)), "processes": 1})
    rows: list[dict[str, str | int | float | None]] = []
    for processes in _EXTRAPOLATED:
        received = _bytes_received(heavy["floats"], processes, shards=max(processes, _SHARDS))
        exchange = (processes - 1) * latency + received * seconds_per_byte
        step = heavy["seconds"] / processes + exchange
        measured = found.get((processes, 1_000_000))
        rows.append({
            "processes": processes,
            "exchange of 1 M floats, ms": None if measured is None else measured * 1000,
            "fitted": ((processes - 1) * latency + _bytes_received(1_000_000, processes) * seconds_per_byte) * 1000,
            "expected times one": heavy["seconds"] / step,
            "exchange share": exchange / step,
        })  # fmt: skip
    publish(
        "scaling-exchange",
        "What an exchange by collectives costs, and what it leaves of more processes with a core each",
        rows,
        notes=["the same global batch on all: the computing is divided, the exchange is not"],
        facts={"latency us": latency * 1e6, "bandwidth MB/s": 1e-6 / seconds_per_byte},
    )


def _measured(question: dict[str, Any]) -> dict[str, Any]:
    """In a separate process: {"seconds": of a step, "batch", "floats": exchanged in a step}."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scaling", json.dumps(question)],
        stdout=subprocess.PIPE, timeout=_TIMEOUT_SECONDS, check=True, text=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    processes = question["processes"]
    if processes == 1:
        return _act(question, Team())
    act = _act
    memory = SharedMemory(processes) if question.get("exchange", "memory") == "memory" else None

    def work(rank: int, cluster: ClusterSpec) -> None:
        if "strategy" in question:
            os.environ["TF_CONFIG"] = cluster.to_json()
        else:
            _set_up()
            join_cluster(cluster)
        act(question, Team(rank, processes, memory=memory))

    workers = LocalWorkers(on_this_machine(processes), processes, work)
    if "strategy" in question:
        os.environ["TF_CONFIG"] = workers.cluster.to_json()
    else:
        _set_up()
        workers.connect()
    try:
        return act(question, Team(0, processes, memory=memory))
    finally:
        workers.release()


def _act(question: dict[str, Any], team: Team) -> dict[str, Any]:
    if "strategy" in question:
        return _strategy(question)
    if "floats" in question:
        return _exchange(question["floats"], team)
    if team.workers == 1:
        _set_up()
    return _training(question["model"], team, question.get("training", {}))


def _set_up() -> None:
    determinism.configure(intra_op_threads=1, inter_op_threads=1)


def _training(name: str, team: Team, more: dict[str, Any]) -> dict[str, Any]:
    batch = _MODELS[name]["batch"]
    training = {"batch_size": batch, "shards": _SHARDS, **more}
    with tempfile.TemporaryDirectory() as directory:
        model, block = _prepared(name, training, batch * _BATCHES, Path(directory))
        learner = adapters.trainable_of(model, seed=1, team=team)
        assert isinstance(learner, Training)
        seconds = _median(lambda: learner.train_block(block, pass_index=0, block_index=0)) / _BATCHES
        floats = sum(int(np.prod(array.shape)) for path, array in learner.captured().items() if "optimizer" not in path)
        if "item_vector" in _MODELS[name].get("features", {}):
            floats += batch * 32 - 200_000 * 32  # rows travel, not the table
        return {"seconds": seconds, "batch": batch, "floats": floats}


def _prepared(name: str, training: dict[str, Any], rows: int, directory: Path) -> tuple[BuiltModel, TrainingSet]:
    if name == _FLIGHTS:
        arrays = flights(rows)
        example = built("flights", arrays, directory, training=training)
        return example, training_set(example, arrays, rows)
    described = _MODELS[name]
    shape = described["shape"]
    sections = {key: value for key, value in described.items() if key not in ("batch", "shape")}
    mapping = {"name": "m", "stream": "s", "label": "y", **sections, "training": training}
    files = {"model.yaml": yaml.safe_dump(mapping).encode()}
    if "module" in described:
        files["model.py"] = _CONVOLUTION.encode()
    schema = Schema.from_mapping({
        "features": [{"name": "item", "dtype": "int64"}, {"name": "x", "dtype": "float32", "shape": shape}],
        "labels": [{"name": "y", "dtype": "int64", "min": 0, "max": 1}],
    })  # fmt: skip
    model = model_of(files, schema, {}, directory)
    item, x, y = _arrays(rows, shape)
    columns = model.transformed({"item": tf.constant(item), "x": tf.constant(x)}).columns
    return model, TrainingSet(columns, {"y": tf.constant(y)}, {"y": tf.ones(rows)}, rows)


def _arrays(rows: int, shape: list[int]) -> tuple[Any, Any, Any]:
    draws = np.random.default_rng(1)
    x = draws.normal(size=(rows, *shape)).astype(np.float32)
    return draws.integers(0, 200_000, (rows, 1)), x, draws.integers(0, 2, rows)


def _exchange(floats: int, team: Team) -> dict[str, Any]:
    """The shards' rows, as a step gathers them, and nothing else."""
    exchange = team.exchange(_SHARDS)
    rows = [tf.ones([floats])] * len(exchange.owned)

    @tf.function  # type: ignore[untyped-decorator]
    def steps() -> tf.Tensor:
        exchange.begin()
        total = tf.zeros([floats])
        for _ in tf.range(10):
            total = total + exchange.combined(rows, tf.add, tf.zeros([0]))[0]
        return tf.reduce_sum(total)

    return {"seconds": _median(lambda: steps().numpy()) / 10}


def _strategy(question: dict[str, Any]) -> dict[str, Any]:
    """TensorFlow's own data parallelism over the heavy model, two replicas, in a loop of ours."""
    settings = _MODELS[question["model"]]
    batch, shape = settings["batch"], settings["shape"]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    if question["strategy"] == "mirrored":
        whole = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(whole, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy: Any = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    else:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [keras.layers.Dense(units, activation="relu") for units in settings["parameters"]["hidden_units"]]
        network = keras.Sequential([keras.Input(tuple(shape)), *layers, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(network.trainable_variables)
    rows = batch * _BATCHES
    _, x, y = _arrays(rows, shape)
    data = tf.data.Dataset.from_tensor_slices((x, y[:, None].astype(np.float32))).batch(batch, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    halves = strategy.experimental_distribute_dataset(data.with_options(options))
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")

    def step(inputs: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(inputs[1], network(inputs[0], training=True)) / batch
        optimizer.apply_gradients(
            zip(tape.gradient(loss, network.trainable_variables), network.trainable_variables, strict=True)
        )

    @tf.function  # type: ignore[untyped-decorator]
    def one_step(inputs: Any) -> None:
        strategy.run(step, args=(inputs,))

    def block() -> None:
        for inputs in halves:
            one_step(inputs)

    return {"seconds": _median(block) / _BATCHES, "batch": batch, "floats": 0}


def _median(act: Callable[[], Any]) -> float:
    act()
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_answer(json.loads(sys.argv[1]))), flush=True)
    else:
        main()
