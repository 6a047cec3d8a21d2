"""The identity of this trainer as a holder of leases: a folder that one process owns, with a name and a secret that
outlive it."""

import fcntl
import os
import secrets
import time
import uuid
from pathlib import Path

from common.errors import Conflict
from common.whole_files import write_whole

_LOCK_TIMEOUT_SECONDS = 10.0


def own_data_dir(data_dir: Path) -> int:
    """Locks the folder for this process, waiting a little for a process that is just dying; returns the open lock.
    Raises Conflict: another trainer uses the folder; with one identity, each would take the other's rounds."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(data_dir / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise Conflict(f"another trainer is using {data_dir}; give each a separate DATA_DIR") from error
            time.sleep(0.05)


def holder_id(data_dir: Path, chosen: str) -> str:
    """The name under which rounds are leased: the chosen name, or the name kept in the folder, made at first."""
    return chosen or _kept(data_dir / "trainer-id", f"{os.uname().nodename}-{uuid.uuid4().hex[:12]}")


def holder_secret(data_dir: Path) -> str:
    """The secret that gets this trainer alone its running round back: random, in a file that only its user
    reads."""
    return _kept(data_dir / "trainer-secret", secrets.token_urlsafe(32))


def _kept(path: Path, made: str) -> str:
    """The line in the file; where there is no file yet, `made`, which is then in it."""
    if path.exists():
        return path.read_text().strip()
    write_whole(path, f"{made}\n".encode(), mode=0o600)
    return made
