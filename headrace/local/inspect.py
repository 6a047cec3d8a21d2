"""Runs the trainer's code over a model's files, as a process: the command line has no TensorFlow of its own."""

import subprocess
import sys
from pathlib import Path

from common.errors import InvalidInput

_LIMIT_SECONDS = 600


def run(what: str, source: Path, target: Path) -> None:
    """`what` is one of services/trainer/export/inspecting.py.

    Raises:
        InvalidInput: TensorFlow is not installed here, or it cannot read the files; its last words are told.
    """
    command = [sys.executable, "-m", "services.trainer.export.inspecting", what, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS)
    if not done.returncode:
        return
    if "No module named" in done.stderr:
        missing = done.stderr.rpartition("No module named")[2].strip().splitlines()[0]
        raise InvalidInput(f"this needs TensorFlow, and {missing} is not installed: pip install 'headrace[trainer]'")
    last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
    raise InvalidInput(f"TensorFlow cannot do that with {source}: {last[0][:500]}")
