"""Measures a version's calls: `python -m services.serving.engines.call_times QUESTION`, for `headrace model cost`.

QUESTION is JSON: {"directory", "rows": [sizes], "seconds": of measuring each size, "device": "cpu" or "gpu"}. The last
line that it prints is the answer: {"signature": serving_default or else the first, "onednn", "inputs": "recorded" or
"made up", "processor", "processors", "milliseconds": {size: median}, "p99_milliseconds": {size: p99}, "refused": {size:
sentence}}, or {"failed": sentence}.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    try:
        answer = _measured(json.loads(sys.argv[1]))
    except RequestFailed as error:
        answer = {"failed": _sentence(error)}
    print(json.dumps(answer))


def _measured(question: Mapping[str, Any]) -> dict[str, Any]:
    """Raises RequestFailed: the version cannot be loaded, or nothing in it can be called."""
    directory, seconds = Path(question["directory"]), float(question["seconds"])
    if onednn.VARIABLE not in os.environ:  # as a replica chooses, before TensorFlow is imported
        os.environ[onednn.VARIABLE] = str(int(onednn.is_faster_for(directory)))
    model = _loaded(directory, EngineOptions(device=question["device"]))
    # After _loaded, as all that imports TensorFlow.
    from services.serving.engines.conversion import processor_name

    names = model.callable_signatures()
    if not names:
        raise RequestFailed(Code.NOT_FOUND, "none of its signatures can be called")
    signature = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in names else names[0]
    inputs, source = _inputs(model, signature, directory, question["rows"])
    times, refused = dict[str, list[float]](), dict[str, str]()
    for rows, given in inputs.items():
        try:
            model.run(signature, given)
        except RequestFailed as error:
            refused[rows] = _sentence(error)
        else:
            times[rows] = _seconds_of_calls(partial(model.run, signature, given), seconds)
    return {
        "signature": signature, "onednn": onednn.is_on(), "inputs": source, "refused": refused,
        "processor": processor_name(), "processors": len(os.sched_getaffinity(0)),
        "milliseconds": _milliseconds(times, 50), "p99_milliseconds": _milliseconds(times, 99),
    }  # fmt: skip


def _sentence(error: RequestFailed) -> str:
    return " ".join(error.message.split())[:_LONGEST_SENTENCE]


def _milliseconds(times: Mapping[str, list[float]], share: float) -> dict[str, float]:
    return {rows: round(float(np.percentile(of_rows, share)) * 1e3, 6) for rows, of_rows in times.items()}


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


if __name__ == "__main__":
    main()
