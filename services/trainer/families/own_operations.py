"""Libraries of TensorFlow operations that a definition brings: `operations: [zero_out.so]`.

The module imports one as its sibling, `from . import zero_out`, and calls `zero_out.zero_out(x)`. A version carries its
libraries below assets.extra/, listed in custom_ops.txt, and a replica loads them before the graph.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from common.saved_model.layout import OWN_OPERATIONS_FILE, own_libraries
from services.trainer.families.reasons import DefinitionFailedError

_FOLDER = "assets.extra/operations"
_loaded: dict[str, Any] = {}
"""By digest of the library: a process registers an operation once, for all definitions that bring it."""


def load(libraries: Sequence[str], package: str, folder: Path) -> None:
    """Loads them, once in a process, and puts each beside the modules of the package. Raises DefinitionFailedError: one
    cannot be loaded."""
    for name in libraries:
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if digest not in _loaded:
            try:
                _loaded[digest] = tf.load_op_library(str(folder / name))
            except (tf.errors.OpError, RuntimeError, OSError) as error:
                raise DefinitionFailedError(f"operations: {name} cannot be loaded: {error}") from error
        module = _loaded[digest]
        sys.modules[f"{package}.{name.removesuffix('.so')}"] = module
        setattr(sys.modules[package], name.removesuffix(".so"), module)


def add_to(saved_model: Path, libraries: Mapping[str, bytes]) -> None:
    """Writes them into an export, with their list."""
    if not libraries:
        return
    folder = saved_model / _FOLDER
    folder.mkdir(parents=True)
    for name, content in libraries.items():
        (folder / name).write_bytes(content)
    (saved_model / OWN_OPERATIONS_FILE).write_text("".join(f"{_FOLDER}/{name}\n" for name in libraries))


def load_listed(saved_model: Path) -> None:
    """What an export lists, as a replica loads it.

    Raises:
        InvalidInput: the list names what is none of the export's own files.
        OSError, tf.errors.OpError: one cannot be loaded.
    """
    path = saved_model / OWN_OPERATIONS_FILE
    for library in own_libraries(path.read_bytes()) if path.is_file() else ():
        tf.load_op_library(str(saved_model / library))
