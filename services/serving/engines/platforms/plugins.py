"""Finds the platform that a model names, and has it load a version.

A platform is a function `load(request: LoadRequest) -> LoadedModel`, registered under its name as an entry point of the
group `headrace.platforms`. Versions, reload, batching, warm-up and status come from the runner around it. `tensorflow`
and `tflite` are there always; docs/guide/engines.md has the way to write another.
"""

from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from common.errors import InvalidInput
from common.saved_model.layout import OWN_OPERATIONS_FILE, own_libraries
from services.serving.engines import choice
from services.serving.engines.platforms.loading import LoadedModel, LoadRequest
from services.serving.options.platform_names import TENSORFLOW, TFLITE, platform_names, plugins
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed, invalid

Load = Callable[[LoadRequest], LoadedModel]


def load(request: LoadRequest) -> LoadedModel:
    """Loads a version with the platform that its model names. Raises RequestFailed: there is no such platform, it
    cannot be imported, or it cannot load the version."""
    name = request.options.platform
    if name == TENSORFLOW:
        load_custom_ops(request.directory)
        return choice.load(request)
    plugin = _tflite() if name == TFLITE else _find(name)
    try:
        return plugin(request)
    except RequestFailed:
        raise
    except Exception as error:  # a plugin's errors are not known here
        raise RequestFailed(
            Code.UNKNOWN, f'platform "{name}" cannot load version {request.version}: {type(error).__name__}: {error}'
        ) from error


def _tflite() -> Load:
    try:
        from services.serving.engines.platforms import tflite_platform
    except ImportError as error:
        raise RequestFailed(
            Code.FAILED_PRECONDITION,
            f'platform "{TFLITE}" is not installed: {error}; pip install headrace[serving-litert]',
        ) from error
    return tflite_platform.load


def _find(name: str) -> Load:
    plugin = plugins().get(name)
    if plugin is None:
        raise invalid(f'there is no platform "{name}"; known here: {", ".join(sorted(platform_names()))}')
    try:
        found: Load = plugin.load()
    except (ImportError, AttributeError) as error:
        raise RequestFailed(
            Code.FAILED_PRECONDITION, f'platform "{name}" ({plugin.value}) cannot be imported: {error}'
        ) from error
    return found


def load_custom_ops(directory: Path) -> None:
    """Loads the libraries that assets.extra/custom_ops.txt lists, if there is a list. Raises RequestFailed: a library
    is not there, leads out of the version, or cannot be loaded; the message names it and the reason."""
    try:
        libraries = own_libraries((directory / OWN_OPERATIONS_FILE).read_bytes())
    except FileNotFoundError:
        return
    except OSError as error:
        raise RequestFailed(Code.FAILED_PRECONDITION, f"cannot read {OWN_OPERATIONS_FILE}: {error}") from error
    except InvalidInput as error:
        raise RequestFailed(Code.FAILED_PRECONDITION, error.message) from error
    for library in libraries:
        _load(directory, library)


def _load(directory: Path, library: str) -> None:
    path = directory / library
    if not path.is_file():
        raise RequestFailed(
            Code.FAILED_PRECONDITION, f"custom op library {library} of {OWN_OPERATIONS_FILE} is not there"
        )
    try:
        tf.load_op_library(str(path))
    except (tf.errors.OpError, RuntimeError, OSError) as error:
        raise RequestFailed(Code.FAILED_PRECONDITION, f"cannot load custom op library {library}: {error}") from error
