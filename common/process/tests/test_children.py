"""Children of a process that forks: they are heard of, told apart, and never outlive it."""

import fcntl
import os
import signal
import subprocess
import sys

from common.process.children import readable
from common.process.lifecycle import raise_open_files_limit
from testing.processes import is_running
from testing.waiting import wait_until

_FORKS = """
import os, signal, sys, time
from common.process.children import Children, readable

children = Children("the child", crashed_status=70, lead_groups=True)
reader, writer = os.pipe()
inherited = open(os.devnull)
inherited_fds = [inherited.fileno(), children.fileno()]

def is_open(descriptor):
    try:
        return bool(os.fstat(descriptor))
    except OSError:
        return False

def live(name):
    assert not any(map(is_open, inherited_fds)), "it closed what it inherited"
    assert os.getpgid(0) == os.getpid()
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    if name == "fails":
        raise SystemExit(5)
    if name == "returns":
        return 3
    if name == "hangs" or os.fork() == 0:  # else it has a child of its own
        os.write(writer, b"%d" % os.getpid())
    time.sleep(100)

names = {}
for name in sys.argv[1:]:
    names[children.fork(lambda: live(name), closing=[inherited.close])] = name
os.close(writer)
said = int(os.read(reader, 20))
"""


def run(script: str, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _FORKS + script, *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_every_end_is_heard_of_once_with_the_status_that_subprocess_has() -> None:
    done = run(
        "killed = next(pid for pid in names if names[pid] == 'has_a_child')\n"
        "children.signal(killed, signal.SIGKILL)\n"
        "ended = []\n"
        "while len(ended) < 3 and readable([children.fileno()], 30.0):\n"
        "    ended += children.ended()\n"
                "print(said, children.signal(killed, signal.SIGKILL), children.ended(), *sorted(\n"
        "    (names[pid], status) for pid, status in ended))\n",
        "returns", "fails", "has_a_child",
    )  # fmt: skip
    grandchild, _, said = done.stdout.strip().partition(" ")
    assert said == "False [] ('fails', 70) ('has_a_child', -9) ('returns', 3)", done.stderr
    assert "the child ended unexpectedly" in done.stderr
    wait_until(lambda: not is_running(int(grandchild)), "the whole group is killed")


def test_a_child_dies_with_the_process_that_forked_it() -> None:
    done = run("print(said, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)", "hangs")
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_until(lambda: not is_running(int(done.stdout)), "the kernel has killed the child")


def test_waiting_takes_descriptors_beyond_those_that_select_takes() -> None:
    assert raise_open_files_limit() > 1500, "this system allows too few open files for the test"
    reader, writer = os.pipe()
    high = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 1200)
    try:
        assert readable([high], 0.0) == []
        os.write(writer, b"x")
        assert readable([high], 0.0) == [high]
        os.read(reader, 1)
    finally:
        os.close(writer)
    assert readable([high], None) == [high], "closed at the other end"
    os.close(reader)
    os.close(high)
