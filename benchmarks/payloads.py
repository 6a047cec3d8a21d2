"""Large requests: a 224x224x3 image of float32 (0.6 MB) and 1,000 rows of 64 floats, by JSON, base64 and gRPC.

    python -m benchmarks.payloads [--seconds N]

The models do next to nothing (means), so what is measured is the way in and out. base64 means the rows as raw bytes in
`{"b64": ...}` for a signature that decodes them; the door's own cost of JSON numbers falls away there.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Cell, publish
from benchmarks.serving_load import grpc_load, load, processes

_CONNECTIONS = (1, 4)
SHAPES: Mapping[str, tuple[int, ...]] = {"image 224x224x3": (1, 224, 224, 3), "1,000 rows of 64": (1000, 64)}


def save(shape: tuple[int, ...], directory: Path) -> None:
    """A SavedModel: `serving_default` takes float32 of this shape, `from_bytes` the same as raw bytes per row."""
    import tensorflow as tf

    row = shape[1:]
    module = tf.Module()
    module.scale = tf.Variable(1.0)

    def predict(x: Any) -> dict[str, Any]:
        return {"y": tf.reduce_mean(tf.reshape(x, [-1, int(np.prod(row))]), axis=1, keepdims=True) * module.scale}

    def predict_bytes(x_bytes: Any) -> dict[str, Any]:
        return predict(tf.io.decode_raw(x_bytes, tf.float32))

    arrays = tf.function(predict, input_signature=[tf.TensorSpec([None, *row], tf.float32, name="x")])
    raw = tf.function(predict_bytes, input_signature=[tf.TensorSpec([None], tf.string, name="x_bytes")])
    tf.saved_model.save(module, str(directory), signatures={"serving_default": arrays, "from_bytes": raw})


def _bodies(array: np.ndarray, directory: Path) -> dict[str, Path]:
    rows = [{"b64": base64.b64encode(row.tobytes()).decode()} for row in array]
    documents = {
        "JSON": {"instances": array.astype(np.float64).round(4).tolist()},
        "base64": {"signature_name": "from_bytes", "instances": rows},
    }
    paths = {}
    for form, document in documents.items():
        paths[form] = directory / f"{form}.json"
        paths[form].write_text(json.dumps(document))
    return paths


def _measure(name: str, shape: tuple[int, ...], folder: Path, seconds: int) -> list[Mapping[str, Cell]]:
    saved_model = folder / "saved_model"
    save_it = f"payloads.save({shape!r}, Path({str(saved_model)!r}))"
    code = f"from pathlib import Path; from benchmarks import payloads; {save_it}"
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120, stderr=subprocess.DEVNULL)
    array = np.random.default_rng(3).random(shape, np.float32).round(4)
    bodies = _bodies(array, folder)
    rows: list[Mapping[str, Cell]] = []
    with processes.serving(folder / "run", saved_model) as running:
        url = f"{running.url}/v1/models/{processes.MODEL}:predict"
        request = grpc_load.predict_request(processes.MODEL, array.tobytes(), list(shape))

        def over_grpc(connections: int) -> load.Load:
            return grpc_load.run(running.grpc_target, grpc_load.PREDICT, request, calls=connections, seconds=seconds)

        def over_http(body: Path) -> Callable[[int], load.Load]:
            return lambda connections: load.run(url, body, connections=connections, seconds=seconds)

        forms = [(form, path.stat().st_size, over_http(path)) for form, path in bodies.items()]
        for form, size, measure in (*forms, ("gRPC", len(request), over_grpc)):
            for connections in _CONNECTIONS:
                seen = measure(connections)
                rows.append({
                    "payload": name,
                    "form": form,
                    "MB": size / 1e6,
                    "connections": connections,
                    "requests/s": seen.per_second,
                    "rows/s": seen.per_second * shape[0],
                    "MB/s": seen.per_second * size / 1e6,
                    "p50 ms": seen.p50_ms,
                    "p99 ms": seen.p99_ms,
                    "errors": seen.errors,
                })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.payloads")
    parser.add_argument("--seconds", type=int, default=4, help="per line")
    options = parser.parse_args()
    rows: list[Mapping[str, Cell]] = []
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            rows += _measure(name, shape, Path(folder), options.seconds)
    how = (
        f"HTTP by {load.generator()}, gRPC by an asyncio generator, {options.seconds} s a line, on the same"
        f" {os.cpu_count()} cores; load average {os.getloadavg()[0]:.1f}."
    )
    publish("payloads", "Large requests over one instance", rows, notes=[how])


if __name__ == "__main__":
    main()
