"""Tests in several processes: `pytest --workers 4`.

One process imports and collects the tests. Its workers are forks: each takes a file, or the files that share a server,
and then asks for more. A worker that has computed for long is replaced: TensorFlow keeps some of what tests trace, and
copies all of it for each new function.
"""

import atexit
import os
import signal
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureManager

_LOOK_SECONDS = 1.0
_END_SECONDS = 60.0


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="Processes that run the tests; 0: this one.")
    parser.addoption(
        "--worker-seconds", type=float, default=80.0,
        help="Of a core; a worker that has computed for longer, by itself, takes no other file.",
    )  # fmt: skip


def run(session: pytest.Session, groups: list[list[int]]) -> None:
    """Has workers run the groups, which are the numbers of tests in `session.items`, in their order."""
    if _has_tensorflow_begun():
        raise pytest.UsageError(
            "a test module computes with TensorFlow when it is imported: forks have none of its threads and wait for "
            "ever; make its tensors within a test or a fixture"
        )
    # Of all workers: what one of them has put into `shared` the others find.
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # has no public name
    options = session.config.option
    Workers(session, options.workers, options.worker_seconds, deque(groups)).run()


def _has_tensorflow_begun() -> bool:
    """Whether it has started the threads that compute."""
    names = (task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
    return "tf_Compute" in names


@dataclass
class _Worker:
    """As the first process sees it; `left` are the tests of its group that have not ended."""

    pid: int
    connection: Connection
    left: list[int] = field(default_factory=list)


@dataclass
class Workers:
    session: pytest.Session
    count: int
    core_seconds: float
    groups: deque[list[int]]
    _workers: dict[Connection, _Worker] = field(default_factory=dict)

    def run(self) -> None:
        try:
            while self.groups or self._workers:
                while self.groups and len(self._workers) < self.count:
                    self._start()
                for connection in wait(list(self._workers), _LOOK_SECONDS):
                    assert isinstance(connection, Connection)
                    self._hear(self._workers[connection])
                for worker in list(self._workers.values()):
                    if _has_ended(worker.pid) and not worker.connection.poll():
                        self._ended(worker)  # a process that it has forked holds the other end
                if self.session.shouldfail:
                    raise self.session.Failed(self.session.shouldfail)
        finally:
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGINT)
            for worker in self._workers.values():
                _wait(worker.pid)

    def _start(self) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            for connection in (ours, *self._workers):
                connection.close()
            _become_worker(self.session, theirs)
        theirs.close()
        self._workers[ours] = worker = _Worker(pid, ours)
        self._give(worker)

    def _give(self, worker: _Worker) -> None:
        worker.left = self.groups.popleft()
        worker.connection.send(worker.left)

    def _hear(self, worker: _Worker) -> None:
        hook, items = self.session.config.hook, self.session.items
        try:
            kind, value = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._ended(worker)
            return
        if kind == "report":
            report = hook.pytest_report_from_serializable(config=self.session.config, data=value)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "ended":
            worker.left.remove(value)
            hook.pytest_runtest_logfinish(nodeid=items[value].nodeid, location=items[value].location)
        elif self.groups and value < self.core_seconds:
            self._give(worker)
        else:
            worker.connection.send(None)

    def _ended(self, worker: _Worker) -> None:
        """Where its process has ended within a test, that test has failed, and another worker takes the rest."""
        del self._workers[worker.connection]
        worker.connection.close()
        status = _wait(worker.pid)
        if worker.left:
            failed, rest = self.session.items[worker.left[0]], worker.left[1:]
            self.groups.extendleft([rest] if rest else [])
            self._fail(failed.nodeid, failed.location, f"its process has ended with status {status}")
        elif status:
            self._fail(f"worker {worker.pid}", ("", None, ""), "it has not ended well: see what it has written")

    def _fail(self, test: str, location: tuple[str, int | None, str], reason: str) -> None:
        report = pytest.TestReport(test, location, {}, "failed", reason, "call")
        self.session.config.hook.pytest_runtest_logreport(report=report)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _wait(pid: int) -> int:
    """Its status, of a process after the order to end; below zero the signal that ended it."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become_worker(session: pytest.Session, connection: Connection) -> None:
    """Never returns."""
    status = 1
    try:
        _work(session, connection)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _Reporter(pytest.TerminalReporter):  # type: ignore[misc]  # final, since plugins rely on its hooks
    """For what pytest-timeout writes; how far the tests are is the first process's."""

    pytest_runtest_logstart = pytest_runtest_logfinish = None  # type: ignore[assignment]  # no hooks

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        super().__init__(config)
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self._connection.send(("report", data))


def _work(session: pytest.Session, connection: Connection) -> None:
    plugins = session.config.pluginmanager
    captures: Any = plugins.get_plugin("capturemanager")
    assert isinstance(captures, CaptureManager)
    captures.stop_global_capturing()  # its files are those of the first process
    captures.start_global_capturing()
    captures.suspend_global_capture()
    plugins.unregister(name="terminalreporter")
    plugins.register(_Reporter(session.config, connection), "terminalreporter")
    try:
        while group := connection.recv():
            items = [session.items[number] for number in group]
            # Behind a file the session's fixtures stay; behind files that share a server it ends.
            last: Any = session if len({item.path for item in items}) == 1 else None
            for number, item, following in zip(group, items, [*items[1:], last], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                connection.send(("ended", number))
            connection.send(("free", time.process_time()))
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it comes from the terminal and from the first process
        raise
    finally:
        session._setupstate.teardown_exact(None)
