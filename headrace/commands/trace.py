"""trace: one request or round, from door to door, as the services keep it in memory; needs no collector."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from common.errors import Conflict, NotFound, Unavailable
from headrace.client.platform import Client
from headrace.commands.look import reference
from headrace.commands.session import Session, print_table
from headrace.commands.terminal import echo
from headrace.places import SERVICES

_TIMEOUT_SECONDS = 5.0
_SHOWN = ("model", "version", "decision", "round", "accepted", "position", "batch_requests", "batch_rows", "runner_pid")


def trace(
    session: Session,
    request: Annotated[
        str,
        typer.Argument(metavar="REQUEST", help="An answer's x-request-id, a trace id, a round's id, or MODEL@VERSION."),
    ],
) -> None:
    """Show where a traced request or round went and how long each part took (TRACE_SAMPLE starts tracing)."""
    names = [request]
    if "@" in request:
        model, version = reference(request)
        found = session.client().version(model, version)
        names = [name for name in (f"{model}@{found.version}", found.round_id) if name]
    state = session.launcher().state()
    doors = [
        (process.name, state.url_of(process))
        for process in state.processes
        if process.http_port and process.name.startswith(SERVICES)
    ]
    spans = _gathered(session.client(), doors, names)
    if not spans:
        raise NotFound(f"no service has a span of {request}: it was not sampled, or newer spans have taken its place")
    linked = sorted({link for span in spans for link in span["links"]})
    document = {"request": request, "spans": spans, "linked_traces": linked}
    session.show(document, lambda: _print(request, spans, linked))


def _gathered(client: Client, doors: Sequence[tuple[str, str]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Of every service that answers, oldest first: by the names first, then by the traces that it was found in. Raises
    Conflict: nothing is traced."""
    off: list[Conflict] = []
    found: dict[str, dict[str, Any]] = {}
    wanted, looked_up = list(names), set[str]()
    while wanted:
        trace = wanted.pop()
        looked_up.add(trace)
        for name, url in doors:
            try:
                door = client.door(name, url, timeout_seconds=_TIMEOUT_SECONDS)
                spans = door.call("GET", f"/v1/traces/{trace}", repeatable=False).json()["spans"]
                door.close()
            except Conflict as error:
                off.append(error)
                continue
            except (NotFound, Unavailable):
                continue
            found |= {span["span_id"]: {**span, "instance": name} for span in spans}
        wanted += sorted({span["trace_id"] for span in found.values()} - looked_up - set(wanted))
    if not found and len(off) == len(doors):
        raise off[0] if off else Unavailable("no service of the platform runs")
    return sorted(found.values(), key=lambda span: (span["trace_id"], span["began_at"]))


def _in_order(spans: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(depth, span): each below its parent, by the time at which it began."""
    below: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    known = {span["span_id"] for span in spans}
    for span in spans:
        below[span["parent_id"] if span["parent_id"] in known else ""].append(span)
    open_spans = [(0, span) for span in reversed(below[""])]
    while open_spans:
        depth, span = open_spans.pop()
        yield depth, span
        open_spans += [(depth + 1, child) for child in reversed(below[span["span_id"]])]


def _print(request: str, spans: Sequence[Mapping[str, Any]], linked: Sequence[str]) -> None:
    began = {span["trace_id"]: span["began_at"] for span in reversed(spans)}
    columns = ("span", "where", ">after", ">took", "what")
    rows = [
        [
            "  " * depth + span["name"],
            span["instance"],
            f"{span['began_at'] - began[span['trace_id']]:.3f} s",
            f"{span['seconds'] * 1000:,.1f} ms",
            span["error"] or _shown_attributes(span["attributes"]),
        ]
        for depth, span in _in_order(spans)
    ]
    print_table(f"trace of {request}", columns, rows)
    for trace in linked:
        echo(f"goes back to: headrace trace {trace}")


def _shown_attributes(attributes: Mapping[str, Any]) -> str:
    named = ((name, attributes.get(f"headrace.{name}")) for name in _SHOWN)
    return ", ".join(f"{name} {value}" for name, value in named if value not in (None, ""))
