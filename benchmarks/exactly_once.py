"""Row 6: what exactly-once costs training: rounds with and without resume points and lineage, on the flights model.

`python -m benchmarks.exactly_once [--passes 6] [--repeats 3]`

Both are whole rounds over a real registry process, on the same events, taken in turns, each in a separate process.
What counts is the time that the round spends reading, training and saving resume points. To the rounds with exactly-
once the lineage is added: capturing the final weights, their digest, writing and hashing the checkpoint.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import Cell, publish
from common.definition.model import parse_definition
from common.eventlog import tfrecord
from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.open import open_event_log
from common.examples.codec import ExampleCodec
from common.registry.catalog import Lease, OffsetRange, RoundPlan
from common.registry.client import RegistryClient, manifest_of
from common.schema import Schema
from examples.flights.replay import events
from services.trainer.plan import lineage
from services.trainer.settings import TrainerSettings
from testing.registry_server import RegistryServer

_FLIGHTS = Path(__file__).parents[1] / "examples" / "flights"
_EXAMPLES_PER_RECORD = 2_000
_LARGEST_PRICE = 0.03
_NEVER_SECONDS = 1e9
_READY_SECONDS = 60.0


@dataclass(frozen=True)
class Measured:
    """One round's seconds, and the examples that it trained on, passes counted."""

    trained: int
    training_seconds: float
    resume_seconds: float
    resume_points: int
    lineage_seconds: float

    def examples_per_second(self, *, exactly_once: bool) -> float:
        extra = self.resume_seconds + self.lineage_seconds if exactly_once else 0.0
        return self.trained / (self.training_seconds + extra)


def main() -> int:
    """Exit status 1 when the price is above the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=6, help="over 336,776 flights; a round should outlast its points")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between resume points (the default's 10)")
    parser.add_argument("--round", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.round:
        print(json.dumps(_round(json.loads(arguments.round))))
        return 0
    results: dict[float, list[Measured]] = {_NEVER_SECONDS: [], arguments.interval: []}
    with tempfile.TemporaryDirectory(prefix="headrace-once-") as folder, ExitStack() as stack:
        registry = RegistryServer(Path(folder) / "registry")
        stack.callback(registry.stop)
        registry.start()
        end = _filled(Path(folder), registry.address)
        for _ in range(arguments.repeats):
            for interval, found in results.items():
                found.append(_in_a_process(Path(folder), registry.address, end, interval, arguments.passes))
    return _publish(results[_NEVER_SECONDS], results[arguments.interval], arguments.interval)


def _publish(without: list[Measured], with_it: list[Measured], interval: float) -> int:
    plain = statistics.median(found.examples_per_second(exactly_once=False) for found in without)
    careful = statistics.median(found.examples_per_second(exactly_once=True) for found in with_it)
    own = statistics.median(
        (found.resume_seconds + found.lineage_seconds) / found.training_seconds for found in with_it
    )
    price = 1.0 - careful / plain
    rows: list[dict[str, Cell]] = [
        {
            "training": name,
            "examples/s": value,
            "slowest": min(each),
            "fastest": max(each),
            "resume points": found[0].resume_points,
            "price": price if found is with_it else None,
            "price by own time": own if found is with_it else None,
            "target": _LARGEST_PRICE if found is with_it else None,
        }
        for name, value, found, each in (
            ("without", plain, without, [m.examples_per_second(exactly_once=False) for m in without]),
            (
                "resume points and lineage",
                careful,
                with_it,
                [m.examples_per_second(exactly_once=True) for m in with_it],
            ),
        )
    ]
    first = with_it[0]
    saved = f"{first.resume_seconds:.2f} s for {first.resume_points} resume points"
    notes = [
        f"Medians of {len(with_it)} rounds each, taken in turns; a resume point every {interval:g} s.",
        f"One round: {saved}, {first.lineage_seconds:.2f} s for lineage, {first.training_seconds:.1f} s of training.",
        "Price: by the throughput of the two; what else the machine does disturbs it.",
        "Price by own time: the seconds of the extra work over those of training in the same round.",
    ]
    publish("exactly_once", "What exactly-once costs training, flights model", rows, notes=notes)
    return 1 if own > _LARGEST_PRICE else 0


def _in_a_process(directory: Path, address: str, end: int, interval: float, passes: int) -> Measured:
    settings = {"directory": str(directory), "registry": address, "end": end, "interval": interval, "passes": passes}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.exactly_once", "--round", json.dumps(settings)],
        check=True, stdout=subprocess.PIPE, timeout=900,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def _round(settings: dict[str, Any]) -> dict[str, float]:
    """Plans, leases and runs one round; its seconds."""
    from services.trainer import determinism
    from services.trainer.control.trusted_half import Means, TrustedHalf
    from services.trainer.export.fresh_process import FreshProcess
    from services.trainer.learn import checkpoint
    from services.trainer.protocol.assignment import RoundAssignment
    from services.trainer.protocol.messages import Done
    from services.trainer.rounds.one_round import Surroundings
    from services.trainer.rounds.outside import Outside
    from services.trainer.rounds.process import conduct
    from services.trainer.settings import TrainerSettings

    def answer(channel: socket.socket, half: TrustedHalf) -> None:
        while (found := socket.recv_fds(channel, 1, 1))[0]:
            half.take(found[1][0])

    directory = Path(settings["directory"])
    threads = len(os.sched_getaffinity(0))
    fresh = FreshProcess.fork()
    determinism.configure(intra_op_threads=threads, inter_op_threads=1)
    work_dir = Path(tempfile.mkdtemp(dir=directory))
    event_log = f"segments:{directory}/log"
    registry = RegistryClient(settings["registry"], timeout_seconds=_READY_SECONDS)
    with closing(fresh), closing(registry), closing(open_event_log(event_log)) as log:
        lease, passes = _leased(registry, event_log, settings)
        assignment = RoundAssignment(
            lease, event_log, str(work_dir), str(work_dir / "cache"), threads, 1,
            settings["interval"],
        )  # fmt: skip
        ours, theirs = socket.socketpair()
        half = TrustedHalf(
            assignment,
            registry,
            Means(
                TrainerSettings(data_dir=directory, event_log=event_log),
                lambda digest: parse_definition(registry.get_definition(digest)),
            ),
        )
        threading.Thread(target=answer, args=(ours, half), daemon=True).start()
        progress: list[int] = []
        done = conduct(
            assignment,
            lambda message: progress.append(getattr(message, "resume_points", 0)),
            lambda: False,
            Surroundings(Outside(theirs.fileno()), log, fresh),
        )
        assert isinstance(done, Done), done
        version = half.version
        assert version is not None, "it is done"
    began = time.monotonic()
    found = checkpoint.read(work_dir / "cache" / version.model / str(version.version))
    checkpoint.weights_digest(found.arrays)
    checkpoint.write(work_dir / "again", found)
    manifest_of(work_dir / "again")
    return {
        "trained": version.events_trained * passes,
        "training_seconds": version.timings["train"] + version.timings["read"],
        "resume_seconds": version.timings.get("resume_points", 0.0),
        "resume_points": max(progress),
        "lineage_seconds": time.monotonic() - began,
    }


def _leased(registry: RegistryClient, event_log: str, settings: dict[str, Any]) -> tuple[Lease, int]:
    """A separate model, with a round over everything; and the number of its passes."""
    name = f"flights-{time.time_ns()}"
    mapping = yaml.safe_load((_FLIGHTS / "model.yaml").read_text())
    mapping |= {"name": name, "training": {**mapping["training"], "passes": settings["passes"]}}
    files = {"model.yaml": yaml.safe_dump(mapping, sort_keys=False).encode()}
    definition = parse_definition(files)
    model = registry.register_model(name, stream="flights", files=files, by="benchmark")
    configuration = lineage.configuration_of(definition, TrainerSettings(event_log=event_log))
    plan = RoundPlan(
        model=name,
        sequence=1,
        parent_version=0,
        stream="flights",
        schema_version=1,
        ranges=(OffsetRange(0, 0, settings["end"]),),
        definition_digest=model.definition_digest,
        configuration=configuration,
        configuration_digest=lineage.digest_of(configuration),
        code_digest=lineage.code_digest(),
        seed=7,
        example_count=settings["end"] * _EXAMPLES_PER_RECORD,
        trigger="manual",
        last_event_at=time.time(),
    )
    registry.plan_round(plan)
    lease = registry.lease_round("benchmark", ttl_seconds=3600.0, models=(name,))
    assert lease is not None
    return lease, definition.training.passes


def _filled(directory: Path, address: str) -> int:
    """Every flight of the example in the log; the end offset."""
    stream = yaml.safe_load((_FLIGHTS / "stream.yaml").read_text())
    schema = Schema.from_mapping({key: value for key, value in stream.items() if key != "stream"})
    with closing(RegistryClient(address, timeout_seconds=_READY_SECONDS)) as registry:
        registry.register_stream("flights", schema.to_json())
    codec = ExampleCodec(schema)
    examples = map(codec.encode, events(None))
    with closing(open_event_log(f"segments:{directory}/log")) as log:
        log.create_topic("examples.flights", partition_count=1)
        while part := list(islice(examples, _EXAMPLES_PER_RECORD)):
            headers = RecordHeaders(1, len(part), round(time.time(), 6), os.urandom(16))
            log.append("examples.flights", 0, [NewRecord(tfrecord.frame(part), headers)])
        return log.end_position("examples.flights")[0]


if __name__ == "__main__":
    sys.exit(main())
