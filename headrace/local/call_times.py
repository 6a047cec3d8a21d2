"""Times of a version's calls, in a process of serving's code: the command line has no TensorFlow."""

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import InvalidInput
from common.process.lean_imports import lean_command

ROWS = (1, 16, 256)
"""Batch sizes that `headrace model cost` measures."""
LOAD_SECONDS = 600.0
"""For loading and one call of each size."""
_SPARE_SECONDS = 120.0
_END_SECONDS = 10.0
_ENVIRONMENT = {
    # As a runner has it (services/serving/replica/zygote_client.py).
    "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
_ON_CPU = {"CUDA_VISIBLE_DEVICES": "-1"}
_ON_GPU = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


class TimedModel:
    """A version, loaded in a process that ends with this context. Raises InvalidInput: from every method; the version
    cannot be run, and why. Nothing more can be measured then."""

    def __init__(self, directory: Path, rows: Sequence[int], *, device: str = "cpu") -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  (close() closes it)
        self._process = subprocess.Popen(
            lean_command("services.serving.engines.call_times"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._printed, bufsize=0,
            env=os.environ | _ENVIRONMENT | (_ON_GPU if device == "gpu" else _ON_CPU),
        )  # fmt: skip
        question = {"directory": str(directory.absolute()), "rows": list(rows), "device": device}
        try:
            self.ready = self._exchange(question, LOAD_SECONDS)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "TimedModel":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def median_and_p99(self, rows: int, seconds: float) -> tuple[float, float]:
        """Milliseconds of the calls with this number of rows that fit in the time, of at least one call."""
        answer = self._exchange({"rows": rows, "seconds": seconds}, seconds + _SPARE_SECONDS)
        return float(answer["milliseconds"]), float(answer["p99_milliseconds"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_END_SECONDS)
        for file in (self._process.stdin, self._process.stdout, self._printed):
            if file is not None:
                with suppress(OSError):
                    file.close()

    def _exchange(self, line: Mapping[str, Any], timeout_seconds: float) -> dict[str, Any]:
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both are pipes")
        with suppress(BrokenPipeError):  # it has ended; the missing answer says so
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
        readable, _, _ = select.select([self._process.stdout], [], [], timeout_seconds)
        if not readable:
            raise InvalidInput(f"it did not answer within {timeout_seconds:g} s")
        text = self._process.stdout.readline()
        if not text.endswith(b"\n"):
            raise InvalidInput(self._ending())
        answer: dict[str, Any] = json.loads(text)
        if "failed" in answer:
            raise InvalidInput(str(answer["failed"]))
        return answer

    def _ending(self) -> str:
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process closed its output"
        if status < 0:
            return f"its process ended with signal {-status} ({signal.Signals(-status).name})"
        self._printed.seek(0)
        printed = self._printed.read().decode(errors="replace").strip()
        if "No module named" in printed:
            missing = printed.rpartition("No module named")[2].strip().splitlines()[0]
            return f"this needs TensorFlow, and {missing} is not installed: pip install 'headrace[serving]'"
        return f"its process ended: {(printed.splitlines() or [f'status {status}'])[-1][:400]}"


def machine(ready: Mapping[str, Any]) -> str:
    """That measured, in words."""
    count = ready["processors"]
    return f"{ready['processor'] or 'an unnamed processor'}, {count} processor{'s' if count != 1 else ''}"


def source(ready: Mapping[str, Any]) -> str:
    """Where the rows came from, in words."""
    return (
        "rows of its warm-up requests" if ready["inputs"] == "recorded" else "made-up rows: it has no warm-up requests"
    )


def latency(directory: Path, *, seconds: float = 0.5) -> dict[str, Any]:
    """Of a call by batch size, as a replica computes it when nothing is set; {"failed": sentence} where that cannot be.

    Args:
        directory: the SavedModel.
        seconds: of measuring, for each batch size.
    """
    try:
        with TimedModel(directory, ROWS) as model:
            ready = model.ready
            sizes = [size for size in ROWS if str(size) not in ready["refused"]]
            times = {str(size): model.median_and_p99(size, seconds)[0] for size in sizes}
    except InvalidInput as error:
        return {"failed": error.message}
    kept = {key: ready[key] for key in ("signature", "inputs", "onednn", "processor", "processors", "refused")}
    return {"milliseconds": times, **kept}
