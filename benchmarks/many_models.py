"""Many models on one replica within a budget of memory: how long the first answer of a cold model takes, and what each
model holds.

    python -m benchmarks.many_models [--models 200] [--budget-mb 600] [--models-per-runner 1]

The models have three programs (y = sum(x) + 1000 * version). Each is asked once, then all again in random order by
two clients: those that left meanwhile are loaded again. `in the runner` is of each newest load: how long its runner
took to load it and to warm up. The rest of a cold answer is the fork, the files and the wait for room.
"""

import argparse
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Cell, publish
from common.process.lean_imports import lean_command
from services.serving.tests.support.standalone_server import StandaloneServer
from testing.redis_server import RedisServer

_TARGET_SECONDS = 1.0
_CLIENTS = 2
_WARM = 50


@contextmanager
def serving(models: int, *, memory_bytes: int = 0, models_per_runner: int = 1) -> Iterator[StandaloneServer]:
    """A replica that has just been started, with models m0, m1, ... of folders, and a Redis."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        written = directory / "written"
        subprocess.run(
            lean_command("services.serving.tests.support.saved_models", str(written)), check=True, timeout=280
        )
        entries = []
        for model in range(models):
            base = directory / f"m{model}"
            shutil.copytree(written / f"affine/{model % 3 + 1}", base / "1")
            entries.append(f'config {{ name: "m{model}" base_path: "{base}" model_platform: "tensorflow" }}')
        config = directory / "models.config"
        config.write_text(f"model_config_list {{ {' '.join(entries)} }}")
        redis = RedisServer(directory)
        redis.start()
        server = StandaloneServer(
            redis.url, f"--model_config_file={config}",
            SERVING_DATA_DIR=str(directory / "data"), SERVING_MODEL_MEMORY_BYTES=str(memory_bytes),
            SERVING_MODELS_PER_RUNNER=str(models_per_runner),
        )  # fmt: skip
        try:
            yield server
        finally:
            server.kill()
            redis.stop()


def predict(server: StandaloneServer, model: int) -> float:
    """Seconds until the model's own answer."""
    began = time.monotonic()
    response = server.predict(f"m{model}", [1.0, 2.0, 3.0])
    seconds = time.monotonic() - began
    if response.status_code != 200 or response.json()["predictions"] != [1000.0 * (model % 3 + 1) + 6]:
        raise RuntimeError(f"model m{model} answered {response.status_code}: {response.text}")
    return seconds


def row_of(name: str, seconds: list[float], server: StandaloneServer) -> dict[str, Cell]:
    ordered, memory = sorted(seconds), server.get("/headrace/status").json()["memory"]
    versions = [version for model in server.get("/headrace/models").json()["models"] for version in model["versions"]]
    return {
        "requests": name,
        "count": len(ordered),
        "p50 s": statistics.median(ordered),
        "p95 s": ordered[int(0.95 * (len(ordered) - 1))],
        "longest s": ordered[-1],
        "target s": _TARGET_SECONDS,
        "in the runner, p50 s": statistics.median(
            version["load_seconds"] for version in versions if version["load_seconds"]
        ),
        "processes": len({version["runner"].split("/")[-1] for version in versions if version["runner"]}),
        "models in memory": len(memory["loaded"]),
        "MB in memory": memory["used_bytes"] / 1e6,
        "evictions": sum(memory["evictions"].values()),
    }


def measure(server: StandaloneServer, models: int) -> list[dict[str, Cell]]:
    rows = [row_of("first of each model", [predict(server, model) for model in range(models)], server)]
    rows.append(row_of("warm, one model", [predict(server, models - 1) for _ in range(_WARM)], server))
    order = random.Random(7).sample(range(models), models)
    with ThreadPoolExecutor(_CLIENTS) as clients:
        again = list(clients.map(lambda model: predict(server, model), order))
    return [*rows, row_of("all again, in random order", again, server)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_models", description=__doc__)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--budget-mb", type=int, default=600)
    parser.add_argument("--models-per-runner", type=int, default=1)
    given = parser.parse_args()
    memory_bytes = given.budget_mb * 1_000_000
    with serving(given.models, memory_bytes=memory_bytes, models_per_runner=given.models_per_runner) as server:
        server.wait_ready()
        rows = measure(server, given.models)
    publish(
        "many_models", f"{given.models} models on one replica", rows,
        facts={
            "budget_mb": given.budget_mb, "models_per_runner": given.models_per_runner, "clients": _CLIENTS,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
