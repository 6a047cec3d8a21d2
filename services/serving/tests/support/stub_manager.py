"""A manager that loads nothing, for the tests of the front as a process: FD PARENT_PID, as the real one.

It reports model m, version 3, as available (its runner is the test's), and writes down in $STUB_MANAGER_LOG that it
started and that it was asked to stop. With $STUB_MANAGER_DIES it ends at once after its first start.
"""

import os
import socket
import sys
from pathlib import Path

from common.process.lifecycle import die_with_parent
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.replica_state import STOP_COMMAND, encode


def main(fd: int, parent_pid: int) -> None:
    die_with_parent(parent_pid)
    log = Path(os.environ["STUB_MANAGER_LOG"])
    starts = log.read_text().count("start") if log.exists() else 0
    with log.open("a") as lines:
        lines.write(f"start {os.getpid()}\n")
    front = socket.socket(fileno=fd)
    front.sendall(encode(replica_state(version(), conditions={"registry": ""})))
    if "STUB_MANAGER_DIES" in os.environ and starts == 0:
        return
    if front.recv(1024) == STOP_COMMAND:
        with log.open("a") as lines:
            lines.write("stop\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
