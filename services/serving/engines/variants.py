"""Measures an engine's time for a version: `python -m services.serving.engines.variants`, for `headrace model engines`.

Lines of JSON come in, each is answered with a line. The first is the question:

    {"directory", "signature", "rows": [sizes], "engine": {fields of EngineOptions}, "onednn": true, false or null,
     "answers": FILE, "is_reference": bool}

`signature` "" is serving_default, or else the first; `onednn` null is as a replica has it. Its answer comes once the
version is loaded and has been run at every size: {"signature", "signatures", "onednn", "inputs": "recorded" or
"made up", "processor", "processors", "refused": {size: sentence}, "difference", "problem"}, the last two against the
outputs that the reference has left in the file. Each further line, {"rows": size, "seconds": s}, is answered with
{"milliseconds": median of the calls, "p99_milliseconds"}. {"failed": sentence} ends the process.
"""

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from common.counted import counted
from services.serving.batching.models import warm_up_inputs
from services.serving.batching.row_independence import varied
from services.serving.engines import onednn
from services.serving.engines.comparison import compare
from services.serving.engines.warm_up import repeated
from services.serving.engines.warm_up_requests import recorded_predictions
from services.serving.options.model_options import EngineOptions, ModelOptions
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.prediction import Arrays, RequestFailed

if TYPE_CHECKING:
    from services.serving.engines.platforms.loading import LoadedModel

RECORDED, MADE_UP = "recorded", "made up"
_CONVERSION_SECONDS = 300.0
_LONGEST_SENTENCE = 240


def main() -> None:
    # A converter's output must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    question = json.loads(sys.stdin.readline())
    try:
        measured = _Variant(question)
        _write(answers, measured.ready())
        for line in sys.stdin:
            measure = json.loads(line)
            _write(answers, measured.milliseconds(str(measure["rows"]), float(measure["seconds"])))
    except RequestFailed as error:
        _write(answers, {"failed": " ".join(error.message.split())[:_LONGEST_SENTENCE]})


class _Variant:
    """A loaded version with inputs of every size that it answers.

    Raises:
        RequestFailed: it cannot be loaded, has no such signature, or the engine does not compute it.
    """

    def __init__(self, question: Mapping[str, Any]) -> None:
        self._question, directory = question, Path(question["directory"])
        _choose_onednn(question["onednn"], directory)
        options = EngineOptions(**question["engine"], conversion_timeout_seconds=_CONVERSION_SECONDS)
        self._model = _loaded(directory, options)
        self._signature = _signature(self._model, question["signature"])
        _check_engine(self._model, self._signature, options.engine)
        self._inputs, self._source = _inputs(self._model, self._signature, directory, question["rows"])
        self._refused: dict[str, str] = {}
        self._answers: dict[str, Arrays] = {}
        for rows, inputs in self._inputs.items():
            try:
                self._answers[rows] = self._model.run(self._signature, inputs)
            except RequestFailed as error:
                self._refused[rows] = " ".join(error.message.split())[:_LONGEST_SENTENCE]

    def ready(self) -> dict[str, Any]:
        # After _loaded, as all that imports TensorFlow.
        from services.serving.engines.conversion import processor_name

        difference, problem = self._compared(Path(self._question["answers"]))
        return {
            "signature": self._signature, "signatures": list(self._model.callable_signatures()),
            "onednn": onednn.is_on(), "inputs": self._source, "refused": self._refused,
            "processor": processor_name(), "processors": len(os.sched_getaffinity(0)),
            "difference": difference, "problem": problem,
        }  # fmt: skip

    def milliseconds(self, rows: str, seconds: float) -> dict[str, float]:
        times = _seconds_of_calls(lambda: self._model.run(self._signature, self._inputs[rows]), seconds)
        named = {"milliseconds": 50, "p99_milliseconds": 99}
        return {name: round(float(np.percentile(times, share)) * 1e3, 6) for name, share in named.items()}

    def _compared(self, path: Path) -> tuple[float, str]:
        if self._question["is_reference"]:
            path.write_bytes(pickle.dumps(self._answers))
            return 0.0, ""
        expected = pickle.loads(path.read_bytes())  # noqa: S301  (the reference's process wrote it for this command)
        largest, options = 0.0, EngineOptions()
        for rows, answer in self._answers.items():
            difference, problem = compare(
                expected[rows], answer,
                relative_tolerance=options.relative_tolerance, absolute_tolerance=options.absolute_tolerance,
            )  # fmt: skip
            largest = max(largest, difference)
            if problem:
                return largest, f"{problem} at {counted(int(rows), 'row')}"
        return largest, ""


def _choose_onednn(wanted: bool | None, directory: Path) -> None:
    """TensorFlow reads the variable while it is imported. A replica leaves it as an operator has set it."""
    if wanted is None and onednn.VARIABLE in os.environ:
        return
    is_on = onednn.is_faster_for(directory) if wanted is None else wanted
    os.environ[onednn.VARIABLE] = "1" if is_on else "0"


def _loaded(directory: Path, options: EngineOptions) -> "LoadedModel":
    from services.serving.engines.platforms import plugins
    from services.serving.engines.platforms.loading import LoadRequest

    request = LoadRequest(model="model", version=1, directory=directory, options=ModelOptions(engine=options))
    return plugins.load(request)


def _signature(model: "LoadedModel", wanted: str) -> str:
    names = model.callable_signatures()
    if wanted in names:
        return wanted
    if wanted or not names:
        known = ", ".join(names) or "none that can be called"
        raise RequestFailed(Code.NOT_FOUND, f"there is no signature {wanted or DEFAULT_SIGNATURE}; there is {known}")
    return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else names[0]


def _check_engine(model: "LoadedModel", signature: str, engine: str) -> None:
    """An engine that cannot compute a signature leaves it to TensorFlow, whose time would stand in its place."""
    from services.serving.engines.choice import MixedModel

    if isinstance(model, MixedModel) and model.engine_of(signature) != engine:
        reason = model.reasons[signature].partition("; ")[2]
        raise RequestFailed(Code.FAILED_PRECONDITION, reason.removeprefix(f"{engine}: "))


def _inputs(
    model: "LoadedModel", name: str, directory: Path, sizes: list[int]
) -> tuple[dict[str, dict[str, Any]], str]:
    """Rows of the largest request that came with the version, over again; made-up rows where none came."""
    signatures = {key: model.signatures[key] for key in model.callable_signatures()}
    recorded = [
        prediction
        for _, predictions in recorded_predictions(directory, signatures)
        for prediction in predictions
        if prediction.signature == name and prediction.rows > 0
    ]
    if not recorded:
        return {str(size): varied(warm_up_inputs(signatures[name], size)) for size in sizes}, MADE_UP
    largest = max(recorded, key=lambda prediction: prediction.rows)
    return {str(size): repeated(largest, size) for size in sizes}, RECORDED


def _seconds_of_calls(run: Callable[[], object], seconds: float) -> list[float]:
    """At least one, in time of the clock: a variant may use several threads."""
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while True:
        started = time.perf_counter()
        run()
        ended = time.perf_counter()
        times.append(ended - started)
        if ended >= deadline:
            return times


def _write(answers: TextIO, document: Mapping[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
