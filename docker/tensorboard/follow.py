"""TensorBoard over every version of the registry: fetches their curves as they appear, and keeps TensorBoard running.

    python follow.py http://registry:8701 LOGDIR      (in the trainer's image, which has TensorBoard, from /app)

A version is immutable, so its folder LOGDIR/<model>/<version> is fetched once, aside, and then renamed. A fetch that
fails is tried again at the next look.
"""

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from common.process.lifecycle import Stop

_LOOK_EVERY_SECONDS = 5.0
_TIMEOUT_SECONDS = 10.0
_STOP_SECONDS = 5.0
_CURVES = "tensorboard/"


def fetch_new_curves(registry: str, logdir: Path) -> None:
    """Brings LOGDIR up to date.

    Raises:
        OSError: the registry does not answer, or not in time.
    """
    for model in _get_json(f"{registry}/v1/models")["models"]:
        name = model["name"]
        for listed in _get_json(f"{registry}/v1/models/{name}/versions")["versions"]:
            folder = logdir / name / str(listed["version"])
            if not folder.exists() and listed["status"] != "archived":
                version = _get_json(f"{registry}/v1/models/{name}/versions/{listed['version']}")
                _fetch(registry, version["files"], folder)


def _fetch(registry: str, files: list[dict[str, Any]], folder: Path) -> None:
    aside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for file in files:
        if file["path"].startswith(_CURVES):
            target = aside / file["path"].removeprefix(_CURVES)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_get(f"{registry}/v1/files/{file['digest']}"))
    aside.rename(folder)


def _get_json(url: str) -> Any:
    return json.loads(_get(url))


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310  # an address of our own
        content: bytes = answer.read()
    return content


def main() -> int:
    """Exit status 0 after SIGTERM, TensorBoard's own when it ends by itself."""
    registry, logdir = sys.argv[1], Path(sys.argv[2])
    logdir.mkdir(parents=True, exist_ok=True)
    stop = Stop()
    stop.listen_for_signals()
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", "--host=0.0.0.0", "--port=6006"]
    board = subprocess.Popen([*command, "--reload_interval=5"])
    while not stop.wait(_LOOK_EVERY_SECONDS) and board.poll() is None:
        try:
            fetch_new_curves(registry, logdir)
        except OSError as error:
            print(f"tensorboard: the registry is away: {error}", file=sys.stderr, flush=True)
    if board.poll() is not None:
        return board.returncode
    board.terminate()
    try:
        board.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        board.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
