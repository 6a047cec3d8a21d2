"""A resume point as a SavedModel, made by the trainer's code in a process: the client has no TensorFlow."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from common.errors import InvalidInput, Unavailable
from common.process.lean_imports import lean_command
from common.registry.paths import path_below

_LIMIT_SECONDS = 600


def write_point(directory: Path, definition: Mapping[str, bytes], schema_json: str) -> list[Path]:
    """Writes saved_model/ of the point's files, which are below point/ in the directory; all files of it.

    Raises:
        InvalidInput: the trainer's packages are not installed here, or the point fits no model; the sentence has the
            process's last words.
        Unavailable: the process took longer than ten minutes.
    """
    (directory / "schema.json").write_text(schema_json)
    for name, content in definition.items():
        path = path_below(directory / "definition", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    command = lean_command("services.trainer.rounds.point_export", str(directory))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the resume point was not exported within {_LIMIT_SECONDS} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise InvalidInput(
            f"the resume point cannot be exported: {last[0][:500]} (it needs pip install 'headrace[trainer]')"
        )
    return [path for path in (directory / "saved_model").rglob("*") if path.is_file()]
