"""Memory that was freed goes back to the kernel, also where it lies between what is still in use."""

import subprocess
import sys

_SCRIPT = """
import os, time
from common.process.memory import anonymous_mb, keep_giving_back

keep_giving_back(look_seconds=0.05)
many = [bytes(1000) for _ in range(450_000)]
kept = many[::500]
assert anonymous_mb(os.getpid()) > 400
del many
until = time.monotonic() + 60
while anonymous_mb(os.getpid()) > 100 and time.monotonic() < until:
    time.sleep(0.05)
print(anonymous_mb(os.getpid()))
"""


def test_what_was_freed_between_what_is_in_use_goes_back() -> None:
    ended = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    assert float(ended.stdout) < 100
