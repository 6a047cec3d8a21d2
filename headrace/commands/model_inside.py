"""model tap, optimize, freeze, tflite: what is inside a finished model, by TensorFlow or LiteRT in another process."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import InvalidInput, NotFound
from headrace.commands.model_files import Name, chosen_version, fetched
from headrace.commands.session import Session, print_facts, print_table
from headrace.commands.terminal import echo
from headrace.local.inspect import run

Format = Annotated[str, typer.Option("--format", help="Of a version: the LiteRT format that is meant, such as tflite.")]
_PASSES = "pruning,function,constfold,arithmetic,dependency,remap"
_SHOWN_TENSORS = 60


def tap(
    session: Session,
    name: Name,
    tensor: Annotated[str, typer.Option(help="Whose value is wanted; without it the names are listed.")] = "",
    feed: Annotated[
        list[str] | None, typer.Option(metavar="NAME=JSON", help="Override an inner tensor's value; may be repeated.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON: {input: rows}. Default: the first warm-up request.")
    ] = None,
    signature: Annotated[str, typer.Option(help="Of a SavedModel.")] = "serving_default",
    litert: Format = "",
) -> None:
    """Show the value of any tensor inside a version, a SavedModel's folder or a .tflite file, without retraining."""
    question = {"signature": signature, "tensor": tensor, "feeds": _feeds(feed or []), "inputs": _inputs(inputs)}
    with tempfile.TemporaryDirectory() as folder:
        found = inspected("tap", question | {"model": str(_model(session, name, litert, Path(folder)))}, Path(folder))

    def print_text() -> None:
        if tensor:
            echo(f"{found['tensors'][0]}  {found['dtype']} {found['shape']}")
            echo(json.dumps(found["value"]))
            return
        for name in found["tensors"]:
            echo(name)

    session.show(found, print_text)


def optimize(
    session: Session,
    name: Name,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where the graph and its report are written; new.")],
    passes: Annotated[str, typer.Option(help="Of Grappler, in their order.")] = _PASSES,
) -> None:
    """Write a version's graph with its weights as constants, rewritten by passes, and show the changes.

    It answers the warm-up request within 0.00001 of the version, or is not written.
    """
    _written(session, name, to, "optimize", {"passes": passes.split(",")})


def freeze(
    session: Session,
    name: Name,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where the graph and its report are written; new.")],
    output: Annotated[
        list[str] | None, typer.Option(help="Only this output of serving_default; may be given again.")
    ] = None,
) -> None:
    """Write a version's graph with its weights as constants, for the outputs that are named, and show the changes.

    It answers the warm-up request within 0.000001 of the version, or is not written.
    """
    _written(session, name, to, "freeze", {"outputs": output or []})


def _written(session: Session, name: str, to: Path, action: str, question: Mapping[str, Any]) -> None:
    if to.exists():
        raise InvalidInput(f"{to} is there; --to names a folder that is not")
    with tempfile.TemporaryDirectory() as folder:
        model = fetched(session, name, Path(folder)).directory
        target = Path(folder) / "written"
        found = inspected(action, {"model": str(model), "target": str(target), **question}, Path(folder))
        to.mkdir(parents=True)
        for path in target.iterdir():
            (to / path.name).write_bytes(path.read_bytes())

    def print_text() -> None:
        print_facts(
            str(to),
            {
                "nodes": f"{found['nodes_before']} before, {found['nodes_after']} after",
                **{part: ", ".join(found[part]) for part in question},
                "largest difference": f"{found['largest_difference']:.3g} over {found['rows']} rows",
            },
        )

    session.show(found, print_text)


def tflite(
    session: Session,
    name: Name,
    target: Annotated[str, typer.Option(help="An accelerator whose operations are compared: nnapi.")] = "",
    strip: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it without the names of its tensors; it answers the same."),
    ] = None,
    litert: Format = "tflite",
) -> None:
    """List the operations and tensors of a .tflite file or of a version's, and those that an accelerator lacks."""
    with tempfile.TemporaryDirectory() as folder:
        model = _model(session, name, litert, Path(folder))
        question = {"model": str(model), "target": target, "strip": str(strip.absolute()) if strip else ""}
        found = inspected("tflite", question, Path(folder))

    def print_text() -> None:
        rows = [[key, count] for key, count in found["operations"].items()]
        print_table(f"{found['bytes']:,} bytes", ("operation", ">times"), rows)
        listed = [[tensor["name"], tensor["dtype"], tensor["shape"]] for tensor in found["tensors"][:_SHOWN_TENSORS]]
        print_table("", ("tensor", "dtype", "shape"), listed)
        if strip:
            echo(f"{strip}: {found['stripped_bytes']:,} bytes, without names")
        if target:
            echo(f"covered: {', '.join(found['covered']) or 'none'}")
            echo(f"missing: {', '.join(found['missing']) or 'none'}")
            echo(f"by the table of {found['as_of']}; nothing was run on a device")

    session.show(found, print_text)


def inspected(action: str, question: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    source, target = folder / "question.json", folder / "answer.json"
    source.write_text(json.dumps(question))
    run(action, source, target)
    answer: dict[str, Any] = json.loads(target.read_text())
    if "failed" in answer:
        raise InvalidInput(str(answer["failed"]))
    return answer


def _model(session: Session, name: str, litert: str, folder: Path) -> Path:
    """A .tflite file of this machine, a version's of that format, or a SavedModel's folder."""
    if name.endswith(".tflite"):
        if not Path(name).is_file():
            raise NotFound(f"there is no file {name}")
        return Path(name).absolute()
    if not litert:
        return fetched(session, name, folder).directory.absolute()
    client = session.client()
    version = chosen_version(client, name)
    path = f"exports/{litert}/model.tflite"
    entry = next((file for file in version.files if file.path == path), None)
    if entry is None:
        raise NotFound(
            f"{version.model}@{version.version} has no {path}; `export: {{formats: [{litert}]}}` asks for it"
        )
    client.fetch_file(entry, folder / "model.tflite")
    return folder / "model.tflite"


def _feeds(given: list[str]) -> dict[str, Any]:
    feeds = {}
    for feed in given:
        name, is_there, value = feed.partition("=")
        if not is_there:
            raise InvalidInput(f"--feed {feed!r} is not NAME=JSON, such as dense/Relu=[[0, 1]]")
        feeds[name] = _json(value, f"--feed {name}")
    return feeds


def _inputs(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    found = _json(path.read_text(), str(path))
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} must hold an object of rows by input")
    return found


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{place} is not JSON: {error}") from error
