"""Libraries that Keras imports because they are there stay out of a process that forks."""

import os
import subprocess
import sys
from pathlib import Path

from common.process.lean_imports import lean_command


def test_what_is_optional_is_not_there_inside_and_what_was_imported_before_stays() -> None:
    program = """
import importlib.util, scipy
from common.process.lean_imports import without_optional_libraries
with without_optional_libraries():
    import scipy.version
    try:
        import pandas
    except ImportError:
        print("not inside")
if importlib.util.find_spec("pandas"):
    print("afterwards")
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.splitlines() == ["not inside", "afterwards"]


def test_a_module_is_imported_without_them_and_its_main_has_them_and_the_collector(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("""
import gc, sys

def told():
    try:
        import scipy
    except ImportError:
        return "no scipy", gc.isenabled()
    return "scipy", gc.isenabled()

at_import = told()

def main():
    print(at_import, told(), sys.argv[1:])
""")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    said = subprocess.run(
        lean_command("told", "an argument"), env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout == "('no scipy', False) ('scipy', True) ['an argument']\n"
