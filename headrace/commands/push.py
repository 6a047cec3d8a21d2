"""push: a SavedModel or Keras file that was made elsewhere, as a version that a person may promote."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from common.counted import counted
from common.errors import InvalidInput
from common.storage import place_of
from headrace.commands.session import ModelName, Reason, Session
from headrace.commands.terminal import echo
from headrace.files.own_files import check_archive, own_files

_UPLOAD_SECONDS = 600.0


def push(
    session: Session,
    model: ModelName,
    source: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="A folder with saved_model.pb or .pbtxt, or a .keras file, which is exported; a path or URL.",
        ),
    ],
    reason: Reason = "",
    judge: Annotated[
        bool,
        typer.Option(
            "--judge", help="Measure it beside the live version on held-out events; the gate promotes or refuses it."
        ),
    ] = False,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="Sign the version with this private key.")
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option("--run", metavar="SCRIPT", help="First run this script of TensorFlow 1, which exports to DIR."),
    ] = None,
) -> None:
    """Register a SavedModel or .keras file made elsewhere as the model's next version.

    Its layout, tags, signatures and operations are checked, and a separate process loads it. No alias moves:
    `headrace promote` takes it, or the gate where it is judged. No round starts from it, and it cannot be rebuilt. With
    --run the script gets DIR as its argument, in a process where `import tensorflow` is TensorFlow 1's; of new numbered
    folders the last is taken.
    """
    session.client().model(model)  # before a large folder is loaded in vain
    place = place_of(str(exported_by(script, Path(source))) if script else source)
    with place.as_local() as local, saved_model_of(local) as directory:
        note = checked(directory)
        client = session.client(timeout_seconds=_UPLOAD_SECONDS)
        origin = f"{socket.gethostname()}:{place}" if place.is_local else str(place)
        version = client.push(model, directory, origin=origin, reason=reason, judge=judge, signing_key=key)

    def print_text() -> None:
        echo(
            f"{model}@{version.version} is registered: {counted(len(version.files), 'file')}, "
            f"{version.weights_digest[:12]}"
        )
        if judge:
            echo(f"  the gate says: {version.verdict.decision}")
        for sentence in (*version.verdict.reasons, *([note] if note else [])):
            echo(f"  {sentence}")

    session.show(asdict(version) | {"note": note}, print_text)


def exported_by(script: Path, directory: Path) -> Path:
    """What the script wrote: the folder itself, or the highest of its numbered folders. Raises InvalidInput: the script
    fails, or there is no new SavedModel then."""
    from headrace.local.inspect import run_session_script

    if (directory / "saved_model.pb").exists():
        raise InvalidInput(f"{directory} holds a SavedModel already; --run writes a new folder")
    before = set(directory.glob("*/saved_model.pb"))
    run_session_script(script, directory.absolute())
    if (directory / "saved_model.pb").is_file():
        return directory
    written = [path.parent for path in set(directory.glob("*/saved_model.pb")) - before if path.parent.name.isdigit()]
    if not written:
        raise InvalidInput(f"{script} wrote no SavedModel to {directory}, which it got as its argument")
    return max(written, key=lambda path: int(path.name))


@contextmanager
def saved_model_of(source: Path) -> Iterator[Path]:
    """The folder with the SavedModel; of a Keras file or a graph as text, a folder that is gone afterwards."""
    from headrace.local.inspect import in_binary, run

    if source.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            yield in_binary(source, Path(folder))
        return
    if source.suffix != ".keras" or not source.is_file():
        raise InvalidInput(f"push takes a folder with saved_model.pb or a .keras file, and {source} is neither")
    check_archive(source)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "saved_model"
        run("keras", source, directory)
        yield directory


def checked(directory: Path) -> str:
    """A note where not all could be checked here. Raises InvalidInput: it cannot be served."""
    from common.saved_model.layout import check_layout
    from headrace.local.inspect import run

    sizes = {name: path.stat().st_size for name, path in own_files(directory).items()}
    check_layout(sizes, lambda path: (directory / path).read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        refusal = Path(folder) / "said.txt"
        try:
            run("load", directory, refusal)
        except InvalidInput as error:
            if "is not installed" in error.message:
                return (
                    "it was not loaded here, since TensorFlow is not installed; a replica tries it when it is promoted"
                )
            raise
        if refusal.read_text():
            raise InvalidInput(refusal.read_text())
    return ""
