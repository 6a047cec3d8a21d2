"""This tree beside another tree: CPU time per request of serving's front and of ingest, in turn, in one run.

`python -m benchmarks.paired TREE [--starts 6] [--rounds 6] [--seconds 1]`, where TREE is a checkout of another commit
(`git worktree add TREE COMMIT`).

All run all the while, as they are by default, and are loaded one after the other, the order changing from round to
round. There are two of each tree, started anew several times; one of each beside the other of each is the control.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.prices import compared, in_turn, of_ingest, of_serving
from benchmarks.report import publish
from benchmarks.serving_load.model import write_body

_LIMIT = 1.02
_CONNECTIONS, _EVENTS = 16, 100
_THIS = Path(__file__).parents[1]
_START_SECONDS = 120
_HOLD = """
import json, os, sys
from contextlib import ExitStack
from pathlib import Path
from benchmarks.ingest import Platform
from benchmarks.serving_load import processes
directory = Path(sys.argv[1])
with ExitStack() as stack:
    running = stack.enter_context(processes.serving(directory / "run", directory / "model" / "saved_model"))
    cores = set(os.sched_getaffinity(0))
    (directory / "ingest").mkdir()
    platform = Platform(directory / "ingest", cores, cores)
    stack.callback(platform.stop)
    found = {"url": running.url, "front": running.front_pid, "port": platform.http_port, "ingest": platform.ingest.pid}
    print(json.dumps(found), flush=True)
    sys.stdin.read()
"""
"""With the modules of the other tree: says where its serving and ingest are, and stops them with its input's end."""


def _started(tree: Path, directory: Path, stack: ExitStack) -> dict[str, Any]:
    directory.mkdir()
    environment = os.environ | {"PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    save = [sys.executable, "-m", "benchmarks.serving_load.model", "save", str(directory / "model" / "saved_model")]
    subprocess.run(save, cwd=tree, env=environment, check=True, timeout=_START_SECONDS)
    held = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(directory)],
        cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def end() -> None:
        held.communicate(timeout=_START_SECONDS)

    stack.callback(end)
    assert held.stdout
    return dict(json.loads(held.stdout.readline()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=1)
    options = parser.parse_args()
    trees: Sequence[Path] = (options.tree.absolute(), _THIS) * 2
    serving, ingest = [], []
    for _ in range(options.starts):
        with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
            directory = Path(name)
            body = write_body(directory / "body.json")
            found = [_started(tree, directory / str(number), stack) for number, tree in enumerate(trees)]
            serving.append(
                in_turn(
                    [of_serving(tree["url"], tree["front"], body, options.seconds) for tree in found], options.rounds
                )
            )
            ingest.append(
                in_turn([of_ingest(tree["port"], tree["ingest"], options.seconds) for tree in found], options.rounds)
            )
    titles = ("the other tree", "this tree")
    rows = [
        compared(f"serving, {_CONNECTIONS} connections", serving, titles, _LIMIT),
        compared(f"ingest, JSON of {_EVENTS} events", ingest, titles, _LIMIT),
    ]
    publish("paired", f"This tree beside {options.tree}", rows)


if __name__ == "__main__":
    main()
