"""Engines that are wrong, slow, broken or not there, each tried on one SavedModel in a process of its own:
`python -m services.serving.tests.support.engine_faults SAVED_MODEL DIRECTORY`.

Forks for each case before TensorFlow runs, as a runner does; prints {case: {"kind", "reason", "answer", "error"}} as
JSON. The SavedModel answers 1000 + the sum of each row.
"""

import dataclasses
import functools
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common.definition.serving import EngineName
from services.serving.engines import choice
from services.serving.engines.candidate import Call, Candidate, CannotConvert, EngineRefused, Outputs
from services.serving.engines.platforms.loading import LoadRequest
from services.serving.options.model_options import EngineOptions, ModelOptions
from services.serving.wire.prediction import Arrays, RequestFailed
from services.serving.wire.replica_state import Signature

NAME: EngineName = "onnxruntime"
MARKS = "conversions"
"""A file beside the kept conversions that grows by a byte with each."""


_FEW = np.full(3, 1000, np.float32)


def right(inputs: Arrays, outputs: tuple[str, ...]) -> Outputs:
    return {"y": np.add.reduce(inputs["x"], axis=1) + np.float32(1000)}


def refuse_three_rows(inputs: Arrays, outputs: tuple[str, ...]) -> Outputs:
    if len(inputs["x"]) == 3:
        raise EngineRefused("three is too many")
    return right(inputs, outputs)


def slowly(inputs: Arrays, outputs: tuple[str, ...]) -> Outputs:
    for _ in range(10_000):
        np.add(1, 1)
    return right(inputs, outputs)


def slowly_with_many_rows(inputs: Arrays, outputs: tuple[str, ...]) -> Outputs:
    return (slowly if len(inputs["x"]) > 3 else shortcut)(inputs, outputs)


def shortcut(inputs: Arrays, outputs: tuple[str, ...]) -> Outputs:
    """Far faster than TensorFlow, and right only within a tolerance that lets everything pass."""
    return {"y": _FEW[: len(inputs["x"])]}


def zero_for_nan(inputs: Arrays, outputs: tuple[str, ...]) -> Outputs:
    found = right(inputs, outputs)
    found["y"][np.isnan(found["y"])] = 0
    return found


def engine(
    call: Call = right, convert: Callable[[], None] = lambda: None, packages: tuple[str, ...] = ("numpy",)
) -> Candidate:
    def write(directory: Path, signature: str, target: Path) -> None:
        convert()
        target.write_bytes(b"model")
        with (target.parents[2] / MARKS).open("ab") as marks:
            marks.write(b".")

    def open_file(path: Path, signature: Signature, options: EngineOptions) -> Call:
        return call

    return Candidate(name=NAME, packages=packages, extra="serving-onnx", convert=write, open=open_file)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    threading.Event().wait()


def fail() -> None:
    raise CannotConvert("there is no such operation")


def unforeseen() -> None:
    raise MemoryError("unforeseen")


CASES: dict[str, tuple[Candidate, dict[str, Any]]] = {
    "right": (engine(), {}),
    "right, auto": (engine(), {"engine": "auto"}),
    "other values": (engine(lambda inputs, outputs: {"y": right(inputs, outputs)["y"] + np.float32(0.5)}), {}),
    "other type": (engine(lambda inputs, outputs: {"y": right(inputs, outputs)["y"].astype(float)}), {}),
    "other shape": (engine(lambda inputs, outputs: {"y": right(inputs, outputs)["y"][:, None]}), {}),
    "other names": (engine(lambda inputs, outputs: {"z": right(inputs, outputs)["y"]}), {}),
    "within a wide tolerance": (
        engine(lambda inputs, outputs: {"y": right(inputs, outputs)["y"] + np.float32(0.5)}),
        {"absolute_tolerance": 100.0, "relative_tolerance": 0.0},
    ),
    "not a number": (engine(zero_for_nan), {}),
    "refuses": (engine(refuse_three_rows), {}),
    "slower": (engine(slowly), {"engine": "auto"}),
    "slower with many rows": (engine(slowly_with_many_rows), {"engine": "auto", "absolute_tolerance": 1e9}),
    "slower, but named": (engine(slowly), {}),
    "cannot convert": (engine(convert=fail), {}),
    "crashes": (engine(convert=crash), {}),
    "hangs": (engine(convert=hang), {"conversion_timeout_seconds": 1.0}),
    "fails": (engine(convert=unforeseen), {}),
    "missing": (engine(packages=("no-such-package",)), {}),
    "missing, auto": (engine(packages=("no-such-package",)), {"engine": "auto"}),
}


def load(directory: Path, engines_dir: Path | None, case: str, *, is_cautious: bool = False) -> dict[str, str]:
    candidate, changes = CASES[case]
    options = dataclasses.replace(EngineOptions(engine=NAME), **changes)
    request = LoadRequest(
        "m", 1, directory, ModelOptions(engine=options), engines_dir=engines_dir, is_cautious=is_cautious
    )
    try:
        model = choice.load(request, candidates=[candidate])
    except RequestFailed as error:
        return {"error": error.message}
    rows = np.array([[1, 2, 3], [np.nan, 0, 0]], np.float32)
    answer = model.run("serving_default", {"x": rows})["y"].tolist()
    return {"kind": model.kind, "reason": model.reasons.get("serving_default", ""), "answer": str(answer)}


def in_a_fork(work: Callable[[], dict[str, str]]) -> dict[str, str]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, json.dumps(work()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(text))


def main(directory: Path, engines_dir: Path) -> None:
    found = {}
    for number, case in enumerate(CASES):
        found[case] = in_a_fork(functools.partial(load, directory, engines_dir / str(number), case))
    for turn in ("first", "second"):
        found[f"kept, {turn}"] = in_a_fork(lambda: load(directory, engines_dir / "kept", "right"))
    found["conversions"] = {"count": str(len((engines_dir / "kept" / "m" / MARKS).read_bytes()))}
    found["cautious"] = in_a_fork(lambda: load(directory, engines_dir / "kept", "right", is_cautious=True))
    found["nowhere to keep"] = in_a_fork(lambda: load(directory, None, "right"))
    left = [path.name for path in Path(tempfile.gettempdir()).glob("headrace-engines-*")]
    found["left behind"] = {"names": str(left)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
