"""pytest's workers: every test runs once, a worker that ends within a test fails that one, and forks are replaced."""

import subprocess
import sys
from pathlib import Path

_CONFTEST = """
import pathlib
import pytest
from testing import workers

pytest_addoption = workers.add_options

@pytest.fixture(scope="session", autouse=True)
def ended():
    yield
    pathlib.Path("ended").touch()

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    names = [item.path.name.split("_")[1] for item in session.items]
    groups = [[n for n, name in enumerate(names) if name == group] for group in sorted(set(names))]
    workers.run(session, groups)
    return True
"""
_ENDS = """
import os, signal

def test_first(): ...
def test_ends():
    if os.fork():
        os._exit(3)
    signal.alarm(3)
    signal.pause()  # holds what the worker has open
def test_follows(): ...
"""
_SAYS = """
import os, pathlib
from testing.shared_folder import filled_once

def test_says(tmp_path_factory):
    pathlib.Path(f"{os.getpid()}.pid").touch()
    filled_once(tmp_path_factory, "things", lambda folder: pathlib.Path(f"{os.getpid()}.filled").touch())
"""


def _run(folder: Path, *options: str) -> str:
    (folder / "conftest.py").write_text(_CONFTEST)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--workers", "2", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False).stdout


def test_a_worker_that_ends_within_a_test_fails_it_and_another_takes_the_rest(tmp_path: Path) -> None:
    (tmp_path / "test_ends.py").write_text(_ENDS)
    (tmp_path / "test_fails.py").write_text("def test_fails(tmp_path): assert not tmp_path.exists()\n")
    told = _run(tmp_path)
    assert "2 failed, 2 passed" in told, told
    assert "its process has ended with status 3" in told
    assert "test_ends.py::test_ends" in told
    assert "assert not True" in told


def test_a_worker_that_has_computed_enough_is_replaced_and_all_of_them_share_a_folder(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"test_{number}.py").write_text(_SAYS)
    told = _run(tmp_path, "--worker-seconds", "0", f"--basetemp={tmp_path / 'base'}")
    assert "3 passed" in told, told
    assert len(list(tmp_path.glob("*.pid"))) == 3
    assert len(list(tmp_path.glob("*.filled"))) == 1


def test_what_files_share_ends_behind_them_and_what_a_file_has_stays(tmp_path: Path) -> None:
    for name, has_ended in (("0_alone", False), ("1_first", False), ("1_second", False), ("2_after", True)):
        text = f"import pathlib\n\ndef test(): assert pathlib.Path('ended').exists() is {has_ended}\n"
        (tmp_path / f"test_{name}.py").write_text(text)
    told = _run(tmp_path, "--workers", "1")
    assert "4 passed" in told, told
