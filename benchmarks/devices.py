"""`python -m benchmarks.devices [SECONDS]`: rows/s, p50 and p99 per batch size of a version on the CPU, and on a GPU
where there is one.

Calls of the engine that a runner uses, one after the other, each device in its process; no queue and no door. Models:
the network of the serving benchmark, the digits example's convolutional network, and two layers of 4096 units, whose
products of matrices are what a GPU is for.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import yaml

from benchmarks.report import Cell, publish
from benchmarks.serving_load.model import save
from common.process.gpu import has_gpu
from common.schema import Schema
from headrace.local.call_times import call_times, machine

_ROWS = (1, 16, 64, 256, 1024, 4096)
_SAVE_SECONDS = 300
_DIGITS = ("model", "stream")


def save_digits(directory: Path) -> None:
    import keras
    import tensorflow as tf

    from examples.digits.model import build_model

    definition, stream = (yaml.safe_load(Path(f"examples/digits/{name}.yaml").read_text()) for name in _DIGITS)
    schema = Schema.from_mapping({key: value for key, value in stream.items() if key != "stream"})
    keras.utils.set_random_seed(7)
    model = build_model(schema, definition["parameters"])
    # As the trainer exports it: by default the layers that turn digits in training would turn them here.
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    answer = tf.function(lambda pixels: {"logits": model(pixels, training=False)})
    pixels = tf.TensorSpec([None, 784], tf.float32, name="pixels")
    tf.saved_model.save(module, str(directory), signatures=answer.get_concrete_function(pixels))


_MODELS: Mapping[str, Callable[[Path], None]] = {
    "network": save,
    "digits": save_digits,
    "wide": partial(save, units=(4096, 4096, 4096)),
}


def _measured(model: str, directory: Path, device: str, seconds: float) -> tuple[list[dict[str, Cell]], str]:
    """A line for each batch size, and the machine in words."""
    found = call_times(directory, _ROWS, seconds=seconds, device=device)
    lines: list[dict[str, Cell]] = [
        {
            "model": model, "device": device, "rows": int(rows), "rows/s": int(rows) / median * 1e3, "p50 ms": median,
            "p99 ms": found["p99_milliseconds"][rows],
        }
        for rows, median in found["milliseconds"].items()
    ]  # fmt: skip
    return lines, machine(found)


def main(seconds: float) -> None:
    devices = ("cpu", "gpu") if has_gpu() else ("cpu",)
    lines: list[dict[str, Cell]] = []
    processor = ""
    with tempfile.TemporaryDirectory() as folder:
        for model in _MODELS:
            directory = Path(folder) / model
            save_it = [sys.executable, "-m", "benchmarks.devices", "save", model, str(directory)]
            subprocess.run(save_it, timeout=_SAVE_SECONDS, check=True)
            for device in devices:
                found, processor = _measured(model, directory, device, seconds)
                lines += found
    notes = [processor, *([] if has_gpu() else ["There is no GPU on this machine."])]
    publish("devices", "A call of the model by device and batch size", lines, notes=notes)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "save":
        _MODELS[sys.argv[2]](Path(sys.argv[3]))
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.5)
