"""Importing TensorFlow without what Keras imports only because it is installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OPTIONAL = ("matplotlib", "pandas", "pyarrow", "scipy", "sklearn")
"""Keras looks whether they are there, for data frames, plots and wrappers that no service uses. They take as long to
import as a third of TensorFlow, and pyarrow and OpenBLAS start threads, which a fork would not copy."""


@contextmanager
def without_optional_libraries() -> Iterator[None]:
    """Inside, importing them fails as if they were not installed; afterwards they can be imported as ever.

    For a process that is about to import TensorFlow and to fork. What was imported before is left alone.
    """
    blocked = [name for name in _OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]  # None: importing it fails
    try:
        yield
    finally:
        for name in blocked:
            del sys.modules[name]
