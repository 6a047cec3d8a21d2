"""TensorBoard over a platform: fetches the curves of every version, and of the round that is training, as they appear.

    python -m services.trainer.summaries.board --registry URL [--trainer URL] [--model NAME] --logdir DIR \
        [--host HOST] [--port PORT] [--allowed-hosts NAMES] [--inspect]

A version is immutable, so its folder DIR/<model>/<version> is fetched once, aside, and then renamed. The file of a
running round is fetched again at each look, into DIR/<model>/live, which goes when the round ends. A fetch that fails
is tried again at the next look. Imports no TensorFlow.

HEADRACE_TOKEN, or the file that SERVICE_TOKEN_FILE names, is what the two are shown: a role to view, or of a trainer.
HTTPS is verified by TLS_CA_FILE, and shown the certificate of TLS_CERTIFICATE_FILE and TLS_KEY_FILE.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from common.access.token_file import TokenFile
from common.errors import InvalidInput
from common.process.lifecycle import Stop
from common.process.tls import Tls, TlsFiles
from common.registry.paths import path_below

_LOOK_EVERY_SECONDS = 2.0
_TIMEOUT_SECONDS = 10.0
_STOP_SECONDS = 5.0
_SHOWN = re.compile(r"(?:tensorboard|profile(?=/plugins/))/(.+)")
_LIVE, _PROJECTOR = "live", "projector_config.pbtxt"


def fetch_new_curves(registry: str, logdir: Path, *, model: str = "") -> None:
    """Brings DIR up to date, of one model or of all. Raises OSError: the registry does not answer, or not in time."""
    for known in _get_json(f"{registry}/v1/models")["models"]:
        name = known["name"]
        if model not in ("", name):
            continue
        for listed in _get_json(f"{registry}/v1/models/{name}/versions")["versions"]:
            folder = logdir / name / str(listed["version"])
            if not folder.exists() and listed["status"] != "archived":
                version = _get_json(f"{registry}/v1/models/{name}/versions/{listed['version']}")
                _fetch(registry, version["files"], folder)


def fetch_live(trainer: str, logdir: Path, *, model: str = "") -> None:
    """The curve of the round that the trainer runs, as far as it is; removes those of rounds that have ended. Raises
    OSError: the trainer does not answer, or not in time."""
    attempt = _get_json(f"{trainer}/v1/status")["attempt"] or {}
    running = attempt.get("model", "")
    for folder in logdir.glob(f"*/{_LIVE}"):
        if folder.parent.name != running:
            shutil.rmtree(folder, ignore_errors=True)
    if not running or model not in ("", running):
        return
    folder = logdir / running / _LIVE
    content = _get(f"{trainer}/v1/rounds/{urllib.parse.quote(attempt['round_id'], safe='')}/events")
    target = folder / f"events.out.tfevents.{attempt['round_id']}"
    for old in folder.glob("events.*"):
        if old != target:
            old.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    with target.open("r+b" if target.exists() else "wb") as file:  # in place: TensorBoard reads on where it was
        file.write(content)


def _fetch(registry: str, files: list[dict[str, Any]], folder: Path) -> None:
    aside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    # Event files make a folder a run: they come last.
    for file in sorted(files, key=lambda entry: "tfevents" in entry["path"]):
        if shown := _SHOWN.fullmatch(file["path"]):
            target = aside / shown[1]
            content = _get(f"{registry}/v1/files/{file['digest']}")
            if target.name == _PROJECTOR and not _names_only_its_own(content):
                print(f"tensorboard: {target} names other files, and is left out", file=sys.stderr, flush=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    aside.rename(folder)


def _names_only_its_own(config: bytes) -> bool:
    """Whether the projector, which shows whatever file its configuration names, stays in the version's folder."""
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    try:
        read = text_format.Parse(config.decode(), ProjectorConfig())
        for table in read.embeddings:
            for path in (table.tensor_path, table.metadata_path, table.bookmarks_path, table.sprite.image_path):
                path_below(Path(), path or "none")
    except (UnicodeError, text_format.ParseError, InvalidInput):
        return False
    return not read.model_checkpoint_path


def _get_json(url: str) -> Any:
    return json.loads(_get(url))


def _get(url: str) -> bytes:
    request = urllib.request.Request(url, headers=_credentials())  # noqa: S310  # an address of our own
    trusted = Tls.of(tls_files()).client_context() if url.startswith("https:") else None
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=trusted) as answer:  # noqa: S310  # see above
        content: bytes = answer.read()
    return content


def tls_files() -> TlsFiles:
    """Of the board's door and of its calls; as every service's settings name them."""
    given = os.environ.get
    return TlsFiles(given("TLS_CERTIFICATE_FILE", ""), given("TLS_KEY_FILE", ""), given("TLS_CA_FILE", ""))


def _credentials() -> dict[str, str]:
    """Raises InvalidInput: the file holds no token."""
    if token := os.environ.get("HEADRACE_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    path = os.environ.get("SERVICE_TOKEN_FILE")
    return {"Authorization": TokenFile(Path(path)).authorization()} if path else {}


def _look(given: argparse.Namespace) -> None:
    try:
        fetch_new_curves(given.registry, given.logdir, model=given.model)
        if given.trainer:
            fetch_live(given.trainer, given.logdir, model=given.model)
    except (OSError, InvalidInput) as error:
        print(f"tensorboard: not up to date: {error}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="board")
    parser.add_argument("--registry", required=True)
    parser.add_argument("--trainer", default="")
    parser.add_argument("--model", default="")
    parser.add_argument("--logdir", required=True, type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default=6006, type=int)
    parser.add_argument("--allowed-hosts", default="", help="further names in Host, separated by commas or spaces")
    parser.add_argument("--plain", action="store_true", help="speak no TLS, whatever the other doors speak")
    parser.add_argument("--inspect", action="store_true")
    return parser.parse_args()


def main() -> int:
    """Exit status 0 after SIGTERM, TensorBoard's own when it ends by itself."""
    given = _arguments()
    given.logdir.mkdir(parents=True, exist_ok=True)
    logdir = f"--logdir={given.logdir}"
    if given.inspect:
        _look(given)
        command = [sys.executable, "-m", "tensorboard.main", logdir, "--inspect"]
        return subprocess.run(command, check=False).returncode
    stop = Stop()
    stop.listen_for_signals()
    door = [sys.executable, "-m", "services.trainer.summaries.board_door", given.host, given.allowed_hosts]
    listens = [f"--host={given.host}", f"--port={given.port}"]
    passed = {name: value for name, value in os.environ.items() if not (given.plain and name == "TLS_CERTIFICATE_FILE")}
    board = subprocess.Popen([*door, logdir, *listens, "--reload_interval=2", "--reload_multifile=true"], env=passed)
    while board.poll() is None:
        _look(given)
        if stop.wait(_LOOK_EVERY_SECONDS):
            break
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
