"""Overload: goodput and refusals of one serving instance that is asked for three times what it can do.

Two models share one front. `heavy` costs the runner so much that the runner is what limits; `light` is asked little,
all the time. First the capacity of `heavy` is measured (a closed loop), then three times that is asked of it at a fixed
rate (an open loop: nobody waits for answers before asking again), every request with a deadline of a second. Goodput
counts the answers that came within it.

    python -m benchmarks.overload
    python -m benchmarks.overload save DIR WIDTH | load URL BODY RATE SECONDS DEADLINE_MS OUT        (its own children)
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.report import Cell, publish
from benchmarks.serving_load import load, processes
from benchmarks.serving_load.open_loop import OpenLoop, http_request, run_in_real_time

_SECONDS = int(os.environ.get("BENCH_SECONDS", "8"))
_SETTLE_SECONDS = 2.0
"""At the start of the overload, left out: the queue fills up."""
_TIMES_CAPACITY = 3.0
_DEADLINE_MS = 1000
_LIGHT_PER_SECOND = 50
_CONNECTIONS = 4000
_PEAK_CONNECTIONS = 128
_HEAVY, _LIGHT = "heavy", "light"
_WIDTHS = {_HEAVY: 2048, _LIGHT: 16}
_INPUTS = 64
_GOODPUT_TARGET, _REFUSAL_TARGET_MS = 0.95, 5.0
_REFUSED = (429, 503)
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def save(directory: Path, width: int) -> None:
    """A dense network 64-width-width-10."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(7)
    x = hidden = keras.Input((_INPUTS,), name="x", dtype="float32")
    for _ in range(2):
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    y = keras.layers.Dense(10, activation="softmax", name="y")(hidden)
    signature = [tf.TensorSpec([None, _INPUTS], tf.float32, name="x")]
    keras.Model(x, y).export(str(directory), input_signature=signature, verbose=False)


@contextmanager
def _serving(directory: Path) -> Iterator[str]:
    """Both models over one front, from folders; yields its URL."""
    models = "\n".join(
        f'config {{ name: "{name}" base_path: "{directory / name}" model_platform: "tensorflow" }}' for name in _WIDTHS
    )
    config = directory / "models.config"
    config.write_text(f"model_config_list {{ {models} }}\n")
    port = processes.free_port()
    with ExitStack() as stack:
        redis_url = stack.enter_context(processes.redis_server(directory / "redis"))
        stack.enter_context(
            processes.process(
                [sys.executable, "-m", "services.serving", f"--model_config_file={config}", f"--redis_url={redis_url}",
                 "--port=0", f"--rest_api_port={port}"],
                {"SERVING_LOG_LEVEL": "WARNING", "SERVING_DATA_DIR": str(directory / "data")} | _NO_GPU,
                directory / "serving.log",
            )
        )  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        processes.wait_until(lambda: processes.answers(f"{url}/readyz"), "serving being ready")
        yield url


def _body(path: Path) -> Path:
    row = np.random.default_rng(1).standard_normal(_INPUTS).astype(np.float32)
    path.write_text(json.dumps({"instances": [[float(f"{value:.9g}") for value in row]]}))
    return path


def _generate(arguments: list[str]) -> None:
    """One open loop, as a process of its own."""
    url, body, rate, seconds, deadline_ms, out = arguments
    request = http_request(url, Path(body).read_bytes())
    head, _, rest = request.partition(b"\r\n")
    request = head + b"\r\nX-Request-Timeout-Ms: " + deadline_ms.encode() + b"\r\n" + rest
    host, _, port = url.split("/")[2].partition(":")
    run_in_real_time()
    rows = OpenLoop((host, int(port)), request, float(rate), float(seconds), connections=_CONNECTIONS).run()
    np.save(out, rows)


def _open_loop(url: str, body: Path, rate: float, seconds: float, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "benchmarks.overload", "load", url, str(body), str(rate), str(seconds)]
    return subprocess.Popen([*command, str(_DEADLINE_MS), str(out)])


def _answered(rows: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Seconds of the good answers."""
    seconds, status = rows[kept, 1], rows[kept, 2]
    return np.asarray(seconds[(status == 200) & (seconds <= _DEADLINE_MS / 1000)])


def _line(name: str, rows: np.ndarray, per_second: float) -> Mapping[str, Cell]:
    """What one model's clients saw after the first seconds."""
    kept = rows[:, 0] >= rows[:, 0].min() + _SETTLE_SECONDS
    duration = rows[kept, 0].max() - rows[kept, 0].min()
    good = _answered(rows, kept)
    status, seconds = rows[kept, 2], rows[kept, 1]
    refused = seconds[np.isin(status, _REFUSED)] * 1e3
    late = (status == 504) | ((status == 200) & (seconds > _DEADLINE_MS / 1000))
    return {
        "model": name,
        "asked/s": round(per_second),
        "goodput/s": round(len(good) / duration),
        "good p50 ms": float(np.median(good) * 1e3) if len(good) else None,
        "good p99 ms": float(np.percentile(good, 99) * 1e3) if len(good) else None,
        "refused/s": round(len(refused) / duration),
        "refusal p50 ms": float(np.median(refused)) if len(refused) else None,
        "refusal p99 ms": float(np.percentile(refused, 99)) if len(refused) else None,
        "late/s": round(float(late.sum() / duration), 1),
        "failed": int((~np.isin(status, (200, 504, *_REFUSED))).sum()),
    }


def _refusals(url: str) -> str:
    """By reason, from the metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line.partition("{")[2] for line in lines if line.startswith("headrace_serving_refused_total{")]
    return "; ".join(found) or "none"


def _measure(url: str, body: Path, directory: Path) -> tuple[load.Load, float]:
    """The peak of `heavy`, and the rate that was then asked of it; the open loops leave their rows in the directory."""
    heavy, light = (f"{url}/v1/models/{name}:predict" for name in (_HEAVY, _LIGHT))
    load.run(heavy, body, connections=_PEAK_CONNECTIONS, seconds=2)
    peak = load.run(heavy, body, connections=_PEAK_CONNECTIONS, seconds=_SECONDS)
    rate = peak.per_second * _TIMES_CAPACITY
    seconds = _SECONDS + _SETTLE_SECONDS
    children = [
        _open_loop(heavy, body, rate, seconds, directory / "heavy.npy"),
        _open_loop(light, body, _LIGHT_PER_SECOND, seconds, directory / "light.npy"),
    ]
    for child in children:
        child.wait(timeout=seconds + 90)
    return peak, rate


def main() -> None:
    match sys.argv[1:]:
        case ["load", *arguments]:
            _generate(arguments)
            return
        case ["save", model_dir, width]:
            save(Path(model_dir), int(width))
            return
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for name, units in _WIDTHS.items():
            command = [sys.executable, "-m", "benchmarks.overload", "save", str(directory / name / "1"), str(units)]
            quiet = subprocess.DEVNULL
            subprocess.run(command, env=os.environ | _NO_GPU, check=True, timeout=120, stdout=quiet, stderr=quiet)
        with _serving(directory) as url:
            peak, rate = _measure(url, _body(directory / "body.json"), directory)
            reasons = _refusals(url)
        heavy = _line(_HEAVY, np.load(directory / "heavy.npy"), rate)
        light = _line(_LIGHT, np.load(directory / "light.npy"), _LIGHT_PER_SECOND)
    goodput = heavy["goodput/s"]
    assert isinstance(goodput, int)
    share = goodput / peak.per_second
    publish(
        "overload",
        f"One instance asked for {_TIMES_CAPACITY:g} times its capacity",
        [heavy, light],
        notes=[
            f"Peak of {_HEAVY}: {peak.per_second:,.0f}/s over {_PEAK_CONNECTIONS} connections ({load.generator()}).",
            f"Goodput / peak: {share:.3f}, target {_GOODPUT_TARGET}. Refusals: p99 target {_REFUSAL_TARGET_MS:g} ms.",
            f"Good: answered within {_DEADLINE_MS} ms. Clients and server share {os.cpu_count()} cores.",
            f"Machine load while this ran: {os.getloadavg()[0]:.1f}.",
            f"Refused since the start: {reasons}",
        ],
        facts={"peak_per_second": peak.per_second, "goodput_over_peak": share},
    )


if __name__ == "__main__":
    main()
