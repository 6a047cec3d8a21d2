"""Which files of a SavedModel are its program and which its state: versions with equal programs differ in state only.

A program is everything that loading costs time for: the graph, its assets, libraries of operations. The state is the
variables, the warm-up requests (they are drawn from a round's own events) and TensorFlow's fingerprint of both.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

_STATE_FOLDER = "variables/"
_STATE_FILES = ("fingerprint.pb", "assets.extra/tf_serving_warmup_requests")


def is_state(path: str) -> bool:
    """`path`: relative to the SavedModel's folder, with slashes."""
    return path.startswith(_STATE_FOLDER) or path in _STATE_FILES


def program_digest(digests: Mapping[str, str]) -> str:
    """SHA-256, in hex, of the program's paths and contents.

    Args:
        digests: {path relative to the SavedModel's folder: SHA-256 of the content, in hex} of every file.
    """
    lines = [f"{path}\t{digest}\n" for path, digest in sorted(digests.items()) if not is_state(path)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def program_of(directory: Path) -> str:
    """The program's digest of a SavedModel's folder, by reading it; "" for a folder without a SavedModel. Raises
    OSError."""
    if not (directory / "saved_model.pb").is_file():
        return ""
    digests = {}
    for path in directory.rglob("*"):
        name = path.relative_to(directory).as_posix()
        if not is_state(name) and path.is_file():
            with path.open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return program_digest(digests)


def state_bytes(directory: Path) -> int:
    """Of the state's files in a SavedModel's folder. Raises OSError."""
    files = [*(directory / _STATE_FOLDER).rglob("*"), *(directory / name for name in _STATE_FILES)]
    return sum(path.stat().st_size for path in files if path.is_file())
