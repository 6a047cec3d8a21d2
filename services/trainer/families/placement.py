"""`training.devices`: on which device a layer computes, and where TensorFlow then put its operations.

A scope holds for a layer's call while the round trains and scores. What is exported names no device: it is served
wherever it is loaded.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.keras_internals import layers_of

_HOST = "CPU:0"
_SILENT = ("Const", "NoOp", "ReadVariableOp", "_Recv", "_Send", "_HostRecv", "_HostSend", "_Arg", "_Retval")
_MARK = re.compile(r"placed\.(\d+)\.")


class Placement:
    """Of one model. Without anything asked for it does nothing and reports nothing."""

    def __init__(self) -> None:
        self._wanted: dict[str, str] = {}
        self._missing: dict[str, str] = {}
        self._ran: dict[str, dict[str, int]] = {}
        self._is_ignored = self._is_marked = False

    def place(self, network: keras.Model, devices: Mapping[str, str], *, falls_back: bool) -> None:
        """Has the layers that a pattern means compute there; the first pattern counts, a nested model is a layer.
        Raises DefinitionFailedError: a pattern means no layer, or the device is not there and it must not fall back."""
        layers = layers_of(network) if devices else []
        here = {_short(device.name) for device in tf.config.list_logical_devices()} if devices else set()
        for pattern, device in devices.items():
            meant = [layer for layer in layers if fnmatchcase(layer.name, pattern)]
            if not meant:
                known = ", ".join(sorted({layer.name for layer in layers}))
                raise DefinitionFailedError(f"training: devices names {pattern!r}, which means no layer: {known}")
            if device not in here and not falls_back:
                raise DefinitionFailedError(
                    f"training: devices puts {pattern!r} on {device}, and this trainer has {', '.join(sorted(here))}; "
                    f"missing_device: cpu would compute it there"
                )
            for layer in meant:
                if layer.name in self._wanted:
                    continue
                self._wanted[layer.name] = device
                if device not in here:
                    self._missing[layer.name] = device
                self._wrap(layer, device if device in here else _HOST)

    def _wrap(self, layer: keras.layers.Layer, device: str) -> None:
        call = layer.call

        @wraps(call)
        def placed(*args: Any, **named: Any) -> Any:
            with tf.device(None if self._is_ignored else device), self._marked(layer.name):
                return call(*args, **named)

        object.__setattr__(layer, "call", placed)  # no state of the layer's, so Keras need not track it

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Inside, calls name no device."""
        before, self._is_ignored = self._is_ignored, True
        try:
            yield
        finally:
            self._is_ignored = before

    def look(self, outputs: Callable[..., Any], columns: Mapping[str, tf.Tensor]) -> None:
        """Once: runs the outputs of a few rows and notes where TensorFlow put each layer's operations."""
        if not self._wanted or self._ran:
            return
        self._is_marked = True
        compiled = tf.function(outputs, autograph=False).get_concrete_function(dict(columns))
        self._is_marked = False
        context.context().enable_run_metadata()
        try:
            compiled(dict(columns))
            graphs = context.context().export_run_metadata().partition_graphs
        finally:
            context.context().disable_run_metadata()
        ran: dict[str, Counter[str]] = {name: Counter() for name in self._wanted}
        names = [*self._wanted]
        for node in (node for graph in graphs for node in graph.node if node.op not in _SILENT):
            for place in _MARK.findall(node.name):
                ran[names[int(place)]][_short(node.device)] += 1
        self._ran = {name: dict(sorted(counts.items())) for name, counts in ran.items()}

    @contextmanager
    def _marked(self, layer: str) -> Iterator[None]:
        """TensorFlow makes names of layers unique; the mark tells which layer an operation is of."""
        if not self._is_marked:
            yield
            return
        with tf.name_scope(f"placed.{[*self._wanted].index(layer)}."):
            yield

    def report(self) -> dict[str, Any]:
        """For the lineage: by layer, the device asked for, how many operations ran where, and what fell back."""
        if not self._wanted:
            return {}
        fallen = {"fell_back": dict(self._missing)} if self._missing else {}
        return {"asked": dict(self._wanted), "operations": self._ran, **fallen}


def _short(device: str) -> str:
    """ "/job:localhost/replica:0/task:0/device:CPU:0" is CPU:0."""
    return ":".join(device.rpartition("/")[2].removeprefix("device:").split(":")[-2:])
