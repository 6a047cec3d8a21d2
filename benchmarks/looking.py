"""The price of what is looked at: statistics of a round beside its training, and the reports of an instance.

`python -m benchmarks.looking`

CPU time, which depends less than the clock on what else the machine does. Statistics and a pass of training take turns
over the same events. A report of ten served models is sent to a separate registry, in sequence.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import tensorflow as tf

from benchmarks.report import Cell, publish
from benchmarks.training import Arrays, built, digits, flights, platform_pass, schema_of
from common.registry.client import RegistryClient
from common.registry.reporting import Part, Report, Served
from services.trainer import determinism
from services.trainer.summaries.statistics import RoundStatistics
from testing.registry_server import RegistryServer

_REPEATS = 5
_REPORTS, _MODELS, _EVERY_SECONDS = 500, 10, 2.0


def _cpu_seconds(run: Callable[[], object]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def _of_statistics(name: str, arrays: Arrays) -> dict[str, Cell]:
    """CPU time of statistics and of one pass of training, by event; a round with more passes pays less."""
    schema, count = schema_of(name), len(next(iter(arrays.values())))
    raw: Mapping[str, tf.Tensor] = {key: tf.constant(values) for key, values in arrays.items()}
    with tempfile.TemporaryDirectory() as directory:
        learn = platform_pass(built(name, arrays, Path(directory)), arrays, count)

        def look() -> None:
            RoundStatistics(schema).add(raw, absent={})

        learn()
        pairs = [(_cpu_seconds(learn), _cpu_seconds(look)) for _ in range(_REPEATS)]
    trained, looked = (statistics.median(values) / count * 1e6 for values in zip(*pairs, strict=True))
    return {
        "what": f"statistics of a round: {name}",
        "CPU us": looked,
        "of": "one pass of training, by event",
        "its CPU us": trained,
        "percent": statistics.median(look / train for train, look in pairs) * 100,
    }


def _report() -> Report:
    numbers = {"requests_per_second": 100.0, "request_p50_seconds": 0.002, "request_p99_seconds": 0.01, "errors": 0.0}
    served = tuple(Served(f"m{index}", 1, "AVAILABLE", 1.0) for index in range(_MODELS))
    parts = tuple(Part(model=model.model, version=1, numbers=numbers) for model in served)
    return Report("replica", "serving", "127.0.0.1:1", 1.0, serves=served, numbers=numbers, parts=parts)


def _of_reports() -> list[dict[str, Cell]]:
    with tempfile.TemporaryDirectory() as directory:
        registry = RegistryServer(Path(directory) / "registry")
        registry.start()
        assert registry.process is not None
        client, server = RegistryClient(registry.address), psutil.Process(registry.process.pid)
        client.report(_report())
        before = sum(server.cpu_times()[:2])
        sent = _cpu_seconds(lambda: [client.report(_report()) for _ in range(_REPORTS)])
        taken = sum(server.cpu_times()[:2]) - before
        client.close()
        registry.stop()
    return [
        {
            "what": f"a report of {_MODELS} models: {sender}", "CPU us": seconds / _REPORTS * 1e6,
            "of": f"a core, one each {_EVERY_SECONDS:.0f} s", "its CPU us": _EVERY_SECONDS * 1e6,
            "percent": seconds / _REPORTS / _EVERY_SECONDS * 100,
        }
        for sender, seconds in (("sent", sent), ("taken by the registry", taken))
    ]  # fmt: skip


def main() -> None:
    if "--statistics" in sys.argv:
        determinism.configure(intra_op_threads=1, inter_op_threads=1)
        rows = [_of_statistics("flights", flights(16_384)), _of_statistics("digits", digits(4_096))]
        publish("looking_statistics", "What statistics of a round cost", rows)
        return
    subprocess.run([sys.executable, "-m", "benchmarks.looking", "--statistics"], check=True)
    publish("looking", "What reports cost", _of_reports())


if __name__ == "__main__":
    main()
