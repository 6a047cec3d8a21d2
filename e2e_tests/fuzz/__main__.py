"""python -m e2e_tests.fuzz --requests 10000 --seed 1 [--data DIR]: exit status 1 when a door showed a fault."""

import argparse
import sys
import tempfile
from pathlib import Path

from e2e_tests.fuzz.run import MOST_GROWTH_MB, growth_mb, run, teach
from headrace import Client
from headrace.local.launcher import Launcher

_WARM_UP_REQUESTS = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="for each door (default: 10000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="of a platform that runs on this machine; without it one is started")
    given = parser.parse_args()
    if given.data is not None:
        return _judge(Launcher(given.data), requests=given.requests, seed=given.seed)
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder) / "data")
        launcher.up(port_offset=None)
        try:
            launcher.wait_until_ready()
            return _judge(launcher, requests=given.requests, seed=given.seed)
        finally:
            launcher.close()


def _judge(launcher: Launcher, *, requests: int, seed: int) -> int:
    state = launcher.state()
    with Client(state.addresses, by="fuzz") as client:
        teach(client)
    warm_up = run(state, requests=min(requests, _WARM_UP_REQUESTS), seed=seed + 1)
    memory = state.memory_mb()
    report = run(state, requests=requests, seed=seed)
    grown = growth_mb(state, memory)
    for door, statuses in report.statuses.items():
        print(f"{door}: {', '.join(f'{count} x {status}' for status, count in statuses.most_common())}")
    print(f"memory grew by MB: {grown}")
    faults = warm_up.faults + report.faults
    faults += [f"{name} grew by {size} MB" for name, size in grown.items() if size > MOST_GROWTH_MB]
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
