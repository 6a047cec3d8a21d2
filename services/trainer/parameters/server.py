"""One parameter server: some variables, their part of the optimizer, and what workers and the chief ask of them.

A request is a header with `do`, and arrays; each has one answer.

    build    chief     {"optimizer", "factors": {path: factor}, "running": [path]}; the variables' values
    load     chief     {"attempt"}: a new run over batches; the values of what the chief has changed since
    fetch    anybody   {"since": version}: what has changed after that version, as `v:` and `r:` arrays; of a variable
                       for which `l:` names rows, these rows as `s:`, changed or not, and nothing else
    push     worker    {"attempt", "batch", "seen": version, "step", "of": gradients of the step}; the gradients

Arrays by prefix of their name: v: a value, d: a dense gradient, i: and g: the rows of a gradient of looked-up rows and
their gradients, a: what is added to a moving average; r: and l: the numbers of rows, s: their values.

A batch counts once however often it is pushed, so that a worker's batch can be computed again by another.
"""

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.definition.asynchronous import ROUND_ROBIN
from services.trainer.keras_internals import name_variable
from services.trainer.parameters import wire

_BY_ROW = ("SGD", "Adagrad")
"""Optimizers that leave the rows alone that a gradient does not name, unless they are asked for more."""
MakeOptimizer = Callable[
    [Mapping[str, Any], list[keras.Variable], Mapping[str, float]],
    tuple[keras.optimizers.Optimizer, dict[str, keras.Variable]],
]
"""How the chief describes it, variables, and factors of their rates by path; to a built optimizer and its slots by
path."""


class ParameterServer:
    """Thread-safe; one update at a time."""

    def __init__(self, make_optimizer: MakeOptimizer) -> None:
        self._make_optimizer = make_optimizer
        self._lock = threading.Lock()
        self._taught = dict[str, keras.Variable]()
        self._running = dict[str, keras.Variable]()
        self._slots = dict[str, keras.Variable]()
        self._attempt = -1
        self._version = 0
        self._pushed = set[int]()
        self._gathered = dict[int, list[dict[str, NDArray[Any]]]]()
        self._changed_at = dict[str, int]()
        self._rows_changed_at = dict[str, NDArray[np.int64]]()
        self._apply = tf.function(self._applied, autograph=False, reduce_retracing=True)

    def serve(self, connection: socket.socket) -> None:
        """Until the other side is gone."""
        answers = {"build": self._build, "load": self._load, "fetch": self._fetch, "push": self._push}
        while True:
            try:
                request, arrays = wire.receive(connection)
            except OSError:
                return
            try:
                with self._lock:
                    answer, given = answers[request["do"]](request, arrays)
            except Exception as error:  # the chief decides what becomes of the round
                answer, given = {"error": f"{type(error).__name__}: {error}"}, {}
            try:
                wire.send(connection, answer, given)
            except OSError:
                return

    def _build(self, request: dict[str, Any], arrays: wire.Arrays) -> tuple[dict[str, Any], wire.Arrays]:
        for name, value in arrays.items():
            path = name.partition(":")[2]
            variable = keras.Variable(value, dtype=tf.as_dtype(value.dtype).name, name="variable")
            name_variable(variable, path)
            (self._running if path in request["running"] else self._taught)[path] = variable
        optimizer, self._slots = self._make_optimizer(
            request["optimizer"], [*self._taught.values()], request["factors"]
        )
        self._optimizer = optimizer
        self._is_by_row = type(optimizer).__name__ in _BY_ROW and not (
            getattr(optimizer, "momentum", 0) or optimizer.weight_decay or optimizer.use_ema
        )
        self._changed_at = dict.fromkeys(self._all(), 0)
        return {}, {}

    def _all(self) -> dict[str, keras.Variable]:
        return {**self._taught, **self._running, **self._slots}

    def _load(self, request: dict[str, Any], arrays: wire.Arrays) -> tuple[dict[str, Any], wire.Arrays]:
        variables = self._all()
        self._version += 1
        for name, value in arrays.items():
            path = name.partition(":")[2]
            if path in variables:
                variables[path].assign(value)
                self._changed(path)
        self._attempt, self._pushed, self._gathered = request["attempt"], set(), {}
        return {"version": self._version}, {}

    def _changed(self, path: str) -> None:
        self._changed_at[path] = self._version
        self._rows_changed_at.pop(path, None)

    def _fetch(self, request: dict[str, Any], arrays: wire.Arrays) -> tuple[dict[str, Any], wire.Arrays]:
        since, found = request["since"], dict[str, NDArray[Any]]()
        variables = self._all() if request.get("with_slots") else {**self._taught, **self._running}
        for path, variable in variables.items():
            looked_up = arrays.get(f"l:{path}")
            if looked_up is not None:
                found[f"s:{path}"] = tf.gather(variable.value, looked_up).numpy()
            elif self._changed_at[path] > since:
                found[f"v:{path}"] = variable.value.numpy()
            elif path in self._rows_changed_at:
                rows = np.flatnonzero(self._rows_changed_at[path] > since)
                if len(rows):
                    found |= {f"r:{path}": rows, f"s:{path}": tf.gather(variable.value, rows).numpy()}
        return {"version": self._version}, found

    def _push(self, request: dict[str, Any], arrays: wire.Arrays) -> tuple[dict[str, Any], wire.Arrays]:
        staleness = self._version - request["seen"]
        if request["attempt"] != self._attempt or request["batch"] in self._pushed:
            return {"staleness": staleness}, {}
        self._pushed.add(request["batch"])
        gathered = self._gathered.setdefault(request["step"], [])
        gathered.append(dict(arrays))
        if len(gathered) == request["of"]:
            self._step(self._gathered.pop(request["step"]))
        return {"staleness": staleness}, {}

    def _step(self, gathered: list[dict[str, NDArray[Any]]]) -> None:
        """One update with the mean of what has come."""
        share = np.float32(1 / len(gathered))
        self._version += 1
        dense = {
            path: sum((part[f"d:{path}"] for part in gathered[1:]), gathered[0][f"d:{path}"]) * share
            for path in _named(gathered[0], "d:")
        }
        rows = {
            path: tf.IndexedSlices(
                tf.constant(np.concatenate([part[f"g:{path}"] for part in gathered]) * share),
                tf.constant(np.concatenate([part[f"i:{path}"] for part in gathered])),
                tf.constant(self._taught[path].shape, tf.int64),
            )
            for path in _named(gathered[0], "i:")
        }
        added = {
            path: sum((part[f"a:{path}"] for part in gathered[1:]), gathered[0][f"a:{path}"]) * share
            for path in _named(gathered[0], "a:")
        }
        self._apply({path: tf.constant(value) for path, value in dense.items()}, rows, added)
        for path in [*dense, *added, *(set(self._slots) - set(self._of_rows(rows)))]:
            self._changed(path)
        for path, slices in rows.items():
            for moved in (path, *self._slots_of(path)):
                self._rows_changed(moved, slices.indices.numpy())
        if not self._is_by_row:
            for path in rows:
                self._changed(path)

    def _applied(self, dense: Any, rows: Any, added: Any) -> None:
        for path, delta in added.items():
            self._running[path].assign_add(tf.cast(delta, self._running[path].dtype))
        found = {**dense, **rows}
        if not found:
            self._optimizer.iterations.assign_add(1)
            return
        paths = [path for path in self._taught if path in found]
        self._optimizer.apply([found[path] for path in paths], [self._taught[path] for path in paths])

    def _slots_of(self, path: str) -> list[str]:
        marker = f"/{path.replace('/', '_')}_"
        shape = self._taught[path].shape
        return [
            slot for slot, slot_variable in self._slots.items() if marker in f"/{slot}" and slot_variable.shape == shape
        ]

    def _of_rows(self, rows: Any) -> list[str]:
        return [slot for path in rows for slot in self._slots_of(path)] if self._is_by_row else []

    def _rows_changed(self, path: str, rows: NDArray[np.int64]) -> None:
        known = self._rows_changed_at.get(path)
        if known is None:
            rows_of_table = self._all()[path].shape[0]
            known = self._rows_changed_at[path] = np.full(rows_of_table, -1, np.int64)
        known[rows] = self._version


def _named(arrays: Mapping[str, Any], prefix: str) -> list[str]:
    return [name[len(prefix) :] for name in arrays if name.startswith(prefix)]


def placed(sizes: Mapping[str, int], servers: int, rule: str) -> dict[str, int]:
    """Which server holds which variable: path to number of the server.

    round_robin   in turns, in the order of the variables
    greedy        the largest first, each to the server that has the fewest bytes so far

    Args:
        sizes: of each variable, in bytes.
    """
    if rule == ROUND_ROBIN:
        return {path: index % servers for index, path in enumerate(sizes)}
    loads, found = [0] * servers, dict[str, int]()
    for path in sorted(sizes, key=lambda path: -sizes[path]):
        found[path] = loads.index(min(loads))
        loads[found[path]] += sizes[path]
    return {path: found[path] for path in sizes}
