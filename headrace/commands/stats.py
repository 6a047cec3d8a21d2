"""stats: what the values of a stream, a round or of requests look like, by field, and how far two of them are apart."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import typer

from common.errors import InvalidInput, NotFound
from common.statistics.distances import DRIFTS
from common.suggestions import there_is_no
from headrace.client.platform import Client
from headrace.commands.evaluation_tables import number_of
from headrace.commands.look import reference
from headrace.commands.model_files import version_number
from headrace.commands.session import Session, print_table
from headrace.commands.terminal import echo

_REQUESTS = "requests:"
_SHOWN_WORDS = 3


def stats(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(
            metavar="STREAM|MODEL[@VERSION]", help="A stream's newest events, or those of a version's round."
        ),
    ],
    against: Annotated[
        str,
        typer.Option(
            metavar="OTHER",
            help="Compare with another stream or version, or with requests to serving: requests:URL of its log.",
        ),
    ] = "",
    transformed: Annotated[
        bool, typer.Option("--transformed", help="Of a version: the transformed values of its features.")
    ] = False,
    last: Annotated[int, typer.Option(help="Of a stream or a log: the number of events.", min=1, max=20_000)] = 10_000,
    fail_at: Annotated[
        str, typer.Option(metavar="DRIFT", help="With --against: exit status 1 at some or large drift of a field.")
    ] = "",
) -> None:
    """Show counts, missing, mean, quantiles and words of each field; with --against, the changes."""
    if fail_at and (fail_at not in DRIFTS[1:] or not against):
        raise InvalidInput("--fail-at is some or large, and says nothing without --against")
    client = session.client()
    title, found = _statistics(client, name, last)
    found = _of_features(title, found) if transformed else found
    if against:
        of_log = transformed and against.startswith(_REQUESTS)
        other_title, other = (
            (against, _transformed_requests(client, title, against.removeprefix(_REQUESTS), last))
            if of_log
            else _statistics(client, against, last, model=reference(name)[0])
        )
        other = _of_features(other_title, other) if transformed and not of_log else other
    if not against:
        session.show({"of": title, **found}, lambda: _print_fields(title, found["fields"]))
        return
    from common.statistics.distances import compare, sentences

    distances = compare(found, other)
    if against.startswith(_REQUESTS):  # requests have no labels, and only what the model takes
        distances = {field: distance for field, distance in distances.items() if field in other["fields"]}
    found_sentences = sentences(distances)
    document = {"of": title, "against": other_title, "fields": distances, "sentences": found_sentences}
    session.show(document, lambda: _print_distances(f"{title} -> {other_title}", distances, found_sentences))
    worst = max((DRIFTS.index(distance.get("drift", "none")) for distance in distances.values()), default=0)
    if fail_at and worst >= DRIFTS.index(fail_at):
        raise typer.Exit(1)


def _statistics(client: Client, name: str, last: int, *, model: str = "") -> tuple[str, Mapping[str, Any]]:
    if name.startswith(_REQUESTS):
        return name, _of_requests(name.removeprefix(_REQUESTS), model, last)
    if "@" not in name:
        streams = [stream.name for stream in client.streams()]
        if name in streams:
            return f"stream {name}", client.stream_statistics(name, last)
        models = [known.name for known in client.models()]
        if name not in models:
            raise NotFound(there_is_no(f"stream or model {name}", name, [*streams, *models]))
    named, number = version_number(client, name)
    return f"{named}@{number}", client.version_statistics(named, number)


def _of_features(title: str, found: Mapping[str, Any]) -> Mapping[str, Any]:
    if "transformed" not in found:
        raise InvalidInput(
            f"{title} has no statistics of transformed values; versions of a definition with features do"
        )
    return {"fields": found["transformed"]}


def _transformed_requests(client: Client, title: str, url: str, last: int) -> Mapping[str, Any]:
    """What the version's features make of what serving was asked, by the code that trains."""
    try:
        from headrace.client.prediction_log import read_prediction_log
        from headrace.files.request_examples import examples_of
    except ImportError as error:
        raise InvalidInput("reading a request log needs pip install 'headrace[client]'") from error
    from common.eventlog.tfrecord import frame
    from common.schema import Schema
    from headrace.local.check import transformed, work_folder

    model, number = reference(title)
    version = client.version(model, number)
    schema = Schema.from_json(client.stream(version.stream, schema_version=version.schema_version).schema_json)
    kept = list(read_prediction_log(url, model))[-last:]
    with work_folder() as work_dir:
        for file in version.files:
            if file.path.startswith("checkpoint/"):
                client.fetch_file(file, work_dir / file.path)
        (work_dir / "schema.json").write_text(schema.to_json())
        (work_dir / "examples.tfrecord").write_bytes(frame(examples_of((request.inputs for request in kept), schema)))
        return transformed(work_dir, client.definition(version.definition_digest))


def _of_requests(url: str, model: str, last: int) -> Mapping[str, Any]:
    """Of the inputs of the last logged predictions of a model."""
    try:
        import numpy as np

        from common.statistics.sketches import FieldStatistics, of_arrays, to_document
        from headrace.client.prediction_log import read_prediction_log
    except ImportError as error:
        raise InvalidInput("reading a request log needs pip install 'headrace[client]'") from error
    kept = list(read_prediction_log(url, model))[-last:]
    fields: dict[str, FieldStatistics] = {}
    for logged in kept:
        for field, statistics in of_arrays(
            {field: np.asarray(array) for field, array in logged.inputs.items()}
        ).items():
            if field in fields:
                fields[field].merge(statistics)
            else:
                fields[field] = statistics
    return {"predictions": len(kept), **to_document(fields)}


def _print_fields(title: str, fields: Mapping[str, Any]) -> None:
    rows = [
        [
            field, f"{counts['examples']:,}", f"{counts['missing']:,}", number_of(counts.get("distinct")),
            number_of(counts.get("min")), number_of(counts.get("mean")), number_of(_median(counts)),
            number_of(counts.get("max")), _words(counts),
        ]
        for field, counts in fields.items()
    ]  # fmt: skip
    columns = ("field", ">events", ">missing", ">distinct", ">min", ">mean", ">median", ">max", "most frequent")
    print_table(title, columns, rows)


def _print_distances(title: str, distances: Mapping[str, Any], lines: Sequence[str]) -> None:
    rows = [
        [
            field, apart.get("drift") or _difference(apart), number_of(apart.get("psi")),
            number_of(apart.get("jensen_shannon")), number_of(apart.get("wasserstein")),
            " -> ".join(f"{share:.1%}" for share in apart.get("missing", ())) or "-",
        ]
        for field, apart in sorted(distances.items(), key=lambda item: -item[1].get("psi", 0.0))
    ]  # fmt: skip
    print_table(title, ("field", "drift", ">PSI", ">Jensen-Shannon", ">Wasserstein", ">missing"), rows)
    for sentence in lines:
        echo(sentence)


def _difference(distance: Mapping[str, Any]) -> str:
    if "only_in" in distance:
        return f"only in the {distance['only_in']}"
    return " -> ".join(distance["kinds"]) if "kinds" in distance else "no values"


def _median(statistics: Mapping[str, Any]) -> float | None:
    grid = statistics.get("quantiles")
    return grid[len(grid) // 2] if grid else None


def _words(counts: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{word} {count / counts['values']:.0%}" for word, count in islice(counts.get("top", ()), _SHOWN_WORDS)
    )
