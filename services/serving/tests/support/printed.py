"""What processes with TensorFlow print: pytest's own does without it."""

import os
import subprocess
import sys
from collections.abc import Sequence


def support(module: str, *arguments: object) -> list[str]:
    """Starts a module of this folder."""
    return [sys.executable, "-m", f"services.serving.tests.support.{module}", *map(str, arguments)]


def printed(command: Sequence[str], *, stdin: str = "", **environment: str) -> str:
    """On standard output, by a process that ends well."""
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, env=os.environ | quiet | environment, input=stdin, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
