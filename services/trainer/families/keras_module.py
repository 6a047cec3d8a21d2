"""A user's Keras model: Python files of a definition, loaded under a name of their own.

The module named by the definition has

    build_model(schema, parameters) -> keras.Model     functional or Sequential, inputs named after features of the
                                                       stream, one output: logits [n], [n, 1] or [n, classes], or
                                                       predictions for regression (no softmax or sigmoid at the end)
    loss(labels, outputs) -> Tensor                    optional: one loss per example, shape [n]
    metrics(labels, outputs) -> {name: number}         optional: numpy arrays in, measured on the held-out slice

Files of one definition import each other relatively (`from . import blocks`).
"""

import copy
import importlib
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from common.definition.model import Definition, Task
from common.errors import HeadraceError
from common.schema import Schema

LossFunction = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
MetricsFunction = Callable[[Any, Any], Mapping[str, float]]
_PACKAGE_PREFIX = "headrace_definition_"


class DefinitionFailedError(Exception):
    """The definition's own code raised, or returned what cannot be used; the message is one sentence."""


@dataclass(frozen=True)
class UserModule:
    build_model: Callable[[Schema, Mapping[str, Any]], keras.Model]
    loss: LossFunction | None
    metrics: MetricsFunction | None


def load_module(files: Mapping[str, bytes], path: str, *, digest: str, directory: Path) -> UserModule:
    """Writes the Python files below `directory` and imports the one at `path`.

    Raises:
        DefinitionFailedError: it raises while being imported, or has no build_model.
    """
    package = f"{_PACKAGE_PREFIX}{digest}"
    folder = directory / package
    for name, content in files.items():
        if name.endswith(".py"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    if package not in sys.modules:
        namespace = types.ModuleType(package)
        namespace.__path__ = [str(folder)]
        sys.modules[package] = namespace
    importlib.invalidate_caches()
    with blame_definition(path):
        module = importlib.import_module(f"{package}.{path.removesuffix('.py').replace('/', '.')}")
    if not callable(getattr(module, "build_model", None)):
        raise DefinitionFailedError(f"{path} has no function build_model(schema, parameters)")
    loss, metrics = getattr(module, "loss", None), getattr(module, "metrics", None)
    return UserModule(module.build_model, loss, metrics)


def build_from_module(module: UserModule, schema: Schema, definition: Definition) -> keras.Model:
    """Calls build_model and checks what it returns.

    Raises:
        DefinitionFailedError: it raises, or returns something that is not the model described above.
    """
    path = str(definition.module)
    with blame_definition(path):
        network = module.build_model(schema, copy.deepcopy(dict(definition.module_parameters)))
    if not isinstance(network, keras.Model):
        raise DefinitionFailedError(f"{path}: build_model returned {type(network).__name__}, expected a keras.Model")
    try:
        inputs, outputs = list(network.inputs or ()), list(network.outputs or ())
    except (AttributeError, ValueError):
        inputs, outputs = [], []
    if not inputs or len(outputs) != 1:
        raise DefinitionFailedError(
            f"{path}: build_model must return a functional or Sequential model with named inputs and one output, "
            f"got {len(inputs)} inputs and {len(outputs)} outputs"
        )
    _check_inputs(inputs, schema, path)
    _check_output(network, definition.task, path)
    return network


@contextmanager
def blame_definition(path: str, *, doing: str = "") -> Iterator[None]:
    """Turns whatever the user's code raises into DefinitionFailedError with the place and the exception's last line."""
    try:
        yield
    except (MemoryError, tf.errors.ResourceExhaustedError, HeadraceError, DefinitionFailedError):
        raise
    except Exception as error:  # the user's code may raise anything
        raise DefinitionFailedError(f"{path}: {doing}{': ' if doing else ''}{describe(error)}") from error


def describe(error: BaseException) -> str:
    """The traceback's last line, with the place in the definition's own files where there is one."""
    text = "".join(traceback.format_exception_only(error)).strip()
    in_graph = "in user code:" in text  # AutoGraph puts a traceback of its own into the message
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = (lines[-1] if in_graph else lines[0])[:500]
    trace = text if in_graph else "".join(traceback.format_tb(error.__traceback__))
    places = re.findall(rf'File "[^"]*{_PACKAGE_PREFIX}[^"]*/([^"/]+)", line (\d+), in (\S+)', trace)
    if not places:
        return last
    file, line, function = places[-1]
    return f"{last} ({file}, line {line}, in {function})"


def _check_inputs(inputs: list[keras.KerasTensor], schema: Schema, path: str) -> None:
    known = {feature.name: feature for feature in schema.features}
    for tensor in inputs:
        feature = known.get(tensor.name)
        if feature is None:
            raise DefinitionFailedError(
                f"{path}: input {tensor.name!r} is no feature of the stream: {', '.join(known)}"
            )
        if tensor.dtype != feature.dtype or tuple(tensor.shape[1:]) != feature.shape:
            raise DefinitionFailedError(
                f"{path}: input {tensor.name} is {tensor.dtype} {tuple(tensor.shape[1:])}, "
                f"the stream's feature is {feature.dtype} {feature.shape}"
            )


def _check_output(network: keras.Model, task: Task, path: str) -> None:
    last = network.layers[-1]
    activation = getattr(last, "activation", None)
    if isinstance(last, keras.layers.Softmax) or activation in (keras.activations.softmax, keras.activations.sigmoid):
        raise DefinitionFailedError(f"{path}: the last layer is a softmax or sigmoid; return the logits")
    shape = tuple(network.outputs[0].shape)
    is_single = shape in ((None,), (None, 1))
    is_many = len(shape) == 2 and isinstance(shape[1], int) and shape[1] > 1
    if not (is_many if task == "multiclass" else is_single):
        expected = "[n, classes]" if task == "multiclass" else "[n] or [n, 1]"
        raise DefinitionFailedError(f"{path}: the output's shape is {shape}, a {task} model gives {expected}")
