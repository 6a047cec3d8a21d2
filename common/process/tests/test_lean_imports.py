"""Libraries that Keras imports because they are there stay out of a process that forks."""

import subprocess
import sys


def test_what_is_optional_is_not_there_inside_and_is_afterwards() -> None:
    program = """
from common.process.lean_imports import without_optional_libraries
import sys
with without_optional_libraries():
    try:
        import pandas
    except ImportError:
        print("not inside")
import pandas
print("afterwards", "pandas" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.splitlines() == ["not inside", "afterwards True"]


def test_what_was_imported_before_stays() -> None:
    program = """
import scipy
from common.process.lean_imports import without_optional_libraries
with without_optional_libraries():
    import scipy.special
import scipy.stats
print("fine")
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "fine\n"
