"""Which files of tests take the time: `pytest -p testing.seconds --workers 4 ...`, then `python -m testing.seconds`.

As a plugin it writes a line for each test into build/test_seconds/: seconds, seconds of a core of every process that
its worker has started, the test. As a program it adds them up by file. What several workers share, such as a warm
process, counts for the worker that has started it; without --workers it counts for the test that uses it. Where no
control group can be made (root makes one), only pytest's own process and its children that have ended are in it.
"""

import atexit
import contextlib
import functools
import os
import resource
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

_FOLDER = Path("build/test_seconds").absolute()
_SHOWN = 40
_GROUPS = Path("/sys/fs/cgroup/cpuacct")
_began = time.monotonic()


@functools.cache
def _group(pid: int) -> Path | None:
    """Has this process and all that it starts from now on; a worker has its own."""
    group = _GROUPS / f"test_seconds_{pid}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        return None
    atexit.register(_leave, pid)
    return group


def _leave(pid: int) -> None:
    if (group := _group(pid)) and pid == os.getpid():
        with contextlib.suppress(OSError):
            for member in (group / "cgroup.procs").read_text().split():  # what it has started may end later
                (_GROUPS / "cgroup.procs").write_text(member)
            group.rmdir()


def _now() -> tuple[float, float]:
    if group := _group(os.getpid()):
        return time.monotonic(), int((group / "cpuacct.usage").read_text()) / 1e9
    used = (resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.monotonic(), sum(usage.ru_utime + usage.ru_stime for usage in used)


def _write(wall_seconds: float, core_seconds: float, subject: str) -> None:
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / str(os.getpid())).open("a") as file:
        file.write(f"{wall_seconds:.3f}\t{core_seconds:.3f}\t{subject}\n")


def pytest_sessionstart() -> None:
    """Forgets the run before."""
    shutil.rmtree(_FOLDER, ignore_errors=True)


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
    for name, (wall_seconds, core_seconds, count) in sorted(found.items(), key=lambda row: -max(row[1][:2]))[:_SHOWN]:
        print(f"{wall_seconds:6.1f} {core_seconds:6.1f} {count:6.0f}  {name}")
    wall_seconds, core_seconds, count = map(sum, zip(*found.values(), strict=True))
    print(f"{wall_seconds:6.1f} {core_seconds:6.1f} {count:6.0f}  all {len(found)} files")


if __name__ == "__main__":
    main()
