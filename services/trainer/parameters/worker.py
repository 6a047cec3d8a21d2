"""One worker of an asynchronous round: it fetches the variables, computes a batch's gradient, and pushes it.

The chief says which batch, with its examples; nothing else of the round's data is read here.

    from the chief    {"do": "batch", "attempt", "batch", "step", "of", "asks"}; c/, l/, w/: columns, labels, weights;
                      n/: what the network counts, as this batch begins with
    to the chief      {"batch", "loss", "added", "staleness", "holding"} and n/ as it ended; or {"batch", "fault",
                      "is_numeric"}; or {"batch", "failed"}. Where a step takes the first gradients only ("asks"),
                      {"batch", "ready"} goes first, and the chief answers {"take", "step", "of"}.

Of what the servers hold ("holding"): `held_bytes`, the most that this worker had at once; `fetched_bytes`, in all;
`rows`, by path of a variable whose rows come with each batch, the most that it had at once.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from services.trainer.parameters import wire

COLUMNS, LABELS, WEIGHTS, COUNTED = "c/", "l/", "w/", "n/"


@dataclass(frozen=True)
class Contribution:
    """What a batch gives.

    Attributes:
        gradients: by path of what learns; a tf.IndexedSlices where rows are looked up, each index once.
        fault: why the examples cannot be learned from; empty where they can.
    """

    loss: float = 0.0
    added: float = 0.0
    gradients: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    is_numeric: bool = False


class Contributor(Protocol):
    """A network that computes gradients and changes nothing but what it counts.

    Attributes:
        taught: what learns and is here whole, by path.
        running: moving averages and other numbers with a point that steps change, by path.
        counted: whole numbers that steps change, generators' states among them, by path.
    """

    @property
    def taught(self) -> Mapping[str, keras.Variable]: ...

    @property
    def running(self) -> Mapping[str, keras.Variable]: ...

    @property
    def counted(self) -> Mapping[str, keras.Variable]: ...

    def looked_up(self, columns: Mapping[str, Any]) -> Mapping[str, NDArray[np.int64]]:
        """Which rows a batch looks up of what learns and is not here, by path."""

    def hold(self, path: str, numbers: NDArray[np.int64], rows: NDArray[Any]) -> None:
        """Takes these rows in place of those that it had; called of each path of `looked_up`, before `contribute`."""

    def contribute(
        self, columns: Mapping[str, Any], labels: Mapping[str, Any], weights: Mapping[str, Any]
    ) -> Contribution:
        """Raises what makes the whole round fail."""


class Worker:
    """Args:
    servers: connections to all of them.
    placement: path to number of the server that holds it.
    """

    def __init__(
        self,
        chief: socket.socket,
        servers: Sequence[socket.socket],
        contributor: Contributor,
        placement: Mapping[str, int],
    ) -> None:
        self._chief, self._servers, self._contributor = chief, servers, contributor
        self._placement = placement
        self._fetched = {**contributor.taught, **contributor.running}
        self._versions = [-1] * len(servers)
        self._whole_bytes = sum(_bytes_of(value) for value in self._fetched.values())
        self._held_bytes = self._fetched_bytes = 0
        self._most_rows = dict[str, int]()

    def work(self) -> None:
        """Until the chief is gone; raises OSError then, or where a server is."""
        while True:
            order, arrays = wire.receive(self._chief)
            answer, counted = self._answer(order, arrays)
            if answer:
                wire.send(self._chief, {"batch": order["batch"], **answer}, counted)

    def _answer(self, order: Mapping[str, Any], arrays: wire.Arrays) -> tuple[dict[str, Any], wire.Arrays]:
        """Nothing, where the gradient came too late for its step."""
        batch = [
            {name.removeprefix(part): tf.constant(value) for name, value in arrays.items() if name.startswith(part)}
            for part in (COLUMNS, LABELS, WEIGHTS)
        ]
        self._fetch(self._contributor.looked_up(batch[0]))
        running = {path: average.value.read_value() for path, average in self._contributor.running.items()}
        for path, variable in self._contributor.counted.items():
            variable.assign(arrays[f"{COUNTED}{path}"])
        found = self._contributor.contribute(*batch)
        if found.fault:
            return {"fault": found.fault, "is_numeric": found.is_numeric}, {}
        if order["asks"]:
            wire.send(self._chief, {"batch": order["batch"], "ready": True})
            decided, _ = wire.receive(self._chief)
            if not decided["take"]:
                return {}, {}
            order = {**order, **decided}
        staleness = self._push(order, found.gradients, running)
        counted = {f"{COUNTED}{path}": counter.value.numpy() for path, counter in self._contributor.counted.items()}
        return {"loss": found.loss, "added": found.added, "staleness": staleness, "holding": self._holding()}, counted

    def _fetch(self, looked_up: Mapping[str, NDArray[np.int64]]) -> None:
        by_server: list[dict[str, NDArray[np.int64]]] = [{} for _ in self._servers]
        for path, rows in looked_up.items():
            by_server[self._placement[path]][path] = rows
        for connection, version, own in zip(self._servers, self._versions, by_server, strict=True):
            rows_by_name = {f"l:{path}": rows for path, rows in own.items()}
            wire.send(connection, {"do": "fetch", "since": version}, rows_by_name)
        held_bytes = self._whole_bytes
        for number, (connection, own) in enumerate(zip(self._servers, by_server, strict=True)):
            answer, arrays = _received(connection, number)
            self._versions[number] = answer["version"]
            self._fetched_bytes += sum(array.nbytes for array in arrays.values())
            take_over(self._fetched, arrays)
            for path, rows in own.items():
                self._contributor.hold(path, rows, arrays[f"s:{path}"])
                held_bytes += arrays[f"s:{path}"].nbytes
                self._most_rows[path] = max(len(rows), self._most_rows.get(path, 0))
        self._held_bytes = max(held_bytes, self._held_bytes)

    def _holding(self) -> dict[str, Any]:
        return {"held_bytes": self._held_bytes, "fetched_bytes": self._fetched_bytes, "rows": self._most_rows}

    def _push(self, order: Mapping[str, Any], gradients: Mapping[str, Any], running: Mapping[str, tf.Tensor]) -> int:
        parts: list[dict[str, NDArray[Any]]] = [{} for _ in self._servers]
        for path, gradient in gradients.items():
            part = parts[self._placement[path]]
            if isinstance(gradient, tf.IndexedSlices):
                part |= {f"i:{path}": gradient.indices.numpy(), f"g:{path}": gradient.values.numpy()}
            else:
                part[f"d:{path}"] = gradient.numpy()
        for path, before in running.items():
            moved = self._contributor.running[path].value.read_value() - before
            parts[self._placement[path]][f"a:{path}"] = moved.numpy()
        kept = {name: order[name] for name in ("attempt", "batch", "step", "of")}
        for connection, part, version in zip(self._servers, parts, self._versions, strict=True):
            wire.send(connection, {"do": "push", **kept, "seen": version}, part)
        found = [_received(connection, number)[0]["staleness"] for number, connection in enumerate(self._servers)]
        return max(found)


def _bytes_of(variable: keras.Variable) -> int:
    return int(np.prod(variable.shape)) * tf.as_dtype(variable.dtype).size


def take_over(variables: Mapping[str, Any], arrays: wire.Arrays) -> list[str]:
    """Sets the variables to what a server gave of them; the paths of those."""
    for name, value in arrays.items():
        kind, _, path = name.partition(":")
        if kind == "v":
            variables[path].assign(value)
        elif kind == "r":
            table = variables[path].value
            table.scatter_update(tf.IndexedSlices(tf.constant(arrays[f"s:{path}"]), tf.constant(value)))
    return list(dict.fromkeys(name.partition(":")[2] for name in arrays))


def _received(connection: socket.socket, number: int) -> tuple[dict[str, Any], wire.Arrays]:
    try:
        answer, arrays = wire.receive(connection)
    except OSError as error:
        raise ConnectionError(f"parameter server {number} is gone: {error}") from error
    if "error" in answer:
        raise ConnectionError(f"parameter server {number}: {answer['error']}")
    return answer, arrays
