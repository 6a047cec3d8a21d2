"""`python -m benchmarks.engines [SAVED_MODEL ...]`: microseconds per call of each engine, at 1 and at 64 examples.

As serving itself measures them before it chooses: the thread's own time, the best of several blocks, guards included.
Without arguments over the network of the serving benchmark and the digits example's convolutional network; with
arguments over those SavedModels too, such as a version that a replica has fetched
(build/demo/platform/serving-0/serving-0/versions/<model>/<version>).
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.report import Cell, publish

_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip
_TIMEOUT_SECONDS = 300


def _save_digits(directory: Path) -> None:
    import keras
    import tensorflow as tf
    import yaml

    from common.schema import Schema
    from examples.digits.model import build_model

    folder = Path("examples/digits")
    stream = yaml.safe_load((folder / "stream.yaml").read_text())
    schema = Schema.from_mapping({key: value for key, value in stream.items() if key != "stream"})
    parameters = yaml.safe_load((folder / "model.yaml").read_text())["parameters"]
    keras.utils.set_random_seed(7)
    model = build_model(schema, parameters)
    # As the trainer exports it: by default the layers that turn digits in training would turn them here.
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    answer = tf.function(lambda pixels: {"logits": model(pixels, training=False)})
    pixels = tf.TensorSpec([None, 784], tf.float32, name="pixels")
    tf.saved_model.save(module, str(directory), signatures=answer.get_concrete_function(pixels))


def _save_network(directory: Path) -> None:
    from benchmarks.serving_load.model import save

    save(directory)


def _measure(directory: Path) -> None:
    """Prints {signature: {engine: {"problem", "microseconds", "max_difference"}}}."""
    from services.serving.batching.models import warm_up_inputs
    from services.serving.engines import tensorflow_engine
    from services.serving.engines.choice import CANDIDATES
    from services.serving.engines.conversion import Conversions
    from services.serving.engines.trial import microseconds_per_call
    from services.serving.options.model_options import EngineOptions, ModelOptions
    from services.serving.wire.prediction import RequestFailed

    options = ModelOptions(engine=EngineOptions(engine="auto", conversion_timeout_seconds=240.0))
    with Conversions("m", directory, options, None) as conversions:
        tried = {candidate.name: conversions.get(candidate) for candidate in CANDIDATES if not candidate.missing()}
    reference = tensorflow_engine.load(directory, options.engine)
    found: dict[str, dict[str, object]] = {}
    for name in reference.callable_signatures():
        times, problem = {}, ""
        for rows in (1, 64):
            try:
                inputs = warm_up_inputs(reference.signatures[name], rows)
                times[rows] = microseconds_per_call(functools.partial(reference.run, name), inputs, options.engine)
            except RequestFailed as error:
                problem = error.message
        found[name] = {"tensorflow": {"problem": problem, "microseconds": times, "max_difference": 0.0}}
        for engine, conversion in tried.items():
            trial = conversion.signatures.get(name)
            found[name][engine] = asdict(trial) if trial else {"problem": conversion.problem}
    print(json.dumps(found))


def _run(command: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engines", command, str(directory)],
        env=os.environ | _ENVIRONMENT, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_SECONDS, check=True,
    )  # fmt: skip
    return done.stdout


def _rows(model: str, directory: Path) -> list[dict[str, Cell]]:
    """Keras exports the same signature twice; `serve` is left out."""
    rows: list[dict[str, Cell]] = []
    for signature, engines in json.loads(_run("--measure", directory).splitlines()[-1]).items():
        if signature == "serve":
            continue
        for engine, trial in engines.items():
            times = {} if trial["problem"] else trial["microseconds"]
            rows.append({
                "model": f"{model} {signature}",
                "engine": engine,
                "us/call at 1": times.get("1"),
                "us/call at 64": times.get("64"),
                "remark": trial["problem"][:70] or f"largest difference {trial['max_difference']:.1e}",
            })  # fmt: skip
    return rows


def main(saved_models: list[Path]) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("network", "digits"):
            _run(f"--save-{name}", Path(folder) / name)
            rows += _rows(name, Path(folder) / name)
    for path in saved_models:
        rows += _rows("/".join(path.parts[-2:]), path)
    publish("engines", "Microseconds of one thread per call of the model", rows)


if __name__ == "__main__":
    commands = {"--save-network": _save_network, "--save-digits": _save_digits, "--measure": _measure}
    if len(sys.argv) == 3 and sys.argv[1] in commands:
        commands[sys.argv[1]](Path(sys.argv[2]))
    else:
        main([Path(argument) for argument in sys.argv[1:]])
