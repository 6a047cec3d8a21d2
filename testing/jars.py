"""Programs in Java: their jars by Maven, once (versions pinned in a pom.xml), in a cache of this user's."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_CACHE = Path.home() / ".cache" / "headrace"
_INSTALL_TIMEOUT_SECONDS = 300
JAVA = (
    "java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)  # fmt: skip
"""Starts a server that lives for a minute: code is compiled once, and checked not at all."""


class NoJarsError(Exception):
    """Neither Java nor the jars can be had on this machine."""


def jars_or_skip(pom: Path) -> Path:
    """As `jars`, for a fixture: a machine without them skips its tests, and CI fails."""
    try:
        return jars(pom)
    except NoJarsError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no {pom.parent.name} in CI: {error}")
        pytest.skip(f"no {pom.parent.name} on this machine: {error}")


def jars(pom: Path) -> Path:
    """The folder with its jars, filled by Maven the first time.

    Raises:
        NoJarsError: there is no Java, or the jars are not cached and Maven is missing or cannot get them.
    """
    if not shutil.which("java"):
        raise NoJarsError("no java on PATH")
    cache = _CACHE / pom.parent.name
    folder = cache / hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _copy_jars(pom, folder)
    return folder


def _copy_jars(pom: Path, folder: Path) -> None:
    name = pom.parent.name
    if not shutil.which("mvn"):
        raise NoJarsError(f"no mvn on PATH, and the jars of {name} are not cached")
    aside = folder.with_suffix(".new")
    shutil.rmtree(aside, ignore_errors=True)
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={aside}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_SECONDS, check=False, cwd=folder.parent
        )
    except subprocess.TimeoutExpired as error:
        raise NoJarsError(f"mvn did not get the jars of {name} within {_INSTALL_TIMEOUT_SECONDS} s") from error
    if done.returncode:
        raise NoJarsError(f"mvn cannot get the jars of {name}: {(done.stdout + done.stderr)[-500:]}")
    aside.rename(folder)
