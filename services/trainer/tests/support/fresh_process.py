"""A process that tries exports in a new interpreter: where tests run, operations have run before."""

import os
import socket
import subprocess
import sys

from common.process.lean_imports import lean_command
from common.process.lifecycle import die_with_parent
from services.trainer.export.fresh_process import TRIAL_SECONDS, FreshProcess, serve


def started() -> FreshProcess:
    """It takes seconds to import TensorFlow."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            lean_command(__name__, str(theirs.fileno()), str(os.getpid())), pass_fds=[theirs.fileno()]
        )
    process.returncode = 0  # close() waits for it
    return FreshProcess(ours, process.pid, trial_seconds=TRIAL_SECONDS)


def main() -> None:
    """Arguments: socket fd, parent pid."""
    fd, parent_pid = map(int, sys.argv[1:])
    die_with_parent(parent_pid)
    serve(socket.socket(fileno=fd))
