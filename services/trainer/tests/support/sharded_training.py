"""`main()`: teams in, digests of what they trained out.

One JSON object a line in: {"workers", "exchange": memory or collectives, "devices", "model": plain, estimator or
module, "examples" of a block, "training": more keys of it, "directory", "kill" or "halt": a rank, "log": a file,
"reduction", and "graph": whether to say how many products and sums of the step's graph are on which device}. One a
line out: {"digest", "losses"} of the chief, "placement" where layers have devices, or {"lost": sentence}. The log has a
line per worker for each beginning (even) and end (odd) of an exchange: first shard, number, seconds. Each team trains
in processes of its own, forked from this one, which has imported TensorFlow and run nothing.
"""

import hashlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer import determinism
from services.trainer.families.port import TrainingSet
from services.trainer.families.user_module import load_module
from services.trainer.features.parsing import Raw
from services.trainer.learn import adapters
from services.trainer.learn.training import Training
from services.trainer.rounds.teamwork import LOST_SECONDS, LocalWorkers, join_cluster
from services.trainer.shards.cluster_spec import ClusterSpec, on_this_machine
from services.trainer.shards.exchange import Combine, Exchange
from services.trainer.shards.shared_memory import SharedMemory
from services.trainer.shards.team import Team, WorkerLostError, use_devices
from testing.waiting import wait_until

_EXAMPLES = 403
_SCHEMA = {
    "features": [{"name": "item", "dtype": "int64"}, {"name": "x", "dtype": "float32", "shape": [4]}],
    "labels": [{"name": "y", "dtype": "int64"}],
}
_TRAINING = {"batch_size": 50, "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}}
"""With a slot for each weight, of a third of Adam's operations."""
_ESTIMATOR = {
    "estimator": "wide_deep_classifier",
    "features": {
        "item": {"type": "identity", "size": 40, "out_of_range": "clip"},
        "item_vector": {"type": "embedding", "of": "item", "dimension": 3},
        "x": {"type": "numeric"},
    },
    "parameters": {"hidden_units": [8], "dropout": 0.2, "l2": 0.01},
}
_MODULE = """
import keras

def build_model(schema, parameters):
    item = keras.Input((), dtype="int64", name="item")
    x = keras.Input((4,), name="x")
    both = keras.layers.Concatenate()([keras.layers.Embedding(40, 3)(item), x])
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, kernel_regularizer="l2")(both))
    return keras.Model({"item": item, "x": x}, keras.layers.Dense(1)(keras.layers.Dropout(0.3)(hidden)))

def hook_state(network):
    return {"seen": 0, "losses": 0.0}

def before_step(run, features, labels):
    run.state["seen"].assign_add(keras.ops.size(labels))

def after_step(run, loss, kept):
    run.state["losses"].assign_add(loss)
"""
"""Beside dense weights: a sparse gradient, moving averages, draws, regularisation, hooks."""


def _files(model: str, training: dict[str, Any]) -> dict[str, bytes]:
    sections = {"module": "model.py", "task": "binary"} if model == "module" else _ESTIMATOR
    if model == "plain":
        sections = {**_ESTIMATOR, "parameters": {"hidden_units": [8]}}
    mapping = {"name": "m", "stream": "s", "label": "y", **sections, "training": _TRAINING | training}
    files = {"model.yaml": yaml.safe_dump(mapping).encode()}
    return files | {"model.py": _MODULE.encode()} if model == "module" else files


def _trained(question: dict[str, Any], team: Team) -> dict[str, Any]:
    files, schema = _files(question["model"], question["training"]), Schema.from_mapping(_SCHEMA)
    definition = parse_definition(files)
    module = (
        load_module(files, "model.py", digest=f"r{team.rank}", directory=Path(question["directory"]))
        if (definition.module)
        else None
    )
    training = adapters.trainable_of(adapters.build(definition, schema, {}, module, seed=3), seed=3, team=team)
    assert isinstance(training, Training)
    model = training.model
    losses = list[float]()
    for block in range(2):
        if block == 1 and team.rank and team.rank in (question.get("kill"), question.get("halt")):
            os.kill(os.getpid(), signal.SIGKILL if "kill" in question else signal.SIGSTOP)
        examples = _block(model, block, question.get("examples", _EXAMPLES))
        of_block = training.train_block(examples, pass_index=0, block_index=block)
        losses += of_block.tolist()
    digest = hashlib.sha256()
    for path, array in sorted(training.captured().items()):
        digest.update(path.encode() + array.tobytes())
    placed = model.placement.report() if training.model.definition.training.devices else {}
    told: dict[str, Any] = {"digest": digest.hexdigest(), "losses": losses} | ({"placement": placed} if placed else {})
    told |= {"compared": training.ways["workers_compared"]} if team.is_compared and team.is_chief else {}
    return told | ({"graph": _by_device(training)} if question.get("graph") else {})


def _by_device(training: Training) -> dict[str, dict[str, int]]:
    """How many operations of the step's graph are asked to be on which device, by type."""
    compiled: Any = training._steps._compiled
    graph = compiled.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    counts = {kind: Counter(node.device for node in nodes if node.op == kind) for kind in ("MatMul", "AddV2")}
    return {
        kind: {device.rpartition("device:")[2]: count for device, count in by.items() if device}
        for kind, by in counts.items()
    }


def _block(model: Any, index: int, count: int) -> TrainingSet:
    draws = np.random.default_rng(index)
    item = draws.integers(0, 40, (count, 1))
    x = draws.normal(size=(count, 4)).astype(np.float32)
    labels = tf.constant((item[:, 0] % 3 + x[:, 0] > 1).astype(np.int64))
    is_module = model.definition.module is not None
    raw: Raw = {"item": tf.constant(item[:, 0] if is_module else item), "x": tf.constant(x)}
    weights = tf.cast(tf.range(count) % 4, tf.float32)
    return TrainingSet(model.transformed(raw).columns, {"y": labels}, {"y": weights}, count)


def _set_up(question: dict[str, Any]) -> tuple[str, ...]:
    determinism.configure(intra_op_threads=1, inter_op_threads=1)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # as in pytest's own process
    return use_devices(question["devices"])


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own, which has one thread."""
    count, patience = question["workers"], 6.0 if "halt" in question else 120.0
    if log := question.get("log"):
        _log_exchanges(Path(log))
    if count == 1:
        return _trained(question, Team(devices=_set_up(question), reduction=question.get("reduction", "tree")))

    memory = SharedMemory(count) if question.get("exchange", "memory") == "memory" else None

    def work(rank: int, cluster: ClusterSpec) -> None:
        devices = _set_up(question)
        join_cluster(cluster)
        _trained(question, Team(rank, count, devices, patience, memory=memory, is_compared="compare" in question))

    def lost(reason: str) -> None:
        print(json.dumps({"lost": reason}), flush=True)
        os._exit(0)

    workers = LocalWorkers(on_this_machine(count), count, work)
    workers.watch(lost)
    devices = _set_up(question)
    workers.connect()
    try:
        found = _trained(question, Team(0, count, devices, patience, memory=memory, is_compared="compare" in question))
        if log:  # the others have their last sum, too, and are ended below, whether it is noted or not
            wait_until(lambda: _have_all_noted(Path(log), count), "every worker has noted its exchanges")
        return found
    except WorkerLostError as error:
        threading.Event().wait(LOST_SECONDS)  # the watch says which worker it was, where one has ended
        return {"lost": str(error)}
    finally:
        workers.release()


def _log_exchanges(path: Path) -> None:
    """Has each worker write down when it began what it exchanges, and when it had all of it."""
    exchanged = Exchange.combined

    def combined(
        self: Exchange, rows: Sequence[tf.Tensor], combine: Combine, carried: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        count = itertools.count()

        def note(row: Any) -> Any:
            with path.open("a") as file:
                file.write(f"{self.owned.start} {next(count)} {time.monotonic()}\n")
            return row

        noted = [tf.ensure_shape(tf.numpy_function(note, [rows[0]], tf.float32), rows[0].shape), *rows[1:]]
        found, counts = exchanged(self, noted, combine, carried)
        return tf.ensure_shape(tf.numpy_function(note, [found], tf.float32), found.shape), counts

    Exchange.combined = combined  # type: ignore[method-assign]


def _have_all_noted(path: Path, count: int) -> bool:
    notes = Counter(line.split()[0] for line in path.read_text().splitlines())
    return len(notes) == count and len({*notes.values()}) == 1


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                print(json.dumps(_answer(json.loads(line))), flush=True)
                status = 0
            finally:
                os._exit(status)
        os.waitpid(pid, 0)
