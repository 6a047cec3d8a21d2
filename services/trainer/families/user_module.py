"""A definition's Python file: its files written out, loaded as a package, its functions by name."""

import importlib
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from common.definition.hooks import HookClass
from common.definition.keras_names import Named
from common.definition.listed_layers import LAYERS, LAYERS_FILE, read_layers
from common.definition.model import Definition
from common.schema import Schema
from common.suggestions import did_you_mean
from services.trainer.families import hidden_state, module_inputs, own_operations
from services.trainer.families.hooks import HookSet, check_every_function_is_used, hooks_of, hooks_of_class
from services.trainer.families.package_name import PACKAGE_PREFIX
from services.trainer.families.reasons import DefinitionFailedError, blame_definition

SOURCE = f"from {__name__} import build_model\n".encode()
"""The file that stands for the list among a definition's files."""
_OF_EVERY_LAYER = ("name", "trainable")
LossFunction = Callable[[Any, Any], tf.Tensor]
MetricsFunction = Callable[[Any, Any], Mapping[str, float]]
AdaptFunction = Callable[[keras.Model, tf.data.Dataset], object]

_FUNCTIONS = ("build_model", "model_fn", "metrics", "adapt", "loss")


def build_model(schema: Schema, parameters: Mapping[str, Any]) -> keras.Model:
    """Raises DefinitionFailedError: there is no such feature, layer or option, or the layer does not take its input."""
    listed = read_layers(parameters)
    inputs = [_input(schema, name) for name in listed.inputs]
    columns = [column if len(column.shape) > 1 else keras.layers.Reshape((1,))(column) for column in inputs]
    hidden = keras.layers.Concatenate()(columns) if len(columns) > 1 else columns[0]
    for place, listed_layer in enumerate(listed.layers, start=1):
        with blame_definition(f"layers: {place} ({listed_layer.name})"):
            hidden = _layer(place, listed_layer)(hidden)
    return keras.Model(inputs, hidden)


def _input(schema: Schema, name: str) -> keras.KerasTensor:
    if module_inputs.feature_behind(schema, name) is None:
        known = [feature.name for feature in schema.features]
        raise DefinitionFailedError(f"layers: input {name!r} is no feature of the stream{did_you_mean([name], known)}")
    return module_inputs.symbolic(schema, name)


def _layer(place: int, named: Named) -> keras.layers.Layer:
    kinds = _kinds()
    kind = kinds.get(_key(named.name))
    if kind is None:
        near = did_you_mean([_key(named.name)], [*kinds])
        raise DefinitionFailedError(f"layers: {place}: keras.layers has no {named.name}{near}")
    options = [*list(inspect.signature(kind.__init__).parameters)[1:], *_OF_EVERY_LAYER]
    for name in named.options:
        if name not in options or name == "kwargs":
            raise DefinitionFailedError(
                f"layers: {place}: {named.name} has no option {name}{did_you_mean([name], options)}"
            )
    layer: keras.layers.Layer = kind(**{"name": f"{named.name}_{place}"} | dict(named.options))
    return layer


def _kinds() -> dict[str, Any]:
    """The layers of Keras that stand behind another, by name in small letters."""
    found = [
        kind for kind in vars(keras.layers).values() if inspect.isclass(kind) and issubclass(kind, keras.layers.Layer)
    ]
    return {_key(kind.__name__): kind for kind in found if kind not in (keras.layers.Layer, keras.layers.InputLayer)}


def _key(name: str) -> str:
    return name.replace("_", "").lower()


@dataclass(frozen=True)
class UserModule:
    """`build_model` or `model_fn`; the others go with build_model, `hooks` with both.

    `made`: variables that were made while it was imported; `modules`: the definition's files, by name within it.
    """

    build_model: Callable[[Schema, Mapping[str, Any]], keras.Model] | None
    loss: LossFunction | Mapping[str, LossFunction] | None
    metrics: MetricsFunction | None
    adapt: AdaptFunction | None = None
    inputs: tuple[str, ...] | None = None
    model_fn: Callable[..., Any] | None = None
    hooks: tuple[HookSet, ...] = ()
    made: hidden_state.Made = ()
    modules: Mapping[str, types.ModuleType] = field(default_factory=dict)


def package_folder(directory: Path, digest: str) -> Path:
    """Where the files of a definition are written below `directory`."""
    return directory / f"{PACKAGE_PREFIX}{digest}"


def load_module(
    files: Mapping[str, bytes],
    path: str,
    *,
    digest: str,
    directory: Path,
    operations: Sequence[str] = (),
    hooks: Sequence[HookClass] = (),
) -> UserModule:
    """Writes the files below `directory`, loads the libraries of `operations`, and imports the file at `path`.

    Each call imports anew, from the same seed: what the file makes belongs to one model of a round, and is the same in
    every process. Raises DefinitionFailedError: it raises while being imported, or has no build_model; a library cannot
    be loaded."""
    package = f"{PACKAGE_PREFIX}{digest}"
    folder = package_folder(directory, digest)
    _write(files, folder)
    _empty_package(package, folder)
    own_operations.load(operations, package, folder)
    importlib.invalidate_caches()
    keras.utils.set_random_seed(0)
    with hidden_state.variables_made() as made, hidden_state.no_setting_changed(path), blame_definition(path):
        module = _imported(package, path)
        sets = [hooks_of_class(hook, _imported(package, hook.file)) for hook in hooks]
    build_model, model_fn = (_function(module, name, path) for name in ("build_model", "model_fn"))
    if (build_model is None) == (model_fn is None):
        both, joint = ("both", "and") if build_model else ("neither", "nor")
        raise DefinitionFailedError(
            f"{path} has {both} build_model(schema, parameters) {joint} model_fn(features, labels, mode, params); "
            f"it is one of them"
        )
    functions = {name: _function(module, name, path) for name in ("metrics", "adapt")}
    functions["loss"] = _losses(module, path)
    inputs = _inputs(module, path)
    if model_fn is not None and (inputs is not None or any(functions.values())):
        raise DefinitionFailedError(f"{path}: beside model_fn nothing uses loss, metrics, adapt or inputs")
    if functions_of_module := hooks_of(vars(module), path):
        sets.insert(0, HookSet(functions_of_module, path))
    python = [content.decode(errors="replace") for name, content in files.items() if name.endswith(".py")]
    check_every_function_is_used(module, path, python, _FUNCTIONS)
    return UserModule(
        build_model,
        **functions,
        inputs=inputs,
        model_fn=model_fn,
        hooks=tuple(sets),
        made=tuple(made),
        modules={
            name.removeprefix(f"{package}."): loaded
            for name, loaded in sorted(sys.modules.copy().items())  # another thread may import
            if name.startswith(f"{package}.")
        },
    )


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:  # a library may be mapped: not cut short
            path.write_bytes(content)


def _empty_package(package: str, folder: Path) -> None:
    """Forgets what was imported of it before."""
    for name in [name for name in sys.modules.copy() if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    namespace = types.ModuleType(package)
    namespace.__path__ = [str(folder)]
    sys.modules[package] = namespace


def _inputs(module: types.ModuleType, path: str) -> tuple[str, ...] | None:
    found = getattr(module, "inputs", None)
    if found is not None and not (isinstance(found, list | tuple) and all(isinstance(name, str) for name in found)):
        raise DefinitionFailedError(f"{path}: inputs must be a list of names of features, got {found!r}")
    return None if found is None else tuple(found)


def _imported(package: str, path: str) -> types.ModuleType:
    return importlib.import_module(f"{package}.{path.removesuffix('.py').replace('/', '.')}")


def _function(module: types.ModuleType, name: str, path: str) -> Any:
    found = getattr(module, name, None)
    if found is not None and not callable(found):
        raise DefinitionFailedError(f"{path}: {name} must be a function, got {type(found).__name__}")
    return found


def _losses(module: types.ModuleType, path: str) -> Any:
    found = getattr(module, "loss", None)
    if not isinstance(found, Mapping):
        return _function(module, "loss", path)
    wrong = [str(name) for name, function in found.items() if not callable(function)]
    if wrong or not found:
        raise DefinitionFailedError(f"{path}: loss must map heads to functions; {', '.join(wrong) or 'it'} is none")
    return dict(found)


def load_user_module(
    definition: Definition, files: Mapping[str, bytes], *, digest: str, directory: Path
) -> UserModule | None:
    """The definition's module, or None for an estimator."""
    if definition.module is None:
        return None
    path = definition.module
    if path == LAYERS:
        files, path = {**files, LAYERS_FILE: SOURCE}, LAYERS_FILE
    return load_module(
        files, path, digest=digest, directory=directory, operations=definition.operations,
        hooks=definition.training.hooks,
    )  # fmt: skip
