"""Importing TensorFlow without what Keras imports only because it is installed.

    python -m common.process.lean_imports MODULE ARGUMENTS

imports the module so and calls its `main()`: such a process starts in a little over half the CPU time.
"""

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OPTIONAL = ("matplotlib", "pandas", "pyarrow", "scipy", "sklearn")
"""Keras looks whether they are there, for data frames, plots and wrappers that no service uses. They take as long to
import as a third of TensorFlow, and pyarrow and OpenBLAS start threads, which a fork would not copy."""


@contextmanager
def without_optional_libraries() -> Iterator[None]:
    """Inside, importing them fails as if they were not installed; afterwards they can be imported as ever. Meanwhile
    no garbage is collected: an import leaves next to none, and looking for it is a quarter of TensorFlow's.

    For a process that is about to import TensorFlow. What was imported before is left alone.
    """
    blocked = [name for name in _OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]  # None: importing it fails
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for name in blocked:
            del sys.modules[name]
        if collects:
            gc.enable()


def lean_command(module: str, *arguments: str) -> list[str]:
    """Starts a process that runs the module's `main()`, which finds the arguments in sys.argv[1:]."""
    return [sys.executable, "-m", "common.process.lean_imports", module, *arguments]


def main() -> None:
    del sys.argv[0]
    with without_optional_libraries():
        module = importlib.import_module(sys.argv[0])
    module.main()


if __name__ == "__main__":
    main()
