"""`python -m examples.cluster [NAME...]`: the modes of modes.yaml, each on a separate platform, in one table.

Every mode learns the same digits in one round, and the version is then trained again by one trainer: where steps follow
each other to the same bits, where they are asynchronous to metrics within the definition's tolerance.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from common.registry.catalog import Version
from examples.digits.replay import events
from headrace.client.platform import Client
from headrace.client.rebuilds import Rebuild
from headrace.local.launcher import Launcher

EXAMPLES = Path(__file__).parents[1]
_EVENTS, _WAIT_SECONDS = 1_000, 600.0
_NO_GATE = {"metric": "accuracy", "max_regression": None}


@dataclass(frozen=True)
class Mode:
    """Attributes:
    handbook: what TensorFlow's handbooks call it.
    training: keys of the model's `training`, beside those of examples/digits.
    environment: the trainer's settings.
    """

    handbook: str
    training: Mapping[str, Any]
    environment: Mapping[str, Any] = field(default_factory=dict)
    trainers: int = 1

    def definition(self) -> dict[str, Any]:
        """examples/digits with one round over the events, as a mapping."""
        found: dict[str, Any] = yaml.safe_load((EXAMPLES / "digits" / "model.yaml").read_text())
        return found | {
            "training": found["training"] | {"passes": 2} | dict(self.training),
            "triggers": {"min_examples": _EVENTS},
            "gate": _NO_GATE,
        }


def modes() -> dict[str, Mode]:
    return {
        name: Mode(**mode) for name, mode in yaml.safe_load(Path(__file__).with_name("modes.yaml").read_text()).items()
    }


@contextmanager
def _platform(mode: Mode, directory: Path) -> Iterator[Client]:
    kept = dict(os.environ)
    os.environ |= {name: str(value) for name, value in mode.environment.items()}
    os.environ |= {"TRAINER_INTRA_OP_THREADS": "1", "TRAINER_SCHEDULING": "normal"}
    launcher = Launcher(directory / "platform")
    try:
        launcher.up(trainers=mode.trainers, port_offset=None)
        state = launcher.wait_until_ready()
        with Client(state.addresses, by="examples.cluster") as client:
            yield client
    finally:
        launcher.close()
        os.environ.clear()
        os.environ.update(kept)


def run(mode: Mode, directory: Path) -> tuple[Version, Rebuild]:
    """One round, and its version trained again."""
    folder = directory / "digits"
    folder.mkdir()
    (folder / "model.yaml").write_text(yaml.safe_dump(mode.definition(), sort_keys=False))
    for name in ("model.py", "stream.yaml"):
        (folder / name).write_bytes((EXAMPLES / "digits" / name).read_bytes())
    with _platform(mode, directory) as client:
        client.apply(folder)
        client.append("digits", list(events(_EVENTS)))
        deadline = time.monotonic() + _WAIT_SECONDS
        while not client.versions("digits"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no version within {_WAIT_SECONDS:g} s: {client.why('digits')}")
            time.sleep(0.5)
        return client.version("digits", 1), client.rebuild("digits", 1, wait_seconds=_WAIT_SECONDS)


def row(name: str, version: Version, again: Rebuild) -> str:
    ran = version.environment
    served = ran["training"].get("asynchronous")
    processes = f"{len(served['batches_by_worker'])} + {served['servers']}" if served else str(ran["workers"])
    judged = "equal bits" if again.reproducible else "near enough"
    equal = judged if again.equal else "NOT EQUAL"
    cells = (
        f"{name:25}", f"{processes:>9}", f"{ran['devices']:>7}", f"{ran['trainers']:>8}", f"{version.step:>5}",
        f"{version.timings['train']:>7.1f}", f"{version.metrics['candidate']['accuracy']:>8.3f}",
        f"{version.weights_digest[:8]:>9}", f"{equal:>11}",
    )  # fmt: skip
    return " ".join(cells)


def main() -> int:
    known = modes()
    parser = argparse.ArgumentParser(prog="python -m examples.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *known], help=f"of {', '.join(known)}; all by default")
    names = parser.parse_args().names or list(known)
    print(f"{'':25} processes devices trainers steps train s accuracy   weights     rebuilt")
    is_well = True
    for name in names:
        with tempfile.TemporaryDirectory(prefix="headrace-cluster-") as directory:
            version, again = run(known[name], Path(directory))
        print(row(name, version, again), flush=True)
        is_well &= again.equal
    return 0 if is_well else 1


if __name__ == "__main__":
    raise SystemExit(main())
