"""Libraries of custom operations that a version needs, loaded into its runner before it.

`<version>/assets.extra/custom_ops.txt` lists them, one path per line, relative to the version or absolute; empty lines
and those that begin with # do not count.
"""

from pathlib import Path

import tensorflow as tf

from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed

LIST_PATH = Path("assets.extra/custom_ops.txt")


def load_custom_ops(directory: Path) -> None:
    """Loads every library of the list; no list, no libraries.

    Raises:
        RequestFailed: one is not there, leads out of the version, or cannot be loaded; the message says which and why.
    """
    try:
        lines = (directory / LIST_PATH).read_text().splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise RequestFailed(Code.FAILED_PRECONDITION, f"cannot read {LIST_PATH}: {error}") from error
    for line in (line.strip() for line in lines):
        if line and not line.startswith("#"):
            _load(directory, line)


def _load(directory: Path, line: str) -> None:
    path = Path(line)
    if not path.is_absolute():
        path = directory / path
        # As written, not resolved: a version's files may themselves be links.
        if ".." in path.relative_to(directory).parts:
            raise RequestFailed(
                Code.FAILED_PRECONDITION, f"custom op library {line} of {LIST_PATH} leads out of the version"
            )
    if not path.is_file():
        raise RequestFailed(Code.FAILED_PRECONDITION, f"custom op library {line} of {LIST_PATH} is not there")
    try:
        tf.load_op_library(str(path))
    except (tf.errors.OpError, RuntimeError, OSError) as error:
        raise RequestFailed(Code.FAILED_PRECONDITION, f"cannot load custom op library {line}: {error}") from error
