"""Measures a version's calls: `python -m services.serving.engines.call_times`, for `headrace model cost`.

Lines of JSON come in, each is answered with a line. The first is the question:

    {"directory", "rows": [sizes], "device": "cpu" or "gpu"}

Its answer comes once the version is loaded and has been run at every size: {"signature": serving_default or else the
first, "onednn", "inputs": "recorded" or "made up", "processor", "processors", "refused": {size: sentence}}. Each
further line, {"rows": size, "seconds": s}, is answered with {"milliseconds": median, "p99_milliseconds"}.
{"failed": sentence} ends the process.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from services.serving.batching.models import warm_up_inputs
from services.serving.batching.row_independence import varied
from services.serving.engines import onednn
from services.serving.engines.warm_up import repeated
from services.serving.engines.warm_up_requests import recorded_predictions
from services.serving.options.model_options import EngineOptions, ModelOptions
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_SIGNATURE
from services.serving.wire.prediction import RequestFailed

if TYPE_CHECKING:
    from services.serving.engines.platforms.loading import LoadedModel

RECORDED, MADE_UP = "recorded", "made up"
_LONGEST_SENTENCE = 240


def main() -> None:
    # What TensorFlow prints must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    question = json.loads(sys.stdin.readline())
    try:
        measured = _Model(question)
        _write(answers, measured.ready())
        for line in sys.stdin:
            measure = json.loads(line)
            _write(answers, measured.milliseconds(str(measure["rows"]), float(measure["seconds"])))
    except RequestFailed as error:
        _write(answers, {"failed": " ".join(error.message.split())[:_LONGEST_SENTENCE]})


class _Model:
    """A loaded version with inputs of every size that it answers. Raises RequestFailed: it cannot be loaded, or nothing
    in it can be called."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        directory = Path(question["directory"])
        if onednn.VARIABLE not in os.environ:  # as a replica chooses, before TensorFlow is imported
            os.environ[onednn.VARIABLE] = str(int(onednn.is_faster_for(directory)))
        self._model = _loaded(directory, EngineOptions(device=question["device"]))
        names = self._model.callable_signatures()
        if not names:
            raise RequestFailed(Code.NOT_FOUND, "none of its signatures can be called")
        self._signature = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else names[0]
        self._inputs, self._source = _inputs(self._model, self._signature, directory, question["rows"])
        self._refused: dict[str, str] = {}
        for rows, inputs in self._inputs.items():
            try:
                self._model.run(self._signature, inputs)
            except RequestFailed as error:
                self._refused[rows] = " ".join(error.message.split())[:_LONGEST_SENTENCE]

    def ready(self) -> dict[str, Any]:
        # After _loaded, as all that imports TensorFlow.
        from services.serving.engines.conversion import processor_name

        return {
            "signature": self._signature, "onednn": onednn.is_on(), "inputs": self._source, "refused": self._refused,
            "processor": processor_name(), "processors": len(os.sched_getaffinity(0)),
        }  # fmt: skip

    def milliseconds(self, rows: str, seconds: float) -> dict[str, float]:
        times = _seconds_of_calls(lambda: self._model.run(self._signature, self._inputs[rows]), seconds)
        named = {"milliseconds": 50, "p99_milliseconds": 99}
        return {name: round(float(np.percentile(times, share)) * 1e3, 6) for name, share in named.items()}


def _loaded(directory: Path, options: EngineOptions) -> "LoadedModel":
    from services.serving.engines.platforms import plugins
    from services.serving.engines.platforms.loading import LoadRequest

    request = LoadRequest(model="model", version=1, directory=directory, options=ModelOptions(engine=options))
    return plugins.load(request)


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
    """At least one, in time of the clock: a call may use several threads."""
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
