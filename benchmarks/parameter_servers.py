"""Asynchronous training by Headrace's parameter servers and by TensorFlow's, with 1, 2 and 4 workers and a death.

TensorFlow's is what its guide recommends: `ParameterServerStrategy` with `ClusterCoordinator.schedule`, a function for
each batch, workers that make their own batches. Headrace's chief sends each batch to a worker. Both train the same
dense network by gradient descent: one server, one thread for each process. Keras's optimizers are left out of
TensorFlow's side (decision 14 says why); the variables are `tf.Variable`, updated on the server.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a fork needs a process of one thread
os.environ["GRPC_FAIL_FAST"] = "use_caller"  # as TensorFlow's guide asks for it

import numpy as np
import tensorflow as tf
import yaml

from benchmarks.report import Cell, publish
from common.definition.asynchronous import Asynchronous
from common.definition.model import Definition, parse_definition
from common.process.lifecycle import die_with_parent
from common.schema import Schema
from services.trainer import determinism
from services.trainer.families.model import BuiltModel
from services.trainer.families.port import TrainingSet
from services.trainer.learn import adapters
from services.trainer.learn.asynchronous import server_optimizer
from services.trainer.learn.training import Training
from services.trainer.parameters import wire
from services.trainer.parameters.coordinator import Coordinator
from services.trainer.parameters.peers import Peer
from services.trainer.parameters.server import ParameterServer
from services.trainer.parameters.worker import Worker
from services.trainer.shards.team import Team
from testing.processes import free_port

_BATCH, _STEPS, _INPUTS, _HIDDEN = 512, 24, 256, (512, 512, 1024)
_WORKERS = (1, 2, 4)
_TIMEOUT_SECONDS = 75
_KINDS = {"own": "Headrace", "coordinator": "ClusterCoordinator.schedule"}
_SCHEMA = Schema.from_mapping({
    "features": [{"name": "x", "dtype": "float32", "shape": [_INPUTS]}],
    "labels": [{"name": "y", "dtype": "int64", "min": 0, "max": 1}],
})  # fmt: skip


def main() -> None:
    """Prints the table and writes build/bench/parameter_servers.json."""
    rows = list[dict[str, Cell]]()
    for kind, title in _KINDS.items():
        alone = None
        for workers, dies in [*((count, False) for count in _WORKERS), (2, True)]:
            found = _measured({"kind": kind, "workers": workers, "dies": dies})
            print(title, workers, dies, found, file=sys.stderr, flush=True)
            seconds = found.get("seconds")
            alone = alone or seconds
            rows.append({
                "who": title + (", one worker killed" if dies else ""),
                "workers": workers,
                "examples/s": round(_BATCH * _STEPS / seconds) if seconds else None,
                "times one": alone / seconds if seconds and alone else None,
                "steps counted": found.get("steps"),
                "of": _STEPS,
                "what happened": found.get("said", ""),
            })  # fmt: skip
    publish(
        "parameter_servers",
        "Asynchronous training: examples a second by workers, and what a death costs",
        rows,
        notes=[
            f"{_STEPS} steps of {_BATCH} examples after as many to warm up; one server; one thread for each process",
            f"{os.cpu_count()} cores: with 4 workers more processes than cores",
        ],
    )


def _measured(question: dict[str, Any]) -> dict[str, Any]:
    """In a separate process: {"seconds", "steps", "said"}."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.parameter_servers", json.dumps(question)],
            stdout=subprocess.PIPE, timeout=_TIMEOUT_SECONDS, check=True, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"said": f"not ended after {_TIMEOUT_SECONDS} s"}
    except subprocess.CalledProcessError as error:
        return {"said": f"ended with {error.returncode}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    run = _own if question["kind"] == "own" else _by_coordinator
    return run(question["workers"], dies=question["dies"])


def _timed(block: Callable[[], None], victim: int, *, dies: bool) -> float:
    """Seconds of a second block; a third into it the victim is killed."""
    began = time.perf_counter()
    block()
    warm = time.perf_counter() - began
    began = time.perf_counter()
    if dies:
        killing = threading.Timer(warm / 3, os.kill, (victim, signal.SIGKILL))
        killing.start()
    block()
    return time.perf_counter() - began


# Headrace


def _own(workers: int, *, dies: bool) -> dict[str, Any]:
    definition = parse_definition({"model.yaml": yaml.safe_dump(_mapping(workers)).encode()})
    pair = partial(socket.socketpair, socket.AF_UNIX, socket.SOCK_STREAM)
    to_server, to_workers, between = pair(), [pair() for _ in range(workers)], [pair() for _ in range(workers)]
    everything = [connection for ends in [to_server, *to_workers, *between] for connection in ends]
    of_server = [to_server[1], *(theirs for _, theirs in between)]
    server = _forked(lambda: _serve(definition, of_server), _without(everything, of_server))
    pids = list[int]()
    for (_, chief), (to_server_of_rank, _) in zip(to_workers, between, strict=True):
        live = partial(_work, definition, chief, to_server_of_rank)
        pids.append(_forked(live, _without(everything, [chief, to_server_of_rank])))
    peers = [Peer(rank, to_workers[rank][0], pid) for rank, pid in enumerate(pids)]
    for connection in _without(everything, [to_server[0], *(ours for ours, _ in to_workers)]):
        connection.close()
    determinism.configure(intra_op_threads=1, inter_op_threads=1)
    options = Asynchronous(workers=workers)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "nothing").write_bytes(b"")
        servers = [Peer(0, to_server[0], server)]
        coordinator = Coordinator(options, peers, servers, checkpoint=Path(folder), straggler_seconds=60.0)
        model = _built(definition)
        training = Training(model, seed=1, team=Team(coordinator=coordinator))
        x, y = _arrays()
        columns = {"x": tf.constant(x)}
        block = TrainingSet(columns, {"y": tf.constant(y)}, {"y": tf.ones(len(y))}, len(y))
        numbers = iter(range(100))
        seconds = _timed(
            lambda: _all_finite(training.train_block(block, pass_index=0, block_index=next(numbers))),
            pids[-1], dies=dies,
        )  # fmt: skip
        figures = coordinator.figures()
        coordinator.close()
    return {"seconds": seconds, "steps": training.step - _STEPS, "said": "; ".join(figures["lost"])}


def _all_finite(losses: Any) -> None:
    assert len(losses) == _STEPS
    assert np.isfinite(losses).all()


def _mapping(workers: int) -> dict[str, Any]:
    return {
        "name": "m", "stream": "s", "label": "y", "estimator": "dnn_classifier", "features": {"x": {"type": "numeric"}},
        "parameters": {"hidden_units": list(_HIDDEN)},
        "training": {
            "batch_size": _BATCH, "optimizer": {"name": "sgd", "learning_rate": 0.01},
            "asynchronous": {"workers": workers}, "on_not_finite": "fail",
        },
    }  # fmt: skip


def _built(definition: Definition, *, contributes: bool = False) -> BuiltModel:
    model = adapters.build(definition, _SCHEMA, {}, None, seed=1, contributes=contributes)
    assert isinstance(model, BuiltModel)
    return model


def _serve(definition: Definition, connections: list[socket.socket]) -> None:
    server = ParameterServer(partial(server_optimizer, definition.training))
    for connection in connections[1:]:
        threading.Thread(target=server.serve, args=(connection,), daemon=True).start()
    server.serve(connections[0])


def _work(definition: Definition, chief: socket.socket, server: socket.socket) -> None:
    request, _ = wire.receive(chief)
    contributor = adapters.contributor_of(_built(definition, contributes=True))
    worker = Worker(chief, [server], contributor, request["placement"])
    wire.send(chief, {"ready": True})
    worker.work()


def _without(connections: list[socket.socket], own: list[socket.socket]) -> list[socket.socket]:
    return [connection for connection in connections if connection not in own]


def _forked(live: Callable[[], None], others: Sequence[socket.socket] = ()) -> int:
    """`others`: connections that are not the process's; a death is seen once no other process holds its end."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    try:
        for connection in others:
            connection.close()
        die_with_parent(parent)
        determinism.configure(intra_op_threads=1, inter_op_threads=1)
        live()
    finally:
        os._exit(0)


def _arrays() -> tuple[Any, Any]:
    draws = np.random.default_rng(1)
    rows = _BATCH * _STEPS
    return draws.normal(size=(rows, _INPUTS)).astype(np.float32), draws.integers(0, 2, rows)


# TensorFlow


def _by_coordinator(workers: int, *, dies: bool) -> dict[str, Any]:
    ports = [f"127.0.0.1:{free_port()}" for _ in range(workers + 1)]
    spec = tf.train.ClusterSpec({"worker": ports[:-1], "ps": ports[-1:]})
    pids = [_forked(partial(_tensorflow_server, spec, "worker", rank)) for rank in range(workers)]
    _forked(partial(_tensorflow_server, spec, "ps", 0))
    determinism.configure(intra_op_threads=1, inter_op_threads=workers + 1)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        layers = _layers()
        counter = tf.Variable(0, dtype=tf.int64)

    def data() -> tf.data.Dataset:
        x = tf.random.stateless_normal([_BATCH, _INPUTS], [1, 1])
        y = tf.random.stateless_uniform([_BATCH, 1], [1, 2], maxval=2, dtype=tf.int32)
        return tf.data.Dataset.from_tensors((x, tf.cast(y, tf.float32))).repeat()

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> tf.Tensor:
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            for number, (kernel, bias) in enumerate(layers):
                x = x @ kernel + bias
                x = tf.nn.relu(x) if number < len(layers) - 1 else x
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, x))
        flat = [gradient for layer in layers for gradient in layer]
        for variable, gradient in zip(flat, tape.gradient(loss, flat), strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=0.01, delta=gradient)
        tf.raw_ops.AssignAddVariableOp(resource=counter.handle, value=tf.constant(1, tf.int64))
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(data))

    def block() -> None:
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(_STEPS)]
        coordinator.join()
        assert np.isfinite([loss.fetch() for loss in losses]).all()

    seconds = _timed(block, pids[-1], dies=dies)
    print(json.dumps({"seconds": seconds, "steps": int(counter.numpy()) - _STEPS, "said": ""}), flush=True)
    os._exit(0)  # the coordinator's threads wait for workers that may be gone


def _layers() -> list[tuple[tf.Variable, tf.Variable]]:
    sizes, found = (_INPUTS, *_HIDDEN, 1), []
    for rows, columns in pairwise(sizes):
        kernel = tf.random.stateless_normal([rows, columns], [rows, columns], stddev=rows**-0.5)
        found.append((tf.Variable(kernel), tf.Variable(tf.zeros([columns]))))
    return found


def _tensorflow_server(spec: tf.train.ClusterSpec, job: str, task: int) -> None:
    threads = len(spec.as_dict()["worker"]) + 1  # with fewer a server of many workers hangs
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=threads)
    tf.distribute.Server(spec, job_name=job, task_index=task, protocol="grpc", config=config).join()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_answer(json.loads(sys.argv[1]))), flush=True)
    else:
        main()
