"""Which files of tests take the time: `pytest -p testing.seconds -n 3 ...`, then `python -m testing.seconds`.

As a plugin it writes a line for each test into build/test_seconds/: seconds, seconds of a core in pytest's own process
and in its children that have ended, the test. As a program it adds them up by file. Grandchildren, and services that
outlive their test, are not in it.
"""

import os
import resource
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

_FOLDER = Path("build/test_seconds")
_SHOWN = 40


def _now() -> tuple[float, float]:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def pytest_sessionstart() -> None:
    """Forgets the run before; xdist's workers start after the one that starts them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(_FOLDER, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = _now()
    try:
        return (yield)
    finally:
        wall, core = (after - before for after, before in zip(_now(), began, strict=True))
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with (_FOLDER / os.environ.get("PYTEST_XDIST_WORKER", "main")).open("a") as file:
            file.write(f"{wall:.3f}\t{core:.3f}\t{item.nodeid}\n")


def main() -> None:
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for path in _FOLDER.iterdir():
        for line in path.read_text().splitlines():
            wall, core, test = line.split("\t")
            for index, value in enumerate((float(wall), float(core), 1.0)):
                found[test.partition("::")[0]][index] += value
    print("  wall   core  tests  file")
    for name, (wall_seconds, core_seconds, count) in sorted(found.items(), key=lambda one: -max(one[1][:2]))[:_SHOWN]:
        print(f"{wall_seconds:6.1f} {core_seconds:6.1f} {count:6.0f}  {name}")
    wall_seconds, core_seconds, count = map(sum, zip(*found.values(), strict=True))
    print(f"{wall_seconds:6.1f} {core_seconds:6.1f} {count:6.0f}  all {len(found)} files")


if __name__ == "__main__":
    main()
