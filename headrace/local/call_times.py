"""Times of a version's calls, in a process of serving's code: the command line has no TensorFlow."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InvalidInput
from common.process.lean_imports import lean_command
from headrace.local.inspect import missing_package

ROWS = (1, 16, 256)
"""Batch sizes that `headrace model cost` measures."""
_LIMIT_SECONDS = 1200.0
"""Beside the seconds of measuring: for loading, and a call of each size."""
_ENVIRONMENT = {
    # As a runner has it (services/serving/replica/zygote_client.py).
    "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
_ON_CPU = {"CUDA_VISIBLE_DEVICES": "-1"}
_ON_GPU = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def call_times(directory: Path, rows: Sequence[int], *, seconds: float, device: str = "cpu") -> dict[str, Any]:
    """What services/serving/engines/call_times.py answers. Raises InvalidInput: the SavedModel in the directory cannot
    be run, and why.

    Args:
        rows: batch sizes.
        seconds: of measuring, for each of them; one call takes as long as it takes.
        device: cpu or gpu.
    """
    question = {"directory": str(directory.absolute()), "rows": list(rows), "seconds": seconds, "device": device}
    try:
        done = subprocess.run(
            lean_command("services.serving.engines.call_times", json.dumps(question)),
            env=os.environ | _ENVIRONMENT | (_ON_GPU if device == "gpu" else _ON_CPU),
            capture_output=True, text=True, timeout=_LIMIT_SECONDS + seconds * len(rows), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise InvalidInput(f"it did not answer within {error.timeout:g} s") from error
    if done.returncode and (missing := missing_package(done.stderr)):
        raise InvalidInput(f"this needs TensorFlow, and {missing} is not installed: pip install 'headrace[serving]'")
    if done.returncode:
        how = f"signal {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"status {done.returncode}"
        raise InvalidInput(f"its process ended with {how}: {(done.stderr.strip().splitlines() or [''])[-1][:400]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "failed" in answer:
        raise InvalidInput(str(answer["failed"]))
    return answer


def machine(found: Mapping[str, Any]) -> str:
    """That measured, in words."""
    count = found["processors"]
    return f"{found['processor'] or 'an unnamed processor'}, {count} processor{'s' if count != 1 else ''}"


def source(found: Mapping[str, Any]) -> str:
    """Where the rows came from, in words."""
    return (
        "rows of its warm-up requests" if found["inputs"] == "recorded" else "made-up rows: it has no warm-up requests"
    )


def latency(directory: Path, *, seconds: float = 0.5) -> dict[str, Any]:
    """Of calls of ROWS, as a replica computes them when nothing is set; {"failed": sentence} where that cannot be."""
    try:
        found = call_times(directory, ROWS, seconds=seconds)
    except InvalidInput as error:
        return {"failed": error.message}
    return {key: value for key, value in found.items() if key != "p99_milliseconds"}
