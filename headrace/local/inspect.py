"""Runs the trainer's code over a model's files, as a process: the command line has no TensorFlow."""

import shutil
import subprocess
from pathlib import Path

from common.errors import InvalidInput
from common.process.lean_imports import lean_command

_LIMIT_SECONDS = 600
_SCRIPT_LIMIT_SECONDS = 3600


def missing_package(printed: str) -> str:
    """The package that a process could not import, by what it printed; "" for none."""
    return printed.rpartition("No module named")[2].strip().splitlines()[0] if "No module named" in printed else ""


def run(action: str, source: Path, target: Path) -> None:
    """`action` is one of services/trainer/export/inspecting.py. Raises InvalidInput: TensorFlow is not installed here,
    or it cannot read the files; the sentence has its last words."""
    command = lean_command("services.trainer.export.inspecting", action, str(source), str(target))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS)
    if not done.returncode:
        return
    if missing := missing_package(done.stderr):
        raise InvalidInput(f"this needs TensorFlow, and {missing} is not installed: pip install 'headrace[trainer]'")
    last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
    raise InvalidInput(f"TensorFlow cannot do that with {source}: {last[0][:500]}")


def in_binary(directory: Path, folder: Path) -> Path:
    """A SavedModel's folder as it is; where its graph is saved_model.pbtxt, a copy below `folder` with saved_model.pb.
    Raises InvalidInput: as run()."""
    text, binary = "saved_model.pbtxt", "saved_model.pb"
    if (directory / binary).exists() or not (directory / text).is_file():
        return directory
    copied = folder / "in_binary"
    shutil.copytree(directory, copied, symlinks=True, ignore=shutil.ignore_patterns(text))
    run("pb", directory, copied / binary)
    return copied


def run_session_script(script: Path, target: Path) -> None:
    """Runs a script of TensorFlow 1 in a separate process, with `target` as its only argument; what it prints is
    printed to standard error. Raises InvalidInput: there is no such script, it ended otherwise than well, or not within
    an hour."""
    if not script.is_file():
        raise InvalidInput(f"there is no script {script}")
    command = lean_command("services.trainer.export.session_script", str(script), str(target))
    try:
        done = subprocess.run(command, stdout=2, check=False, timeout=_SCRIPT_LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise InvalidInput(f"{script} did not end within {_SCRIPT_LIMIT_SECONDS} s") from error
    if done.returncode:
        raise InvalidInput(f"{script} ended with status {done.returncode}; its output is above")
