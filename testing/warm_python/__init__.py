"""A Python that has imported TensorFlow when it starts, so that a run pays for that import (4 CPU seconds) once.

The fixture `warm_python` replaces `sys.executable` with a program (client.py), which every `[sys.executable, "-m",
MODULE]` of the product and of the tests then starts. For a module that client.py lists, and for code and scripts that
name TensorFlow, a server (server.py) forks a process that becomes it, with the caller's arguments, environment, folder
and open files. That process ends with its caller. The interpreter itself executes anything else. A test of starting,
of memory or of imports uses the interpreter.
"""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import pytest

from testing.shared_folder import filled_once

_PROGRAM = """#!{interpreter} -IS
import sys
sys.path.append({here!r})
import client
client.main({folder!r}, {interpreter!r}, {owner}, sys.argv[1:])
"""
WARM_PYTHON = "HEADRACE_WARM_PYTHON"
"""The environment's variable with the path of the program, once a test has asked for it."""
_RUN = os.getpid()
"""The process that collects the tests: workers are forked from it later."""
T = TypeVar("T")
_CALL = """
import pickle, sys, tensorflow
function, arguments = pickle.load(sys.stdin.buffer)
pickle.dump(function(*arguments), open(sys.argv[1], "wb"))
"""
_CALL_SECONDS = 240.0


@pytest.fixture(scope="session", autouse=True)
def warm_python_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program; testing/forked.py uses it too, in every test."""
    path = filled_once(tmp_path_factory, "warm_python", _make) / "bin/python"
    os.environ[WARM_PYTHON] = str(path)
    return path


@pytest.fixture(scope="module")
def warm_python(warm_python_path: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm_python_path))
        yield


def lean_command(python: Path, module: str, *arguments: str) -> list[str]:
    """That of common/process/lean_imports.py, by a Python of the fixtures above."""
    return [str(python), "-m", "common.process.lean_imports", module, *arguments]


def called(function: Callable[..., T], into: Path, *arguments: object) -> T:
    """What the function returns in a process of `sys.executable` that has TensorFlow; `into` is a file for that.

    Raises:
        subprocess.CalledProcessError: the function has raised; standard error says what.
    """
    subprocess.run(
        [sys.executable, "-c", _CALL, str(into)],
        input=pickle.dumps((function, arguments)), check=True, timeout=_CALL_SECONDS,
    )  # fmt: skip
    return cast(T, pickle.loads(into.read_bytes()))


def _make(folder: Path) -> None:
    """A virtual environment, as far as Python looks, with the packages of the environment that runs."""
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder)
    (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
    (folder / "bin").mkdir()
    here = str(Path(__file__).parent)
    program = _PROGRAM.format(interpreter=sys.executable, here=here, folder=str(folder), owner=_RUN)
    (folder / "bin/python").write_text(program)
    (folder / "bin/python").chmod(0o755)
