"""model upgrade: scripts of TensorFlow 1 rewritten for TensorFlow 2 by TensorFlow's own converter."""

import re
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import Conflict, InvalidInput
from common.whole_files import write_whole
from headrace.commands.model_inside import inspected
from headrace.commands.session import Session
from headrace.commands.terminal import echo

_SHOWN = 10
_GRAPHS = re.compile(r"\bcompat\.v1\.(Session|InteractiveSession|placeholder)\b")
_NEEDS_GRAPHS = (
    "it builds graphs: where no `with tf.Graph().as_default():` is around them, run it by `headrace push --run`, or "
    "let it call tf.compat.v1.disable_v2_behavior() first"
)


def upgrade(
    session: Session,
    scripts: Annotated[list[Path], typer.Argument(metavar="SCRIPT...", help="Python files written for TensorFlow 1.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="Where the new files are written, by the same names.")
    ],
) -> None:
    """Rewrite scripts of TensorFlow 1 for TensorFlow 2 with its converter tf_upgrade_v2, and show the changes.

    What the converter cannot rewrite (tf.contrib) refuses all of them, and nothing is written. Needs TensorFlow here.
    """
    texts = _texts_of(scripts, to)
    with tempfile.TemporaryDirectory() as folder:
        found = inspected("upgrade", {"scripts": texts}, Path(folder))
    upgraded: dict[str, dict[str, Any]] = found["scripts"]
    refused = [f"{name}:{line}" for name, script in upgraded.items() for line in script["refused"]]
    if refused:
        more = f"\n  and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        listed = "\n  ".join(refused[:_SHOWN])
        raise InvalidInput(f"tf_upgrade_v2 cannot rewrite all of it, and nothing is written:\n  {listed}{more}")
    to.mkdir(parents=True, exist_ok=True)
    for name, script in upgraded.items():
        write_whole(to / name, script["text"].encode(), flush=False)
        if _GRAPHS.search(script["text"]):
            script["warnings"].append(_NEEDS_GRAPHS)
    document = {
        "to": str(to),
        "scripts": {name: {key: script[key] for key in ("changes", "warnings")} for name, script in upgraded.items()},
    }
    session.show(document, lambda: _print(document))


def _texts_of(scripts: list[Path], to: Path) -> dict[str, str]:
    """By file name. Raises InvalidInput or Conflict before anything is converted."""
    texts: dict[str, str] = {}
    for script in scripts:
        if script.suffix != ".py" or not script.is_file():
            raise InvalidInput(f"upgrade takes Python files, and {script} is none")
        if script.name in texts:
            raise InvalidInput(f"two of the scripts are called {script.name}")
        if (to / script.name).exists():
            raise Conflict(f"{to / script.name} is there already; --to names another folder")
        try:
            texts[script.name] = script.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{script} is not UTF-8: {error.reason}") from error
    return texts


def _print(document: dict[str, Any]) -> None:
    for name, script in document["scripts"].items():
        echo(f"{Path(document['to']) / name}: {len(script['changes'])} changes, {len(script['warnings'])} to look at")
        for line in script["changes"]:
            echo(f"  {line}")
        for line in script["warnings"]:
            echo(f"  look at: {line}")
