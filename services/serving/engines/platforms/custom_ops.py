"""Libraries of custom operations that a version needs, loaded into its runner before it.

`<version>/assets.extra/custom_ops.txt` lists them (common/saved_model/layout.py).
"""

from pathlib import Path

import tensorflow as tf

from common.errors import InvalidInput
from common.saved_model.layout import OWN_OPERATIONS_FILE, own_libraries
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed


def load_custom_ops(directory: Path) -> None:
    """Loads every library of the list; no list, no libraries. Raises RequestFailed: a library is not there, leads out
    of the version, or cannot be loaded; the message names it and the reason."""
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
