"""A process stops when it is asked to, whichever of its threads hears of it."""

import signal
import subprocess
import sys

import pytest

_SCRIPT = """
import signal, sys, threading
from common.process.lifecycle import Stop

stop = Stop()
stop.listen_for_signals()
threading.Thread(target=threading.Event().wait, daemon=True).start()
if sys.argv[1] == "deaf":  # what happens by chance where threads come and go: another thread gets the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
print("ready", flush=True)
print("stopped" if stop.wait(100.0) else "timed out", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("main_thread", ["listening", "deaf"])
def test_a_signal_ends_the_wait_whichever_thread_gets_it(number: signal.Signals, main_thread: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", _SCRIPT, main_thread], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    answer, _ = process.communicate(timeout=60)
    assert (answer, process.returncode) == ("stopped\n", 0)
