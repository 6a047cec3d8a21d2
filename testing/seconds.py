"""Which files of tests take the time: `pytest -p testing.seconds -n 3 ...`, then `python -m testing.seconds`.

As a plugin it writes a line for each test into build/test_seconds/: seconds, seconds of a core of every process that
its worker has started, the test. As a program it adds them up by file. What several workers share, such as a warm
process, counts for the worker that has started it; without -n it counts for the test that uses it. Where no control
group can be made (root makes one), only pytest's own process and its children that have ended are in it.
"""

import contextlib
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
_GROUPS = Path("/sys/fs/cgroup/cpuacct")
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
_group = _GROUPS / f"test_seconds_{os.getpid()}"


_began = time.monotonic()


def _now() -> tuple[float, float]:
    if _group.exists():
        return time.monotonic(), int((_group / "cpuacct.usage").read_text()) / 1e9
    used = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.monotonic(), sum(one.ru_utime + one.ru_stime for one in used)


def _write(wall_seconds: float, core_seconds: float, what: str) -> None:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / _WORKER).open("a") as file:
        file.write(f"{wall_seconds:.3f}\t{core_seconds:.3f}\t{what}\n")


def pytest_sessionstart() -> None:
    """Forgets the run before; xdist's workers start after the one that starts them."""
    if _WORKER == "main":
        shutil.rmtree(_FOLDER, ignore_errors=True)
    with contextlib.suppress(OSError):
        _group.mkdir()
        (_group / "cgroup.procs").write_text(str(os.getpid()))


def pytest_sessionfinish() -> None:
    with contextlib.suppress(OSError):
        (_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        _group.rmdir()


def pytest_collection_finish() -> None:
    _write(time.monotonic() - _began, time.process_time(), "(imports and collection)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    began = _now()
    try:
        return (yield)
    finally:
        wall, core = (after - before for after, before in zip(_now(), began, strict=True))
        _write(wall, core, item.nodeid)


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
