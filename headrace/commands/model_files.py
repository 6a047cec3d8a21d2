"""model show, signatures, graph, cost, ops, export: a version's SavedModel, or a folder of this machine."""

import json
import math
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.counted import counted
from common.errors import Conflict, InvalidInput, NotFound
from common.registry.catalog import PRODUCTION, Version
from common.registry.paths import path_below
from common.registry.statements import SIGNATURE_FILE
from headrace.client.platform import Client
from headrace.commands.look import reference
from headrace.commands.session import CommandApp, Session, print_facts, print_line, print_table
from headrace.commands.terminal import echo
from headrace.local.call_times import latency, machine, source

if TYPE_CHECKING:
    from common.saved_model.graph import GraphProto
    from common.saved_model.variables import Variable

app = CommandApp(help="Look into a version's SavedModel, or take it elsewhere.", no_args_is_help=True)
Name = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[@VERSION]", help="A version (without @VERSION that in production), or a folder of this machine."
    ),
]
FOLDER = "saved_model/"
_SHOWN_NODES = 200


@dataclass(frozen=True)
class _Files:
    """A SavedModel's files by their path below it."""

    title: str
    directory: Path
    sizes: Mapping[str, int]

    def graph(self, tags: str = "serve") -> "GraphProto":
        from common.saved_model.graph import MODEL_FILE, read, tagged

        if MODEL_FILE not in self.sizes:
            raise InvalidInput(f"{self.title} has no {MODEL_FILE}")
        return tagged(read((self.directory / MODEL_FILE).read_bytes()), tuple(tags.split(",")))

    def variables(self) -> "dict[str, Variable]":
        from common.saved_model.variables import INDEX_FILE, OBJECT_GRAPH, read_index

        if INDEX_FILE not in self.sizes:
            return {}
        found = read_index((self.directory / INDEX_FILE).read_bytes()).variables
        suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
        return {name.removesuffix(suffix): variable for name, variable in found.items() if name != OBJECT_GRAPH}


@app.command()
def show(
    session: Session,
    name: Name,
    tags: Annotated[str, typer.Option(help="Of the graph, where there are several.")] = "serve",
    pbtxt: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the whole SavedModel as text.")] = None,
) -> None:
    """Show tags, producer, signatures, variables and sizes."""
    from common.saved_model.contract import to_mapping
    from common.saved_model.graph import MODEL_FILE, graphs_of, operations_of, read, signatures_of

    with tempfile.TemporaryDirectory() as folder:
        files = fetched(session, name, Path(folder), "saved_model.pb", "variables/variables.index")
        graph, variables = files.graph(tags), files.variables()
        if pbtxt is not None:
            from headrace.local.inspect import run

            run("pbtxt", files.directory, pbtxt)
        whole = read((files.directory / MODEL_FILE).read_bytes())
    signatures = signatures_of(graph)
    document: dict[str, Any] = {
        "model": files.title,
        "tags": [list(meta_graph.tags) for meta_graph in graphs_of(whole)],
        "producer": graph.meta_info_def.tensorflow_version,
        "graph_version": {
            "producer": graph.graph_def.versions.producer, "min_consumer": graph.graph_def.versions.min_consumer
        },
        "stripped_default_attributes": graph.meta_info_def.stripped_default_attrs,
        "signatures": to_mapping(signatures),
        "operations": len(operations_of(graph)),
        "parameters": sum(v.value_count for v in variables.values() if v.dtype.startswith(("float", "bfloat"))),
        "variables": {
            name: {"dtype": variable.dtype, "shape": list(variable.shape), "bytes": variable.size_bytes}
            for name, variable in variables.items()
        },
        "assets": [asset.filename for asset in graph.asset_file_def],
        "files": dict(files.sizes),
    }  # fmt: skip

    def print_text() -> None:
        tagged = "; ".join(",".join(tags) or "none" for tags in document["tags"])
        print_facts(
            files.title,
            {
                "tags": tagged, "written by": f"TensorFlow {document['producer']}",
                "operations": document["operations"],
                "parameters": f"{document['parameters']:,}", "assets": ", ".join(document["assets"]) or "none",
                "files": f"{len(files.sizes)}, {sum(files.sizes.values()):,} bytes",
            },
        )  # fmt: skip
        _print_signatures(document["signatures"])
        rows = [
            [key, variable.dtype, list(variable.shape), f"{variable.size_bytes:,}"]
            for key, variable in variables.items()
        ]
        if rows:
            print_table("", ("variable", "dtype", "shape", ">bytes"), rows)

    session.show(document, print_text)


@app.command()
def signatures(session: Session, name: Name) -> None:
    """List the signatures: inputs and outputs with their types and shapes."""
    from common.saved_model.contract import to_mapping
    from common.saved_model.graph import signatures_of

    with tempfile.TemporaryDirectory() as folder:
        found = to_mapping(signatures_of(fetched(session, name, Path(folder), "saved_model.pb").graph()))
    session.show(found, lambda: _print_signatures(found))


@app.command()
def graph(
    session: Session,
    name: Name,
    op: Annotated[str, typer.Option(help="Only nodes of this operation.")] = "",
    events: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write it there for TensorBoard. Needs TensorFlow here.")
    ] = None,
) -> None:
    """List the nodes of the graph and of its functions; --json lists all of them."""
    if events is not None:
        _write_graph(session, name, events)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = fetched(session, name, Path(folder), "saved_model.pb").graph().graph_def
    parts = [("", found.node), *((inner.signature.name, inner.node_def) for inner in found.library.function)]
    nodes = [
        {"function": function, "name": node.name, "op": node.op, "inputs": list(node.input)}
        for function, members in parts
        for node in members
        if op in ("", node.op)
    ]

    def print_text() -> None:
        rows = [[node["function"], node["name"], node["op"], ", ".join(node["inputs"])] for node in nodes]
        columns = ("function", "node", "op", "inputs")
        print_table(f"{counted(len(nodes), 'node')}", columns, rows[:_SHOWN_NODES])
        if len(rows) > _SHOWN_NODES:
            echo(f"and {len(rows) - _SHOWN_NODES:,} more; --json lists them all")

    session.show(nodes, print_text)


def _write_graph(session: Session, name: str, events: Path) -> None:
    from headrace.local.inspect import run

    with tempfile.TemporaryDirectory() as folder:
        files = fetched(session, name, Path(folder))
        run("graph", files.directory, events)
    written = sorted(str(path) for path in events.glob("events.out.tfevents.*"))
    session.show(
        {"model": files.title, "files": written},
        lambda: echo(f"the graph of {files.title} is in {events}; see it: tensorboard --logdir {events}"),
    )


@app.command()
def ops(session: Session, name: Name) -> None:
    """List the operations of the graph, how often each is used, and those that no replica can run."""
    from common.saved_model.graph import operations_of
    from common.saved_model.layout import OWN_OPERATIONS_FILE
    from common.saved_model.operations import faults_of

    with tempfile.TemporaryDirectory() as folder:
        files = fetched(session, name, Path(folder), "saved_model.pb")
        found = files.graph()
    counted = dict(sorted(operations_of(found).items()))
    faults = list(faults_of(found, has_own_operations=OWN_OPERATIONS_FILE in files.sizes))

    def print_text() -> None:
        print_table("", ("operation", ">times"), [[key, count] for key, count in counted.items()])
        for fault in faults:
            echo(f"cannot be served: {fault}")

    session.show({"operations": counted, "cannot_be_served": faults}, print_text)


@app.command()
def cost(session: Session, name: Name) -> None:
    """Show the costs of a prediction: parameters by layer, bytes, floating-point operations for a row, and latency.

    The operations are counted by TensorFlow's profiler, and calls of 1, 16 and 256 rows measured on this machine, so
    TensorFlow has to be installed here.
    """
    from headrace.local.inspect import run

    with tempfile.TemporaryDirectory() as folder:
        files = fetched(session, name, Path(folder))
        target = Path(folder) / "flops.json"
        run("flops", files.directory, target)
        counted: dict[str, Any] = json.loads(target.read_text())
        layers = parameters_by_layer(files.variables(), files.directory.parent / "checkpoint")
        measured = latency(files.directory)
    document = {
        "model": files.title, "bytes": sum(files.sizes.values()), "parameters": layers, **counted, "latency": measured
    }  # fmt: skip

    def print_text() -> None:
        rows = [[layer, f"{count:,}"] for layer, count in layers.items()]
        rows.append(["all", f"{sum(layers.values()):,}"])
        print_table(files.title, ("layer", ">parameters"), rows)
        echo(f"{document['bytes']:,} bytes")
        for signature, count in counted["flops"].items():
            echo(f"{signature}: {count:,} floating-point operations for one row")
            for scope, part in counted["flops_by_scope"][signature].items():
                echo(f"  {scope or 'outside of layers'}: {part:,}")
        for signature, reason in counted["reasons"].items():
            echo(f"{signature}: not counted, {reason}")
        for line in _latency_in_words(measured):
            echo(line)

    session.show(document, print_text)


def _latency_in_words(found: Mapping[str, Any]) -> list[str]:
    """Of call_times.latency(): lines to print."""
    if "failed" in found:
        return [f"latency: not measured, {found['failed']}"]
    times = ", ".join(
        f"{value:.3g} ms for {rows} row{'s' if rows != '1' else ''}" for rows, value in found["milliseconds"].items()
    )
    where = f"measured on this machine ({machine(found)}) with one thread and {source(found)}"
    refused = [f"latency of {rows} rows: not measured, {reason}" for rows, reason in found["refused"].items()]
    return [f"latency of {found['signature']}: {times or 'none'}; {where}", *refused]


def chosen_version(client: Client, name: str) -> Version:
    """MODEL@VERSION, or MODEL's version in production."""
    return client.version(*version_number(client, name))


def version_number(client: Client, name: str) -> tuple[str, int]:
    """The model and the number of the same."""
    model, number = reference(name)
    number = number or client.model(model).aliases.get(PRODUCTION, 0)
    if not number:
        raise NotFound(f"model {model} has no version in production yet; name a version, as in {model}@1")
    return model, number


def fetched(session: Session, name: str, folder: Path, *wanted: str) -> _Files:
    """The SavedModel that is meant, its wanted files below `folder`; none named: all, and the checkpoint's weights."""
    if Path(name).is_dir():
        from headrace.local.inspect import in_binary

        local = in_binary(Path(name), folder)
        sizes = {path.relative_to(local).as_posix(): path.stat().st_size for path in local.rglob("*") if path.is_file()}
        return _Files(name, local, sizes)
    client = session.client()
    version = chosen_version(client, name)
    entries = {file.path.removeprefix(FOLDER): file for file in version.files if file.path.startswith(FOLDER)}
    for path, entry in entries.items():
        if not wanted or path in wanted:
            client.fetch_file(entry, folder / FOLDER / path)
    for file in version.files:
        if not wanted and file.path.startswith(("checkpoint/weights", "checkpoint/index.json")):
            client.fetch_file(file, folder / file.path)
    sizes = {path: entry.size_bytes for path, entry in entries.items()}
    return _Files(f"{version.model}@{version.version}", folder / FOLDER, sizes)


def parameters_by_layer(variables: "Mapping[str, Variable]", checkpoint: Path) -> dict[str, int]:
    """By the checkpoint's names where there is a checkpoint: an export numbers its variables. Tables that lie in the
    export's file alone are in the checkpoint's index."""
    counted: defaultdict[str, int] = defaultdict(int)
    sizes: dict[str, int] = {}
    for weights in sorted(checkpoint.glob("weights*.npz")):
        import numpy as np

        with np.load(weights) as file:
            sizes |= {path: int(file[path].size) for path in file.files}
    if (index := checkpoint / "index.json").is_file():
        sizes |= {
            path: math.prod(place["shape"]) for path, place in json.loads(index.read_text()).get("tables", {}).items()
        }
    for path, size in sizes.items():
        if path.startswith("model/"):
            counted[_layer_of(path.removeprefix("model/"))] += size
    for name, variable in variables.items() if not counted else ():
        counted[_layer_of(name)] += variable.value_count
    return dict(sorted(counted.items()))


def _layer_of(variable: str) -> str:
    """`net/dense` of `net/dense/kernel`; a variable of no layer is named for itself."""
    return variable.rpartition("/")[0] or variable


def _print_signatures(found: Mapping[str, Any]) -> None:
    from common.saved_model.contract import tensors

    for name, signature in found.items():
        echo(f"{name} ({signature['method'] or 'no method'})", bold=True)
        for side in ("inputs", "outputs"):
            for tensor, described in tensors(signature, side).items():
                print_line(f"  {side[:-1]:<6}  {tensor}  {described}", hanging=" " * 10)


@app.command()
def export(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="MODEL[@VERSION]", help="A version; without @VERSION that in production.")
    ],
    to: Annotated[Path, typer.Option(metavar="DIR", help="TensorFlow Serving's model_base_path; DIR/VERSION is new.")],
) -> None:
    """Write a version's SavedModel as DIR/VERSION, whole or not at all, as TensorFlow Serving reads it.

    Its signature comes with it: `headrace verify DIR/VERSION` needs no platform.
    """
    client = session.client()
    version = chosen_version(client, name)
    entries = [file for file in version.files if file.path.startswith(FOLDER)]
    if not entries:
        raise NotFound(f"{version.model}@{version.version} has no SavedModel")
    target, aside = to / str(version.version), to / f".{version.version}.partial"
    if target.exists():
        raise Conflict(f"{target} is there already; versions never change")
    shutil.rmtree(aside, ignore_errors=True)  # Of an export that was cut short; TensorFlow Serving reads numbers only.
    for entry in entries:
        client.fetch_file(entry, path_below(aside, entry.path.removeprefix(FOLDER)))
    if version.signature:
        (aside / SIGNATURE_FILE).write_text(version.signature)
    aside.rename(target)
    document = {"model": version.model, "version": version.version, "to": str(target), "files": len(entries)}
    sentence = f"{version.model}@{version.version} is in {target}: {counted(len(entries), 'file')}"
    session.show(document, lambda: echo(sentence))
