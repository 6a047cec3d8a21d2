"""pytest's plugin of testing/mutants.py: runs the tests of a copy, without a mutant and with each."""

import atexit
import contextlib
import ctypes
import json
import mmap
import os
import select
import signal
import time
import traceback
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureManager

from testing.mutants import KEEP, UNTIL, Kept, Mutant

_MOST_SECONDS, _MOST_TESTS = 25.0, 25
"""Of the tests of a mutant, as long as they took without it."""
_MOST_DOUBTFUL = 3
_TEST_SECONDS = 120.0
"""Of a test whose time is not known yet."""
_PATIENCE_SECONDS = 20.0
"""Beside thrice the time that a test takes without the mutant."""
_DIES_WITH_PARENT, _IS_SUBREAPER = 1, 36
"""PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER."""


class Switches:
    """The memory that every process of a copy shares: whether it came to a switch, and which is on."""

    def __init__(self, tree: Path, count: int) -> None:
        self._count = count
        with (tree / "mutants.switches").open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def reached(self) -> list[int]:
        """Since the last call."""
        found = [number for number in range(self._count) if self._memory[number]]
        self._memory[: self._count] = bytes(self._count)
        return found

    def turn_on(self, number: int | None) -> None:
        self._memory[self._count : 2 * self._count] = bytes(self._count)
        if number is not None:
            self._memory[self._count + number] = 1


class Judge:
    """pytest's plugin: runs the tests of the copy, without a mutant and with each."""

    def __init__(self, kept: Kept, until: float) -> None:
        self._kept = kept
        self._until = until
        self._tree = Path.cwd()
        self._sample = [Mutant(**entry) for entry in json.loads(Path("mutants.json").read_text())]
        self._switches = Switches(self._tree, len(self._sample))
        self._has_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._has_failed = self._has_failed or report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise pytest.UsageError("the tests cannot be collected")
        ctypes.CDLL(None).prctl(_IS_SUBREAPER, 1, 0, 0, 0)
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # has no public name
        at_import = [self._sample[number].key for number in self._switches.reached()]
        self._kept.add("imports.jsonl", {"mutants": at_import})
        items = {item.nodeid: item for item in session.items}
        files: dict[str, list[str]] = defaultdict(list)
        for name in items:
            files[name.partition("::")[0]].append(name)
        print(f"{len(items)} tests in {len(files)} files, {len(self._sample)} mutants", flush=True)
        known = {line["test"] for line in self._kept.lines("tests.jsonl")}
        for file, names in reversed(files.items()):  # the longest last
            self._look(session, file, [name for name in names if name not in known])
        judged = {line["mutant"] for line in self._kept.lines("verdicts.jsonl")}
        for number in sorted(range(len(self._sample)), key=lambda number: self._sample[number].key in judged):
            self._judge(session, number, items)
        return True

    def _is_late(self) -> bool:
        return time.time() > self._until

    def _look(self, session: pytest.Session, file: str, names: list[str]) -> None:
        """Which mutants the tests of a file reach."""
        with self._kept.claimed(file) as is_ours:
            if not is_ours or self._is_late() or not names:
                return
            self._switches.turn_on(None)
            ran = self._run(session, dict.fromkeys(names, _TEST_SECONDS), stops=False)
            for name in ran if self._is_late() else names:
                line = ran.get(name, {"test": name, "passed": False, "seconds": 0, "reached": []})
                self._kept.add("tests.jsonl", line)
            print(f"looked at {file}: {sum(line['passed'] for line in ran.values())} of {len(names)}", flush=True)

    def _judge(self, session: pytest.Session, number: int, items: dict[str, pytest.Item]) -> None:
        mutant = self._sample[number]
        with self._kept.claimed(mutant.key) as is_ours:
            if not is_ours or self._is_late():
                return
            before = [line for line in self._kept.lines("verdicts.jsonl") if line["mutant"] == mutant.key]
            if any(line["caught_by"] for line in before):
                return
            tried = {name for line in before for name in line["tests"]}
            tests = {line["test"]: line for line in self._kept.lines("tests.jsonl") if line["test"] in items}
            reaching = [
                name for name, line in tests.items()
                if line["passed"] and mutant.key in line["reached"] and name not in tried
            ]  # fmt: skip
            chosen = _chosen(mutant, {name: tests[name]["seconds"] for name in reaching})
            caught_by, doubtful = None, set[str]()
            limits = {name: _PATIENCE_SECONDS + 3 * tests[name]["seconds"] for name in chosen}
            while left := {name: limit for name, limit in limits.items() if name not in tried | doubtful}:
                self._switches.turn_on(number)
                ran = self._run(session, left, stops=True)
                self._switches.turn_on(None)
                if self._is_late():
                    return
                tried |= {name for name, line in ran.items() if line["passed"]}
                suspect = next((name for name in left if name not in tried), None)
                if suspect is None:
                    break
                again = self._run(session, {suspect: limits[suspect]}, stops=True)
                if again.get(suspect, {}).get("passed"):
                    caught_by = suspect
                    break
                doubtful.add(suspect)  # it fails anyway: the machine was busy, or it needs the tests before it
                if len(doubtful) == _MOST_DOUBTFUL:
                    break
            if not reaching:
                return
            self._kept.add(
                "verdicts.jsonl",
                {"mutant": mutant.key, "tests": [name for name in chosen if name in tried], "caught_by": caught_by,
                 "left": len(reaching) - len(chosen)},
            )  # fmt: skip
            print(
                f"{'caught' if caught_by else 'SURVIVED'}: {mutant.path}:{mutant.line}: {mutant.change}"
                f" [{caught_by or f'{len(chosen)} of {len(reaching)} tests, {len(doubtful)} fail anyway'}]",
                flush=True,
            )

    def _run(self, session: pytest.Session, limits: dict[str, float], *, stops: bool) -> dict[str, Any]:
        """What a fork has found of these tests; a test that did not end within its limit is not in it."""
        results = self._tree / "mutants.results"
        results.write_text("")
        self._switches.reached()
        pid = os.fork()
        if pid == 0:
            self._become_tests(session, list(limits), results, stops=stops)
        file, ended, deadline = os.pidfd_open(pid), -1, 0.0
        try:
            while not select.select([file], [], [], 0.05)[0]:
                if ended != (ended := results.read_bytes().count(b"\n")):
                    limit = [*limits.values(), _PATIENCE_SECONDS][ended]
                    deadline = min(self._until, time.time() + limit)
                if time.time() > deadline:
                    break
            for number in (signal.SIGINT, signal.SIGKILL):
                if select.select([file], [], [], 0)[0]:
                    break
                signal.pidfd_send_signal(file, number)
                select.select([file], [], [], 8.0)
        finally:
            os.close(file)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        _end_orphans()
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        for line in lines:
            line["reached"] = [self._sample[number].key for number in line["reached"]]
        return {line["test"]: line for line in lines}

    def _become_tests(self, session: pytest.Session, names: list[str], results: Path, *, stops: bool) -> None:
        """Never returns."""
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            plugins: Any = session.config.pluginmanager
            captures: CaptureManager = plugins.get_plugin("capturemanager")
            captures.stop_global_capturing()  # its files are those of the first process
            captures.start_global_capturing()
            captures.suspend_global_capture()
            plugins.unregister(name="terminalreporter")
            by_name = {item.nodeid: item for item in session.items}
            items = [by_name[name] for name in names]
            for item, following in zip_longest(items, items[1:]):
                began, self._has_failed = time.monotonic(), False
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                line = {
                    "test": item.nodeid, "passed": not self._has_failed, "seconds": round(time.monotonic() - began, 3),
                    "reached": self._switches.reached(),
                }  # fmt: skip
                with results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                if self._has_failed and stops:
                    break
            session._setupstate.teardown_exact(None)
        except KeyboardInterrupt:
            pass  # the time is over
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                atexit._run_exitfuncs()
            os._exit(0)


def _chosen(mutant: Mutant, seconds: dict[str, float]) -> list[str]:
    """The quickest, those of the module and of its service first; the tests of a file stay together."""
    service = "/".join(mutant.path.split("/")[: 2 if mutant.path.startswith("services/") else 1]) + "/"

    def cost(name: str) -> float:
        if Path(mutant.path).stem in Path(name.partition("::")[0]).stem:
            return seconds[name]
        return (0.02 + seconds[name]) * (2 if name.startswith(service) else 5)

    found, total = list[str](), 0.0
    for name in sorted(seconds, key=cost)[:_MOST_TESTS]:
        if found and total + seconds[name] > _MOST_SECONDS:
            break
        found.append(name)
        total += seconds[name]
    files = list(dict.fromkeys(name.partition("::")[0] for name in found))
    return sorted(found, key=lambda name: files.index(name.partition("::")[0]))


def _end_orphans() -> None:
    """What the tests' processes have left, which is a child of this process now, but for the warm servers."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        left = 0
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, ChildProcessError):
                if b"warm_python/server.py" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)
                    left += 1
                os.waitpid(int(child), os.WNOHANG)
        if not left:
            return
        time.sleep(0.02)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Judge(Kept(Path(os.environ[KEEP])), float(os.environ[UNTIL])))
