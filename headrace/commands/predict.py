"""predict: rows from the command line, from standard input or from a file, over REST or gRPC, now or later."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard
from urllib.parse import urlsplit

import typer

from common.counted import counted
from common.errors import InvalidInput, NotFound, Unavailable
from common.registry.catalog import PRODUCTION
from common.storage import place_of
from headrace.commands.session import LOCAL, ModelName, Session
from headrace.commands.terminal import echo

if TYPE_CHECKING:
    from common.schema import Schema
    from headrace.client.prediction_types import Prediction
    from headrace.client.predictions import PredictionClient
    from headrace.client.tensor_values import SignatureTypes
    from headrace.files.row_files import Rows

_ROWS_AT_ONCE = 1000
_OF_A_REQUEST = frozenset({"inputs", "instances", "context", "signature_name", "output_filter"})


def predict(
    session: Session,
    model: ModelName,
    request: Annotated[
        str, typer.Argument(metavar="[JSON]", help="One instance, a list of them, or a whole request; - reads stdin.")
    ] = "-",
    file: Annotated[
        str | None,
        typer.Option(
            help="Rows from a .csv, .parquet, .ndjson, .json, .npy or .tfrecord file instead, by path or URL, or from "
            "kafka://HOST:PORT/TOPIC; with a label in them, the metrics too."
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="With --file: write each row's answer to a new file of NDJSON or to kafka://HOST:PORT/TOPIC.",
        ),
    ] = "",
    version: Annotated[int | None, typer.Option(help="Ask this version.", min=1)] = None,
    label: Annotated[str | None, typer.Option(help="Ask the version behind this alias.")] = None,
    signature: Annotated[str, typer.Option(help="The signature to call; none means serving_default.")] = "",
    output: Annotated[list[str] | None, typer.Option(help="Only this output; may be given again.")] = None,
    url: Annotated[
        str,
        typer.Option(
            help="http://host:port or grpc://host:port of serving, with TLS https:// or grpcs://; none: the platform's."
        ),
    ] = "",
    use_grpc: Annotated[bool, typer.Option("--grpc", help="Ask over gRPC.")] = False,
    is_async: Annotated[bool, typer.Option("--async", help="Submit, then wait for the answer.")] = False,
    here: Annotated[
        bool, typer.Option("--here", help="Load the version into this process and ask it; no replica has to have it.")
    ] = False,
    round_id: Annotated[
        str, typer.Option("--round", help="With --here: ask the resume point of this round, which made no version.")
    ] = "",
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="With --round: run the code of the model's authors on this machine.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for all of it.", min=0.001)] = 30.0,
) -> None:
    """Ask for predictions and print the answer as JSON."""
    from headrace.client.prediction_types import Target
    from headrace.client.predictions import PredictionClient
    from headrace.client.tensor_values import read_json
    from headrace.commands.predict_batch import answer_all, is_topic, sentence_of

    if file is not None and request != "-":
        raise InvalidInput("predict takes JSON or --file, not both")
    if to and file is None:
        raise InvalidInput("--to takes the answers to the rows of --file")
    if file is not None and is_topic(file) and not to:
        raise InvalidInput("rows of a topic need --to, a file or a topic for their answers")
    _check_ways(
        is_async=is_async, use_grpc=use_grpc, has_url=bool(url), here=here, is_round=bool(round_id),
        is_version=bool(version or label), trust_code=trust_code,
    )  # fmt: skip
    target = Target(model, version, label, signature)
    document = None if file is not None else _document(sys.stdin.read() if request == "-" else request)
    with (
        _with_reason(session, target, is_ours=not (url or round_id)),
        nullcontext(_loaded(session, target, round_id, trust_code=trust_code))
        if here
        else _client(session, url, use_grpc=use_grpc, timeout_seconds=timeout) as client,
    ):
        if _may_be_an_instance(document):
            known_inputs = client.signature(model, signature, version=version, label=label)
            if document.keys() <= {*known_inputs.inputs, *known_inputs.name_of}:
                document = {"instances": [document]}
        if (
            isinstance(client, PredictionClient)
            and document is not None
            and not (use_grpc or is_async or output or url.startswith("grpc:"))
        ):
            _show(read_json(client.predict_raw(target, _body(document, signature))))
            return
        asking = Asking(client, target, tuple(output or ()), is_async=is_async, timeout_seconds=timeout)
        if file is None:
            _show(asking.document(document))
            return
        known = None if url else _known(session, target)
        if to:
            totals = answer_all(asking, file, to, known)
            session.show(totals, lambda: echo(sentence_of(totals)))
            return
        with place_of(file).as_local() as local:
            answer = asking.file(local, known)
        _show(answer)
        if "metrics" in answer and not session.as_json:
            listed = ", ".join(f"{name} {value:.4g}" for name, value in answer["metrics"].items())
            echo(f"{counted(answer['labelled'], 'row')} with {known.label if known else 'a label'}: {listed}", err=True)


def _check_ways(
    *, is_async: bool, use_grpc: bool, has_url: bool, here: bool, is_round: bool, is_version: bool, trust_code: bool
) -> None:
    """Raises InvalidInput: two options do not go together."""
    if is_async and use_grpc:
        raise InvalidInput("asynchronous predictions have no gRPC door; leave out --grpc or --async")
    if here and (has_url or use_grpc or is_async):
        raise InvalidInput("--here asks no server; leave out --url, --grpc and --async")
    if is_round and (not here or is_version):
        raise InvalidInput("--round names a resume point: it needs --here, and no --version or --label")
    if trust_code and not is_round:
        raise InvalidInput("--trust-code needs --round: a version's files run no code")


def _loaded(session: Session, target: Any, round_id: str, *, trust_code: bool) -> Any:
    client = session.client(timeout_seconds=60.0)
    if round_id:
        return client.loaded_point(target.model, round_id, trust_code=trust_code)
    number = target.version or client.model(target.model).aliases.get(target.label or PRODUCTION, 0)
    if target.label and not number:
        raise NotFound(f"model {target.model} has no alias {target.label}")
    return client.loaded(target.model, number)


@contextmanager
def _with_reason(session: Session, target: Any, *, is_ours: bool) -> Iterator[None]:
    """Serving answers only that it has no version; the registry knows whether there is one yet."""
    try:
        yield
    except NotFound as error:
        if not is_ours or target.version or target.label:
            raise
        try:
            model = session.client().model(target.model)
        except Unavailable:
            raise error from None
        if PRODUCTION in model.aliases:
            raise
        raise NotFound(
            f"model {model.name} has no version in production yet; `headrace status` says what its next round waits "
            f"for, `headrace why {model.name}` what went wrong"
        ) from error


@dataclass(frozen=True)
class Known:
    """What the registry says of a model: its first head's task and label, its stream's schema.

    Attributes:
        prefix: of the head's outputs.
    """

    task: str
    label: str
    prefix: str
    schema: "Schema"


def _known(session: Session, target: Any) -> Known | None:
    """Of the version that answers; None while the registry cannot tell."""
    from common.definition.model import parse_definition
    from common.schema import Schema

    try:
        client = session.client()
        model = client.model(target.model)
        number = target.version or model.aliases.get(target.label or PRODUCTION, 0)
        version = client.version(model.name, number) if number else None
        definition = parse_definition(client.definition((version or model).definition_digest))
        stream = client.stream(model.stream, schema_version=version.schema_version if version else 0)
    except (NotFound, Unavailable):
        return None  # serving answers, or says what it lacks
    head = definition.heads[0]
    prefix = f"{head.name}/" if len(definition.heads) > 1 else ""
    return Known(head.task, head.label, prefix, definition.seen(Schema.from_json(stream.schema_json)))


class Asking:
    """One command's way of asking."""

    def __init__(
        self,
        client: "PredictionClient",
        target: Any,
        output_filter: tuple[str, ...],
        *,
        is_async: bool,
        timeout_seconds: float,
    ) -> None:
        self._client = client
        self._target = target
        self._output_filter = output_filter
        self._is_async = is_async
        self._timeout_seconds = timeout_seconds
        self._signature: SignatureTypes | None = None

    def file(self, path: Path, known: Known | None) -> dict[str, Any]:
        """The predictions of all rows, the versions that answered, and the metrics where the rows have a label."""
        found = self.rows_in(path, known)
        document = _document_of(list(self.answers(found.rows)))
        predictions = document["predictions"]
        if known is None or not found.labels:
            return document
        from common.quality import metrics_of

        labelled = sum(label is not None for label in found.labels)
        metrics = metrics_of(known.task, predictions, found.labels, prefix=known.prefix)
        return document | ({"labelled": labelled, "metrics": metrics} if metrics else {})

    def rows_in(self, path: Path, known: Known | None) -> "Rows":
        """The rows of a file as the signature wants them. Raises InvalidInput: one does not fit; says which."""
        from headrace.files.row_files import Wanted, read_rows

        target = self._target
        if self._signature is None:
            self._signature = self._client.signature(
                target.model, target.signature_name, version=target.version, label=target.label
            )
        found = self._signature
        wanted = Wanted(found.inputs, name_of=found.name_of, yes_no=found.yes_no)
        return read_rows(path, replace(wanted, schema=known.schema, label=known.label) if known else wanted)

    def answers(self, rows: list[Any]) -> Iterator[tuple[Any, int]]:
        """(prediction, version) of each row, in order."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            yield from self._answered(rows[start : start + _ROWS_AT_ONCE])

    def _answered(self, rows: list[Any]) -> list[tuple[Any, int]]:
        """Together, or where that is refused and lists differ in length, each length by itself."""
        try:
            answer = self._rows(rows)
            return [(prediction, answer.version) for prediction in answer.rows()]
        except InvalidInput as refused:
            groups = _of_equal_lengths(rows)
            if len(groups) < 2:
                raise
            found: dict[int, tuple[Any, int]] = {}
            for places in groups:
                try:
                    answer = self._rows([rows[place] for place in places])
                except InvalidInput:
                    raise refused from None  # its row numbers are the file's
                found |= {place: (row, answer.version) for place, row in zip(places, answer.rows(), strict=True)}
            return [found[place] for place in range(len(rows))]

    def document(self, document: Any) -> dict[str, Any]:
        if isinstance(document, dict) and "inputs" in document:
            if "context" in document:
                raise InvalidInput("a context is what instances share; inputs are columns")
            answer = self._predict(document["inputs"], None)
            return {"outputs": dict(answer.outputs), "version": answer.version}
        rows, shared = document["instances"], document.get("context")
        if shared is not None:  # which only REST's own bodies have
            if not isinstance(shared, dict) or not all(isinstance(row, dict) for row in rows):
                raise InvalidInput("a context and the instances that share it are objects of named inputs")
            rows = [shared | row for row in rows]
        return _document_of(self._answered(rows))

    def _rows(self, rows: list[Any]) -> "Prediction":
        if all(isinstance(row, dict) and row.keys() != {"b64"} for row in rows):
            return self._predict(None, rows)
        return self._predict(rows, None)

    def _predict(self, inputs: Any, rows: Any) -> "Prediction":
        target = self._target
        options: dict[str, Any] = {
            "rows": rows, "signature_name": target.signature_name, "version": target.version, "label": target.label,
            "output_filter": self._output_filter,
        }  # fmt: skip
        if not self._is_async:
            return self._client.predict(target.model, inputs, **options)
        return self._client.wait(
            self._client.submit(target.model, inputs, **options), timeout_seconds=self._timeout_seconds
        )


def _document_of(answers: list[tuple[Any, int]]) -> dict[str, Any]:
    """The predictions and their version; a list of versions where the requests met several."""
    versions = list(dict.fromkeys(version for _, version in answers))
    predictions = [prediction for prediction, _ in answers]
    return {"predictions": predictions, "version": versions[0] if len(versions) == 1 else versions}


def _of_equal_lengths(rows: list[Any]) -> list[list[int]]:
    """Places of rows by the lengths of the lists in them."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, row in enumerate(rows):
        values = row.values() if isinstance(row, dict) else [row]
        lengths = tuple(len(value) if isinstance(value, list) else -1 for value in values)
        groups.setdefault(lengths, []).append(place)
    return list(groups.values())


def _client(session: Session, url: str, *, use_grpc: bool, timeout_seconds: float) -> "PredictionClient":
    """A platform's own token is for its doors only, not for any URL."""
    from headrace.client.predictions import PredictionClient

    if url:
        if use_grpc and not url.startswith(("grpc:", "grpcs:")):
            raise InvalidInput(f"--grpc needs a --url grpc://host:port, got {url!r}")
        return PredictionClient(url, timeout_seconds=timeout_seconds)
    client = session.client()
    http, token = client.addresses.predictions or client.addresses.serving[0], client.token
    ca_file = client.addresses.ca_file
    address = _grpc_of(session, http) if use_grpc else http
    return PredictionClient(address, timeout_seconds=timeout_seconds, token=token, ca_file=ca_file)


def _grpc_of(session: Session, http: str) -> str:
    scheme = "grpcs" if http.startswith("https:") else "grpc"
    if session.kind == LOCAL:
        from headrace.places import HOST, read_state

        return f"{scheme}://{HOST}:{read_state(session.data_dir).process('serving-0').grpc_port}"
    parts = urlsplit(http)
    return f"{scheme}://{parts.hostname}:{(parts.port or 0) - 1}"


def _document(text: str) -> Any:
    """A whole request; one instance or a list of them becomes `instances`."""
    from headrace.files.tables import parsed_json

    document = parsed_json(text.encode(errors="surrogateescape"), "the request", keeps_odd_numbers=True)
    if isinstance(document, dict) and ("instances" in document or "inputs" in document):
        return document
    return {"instances": document if isinstance(document, list) else [document]}


def _may_be_an_instance(document: Any) -> TypeGuard[dict[str, Any]]:
    """Whether what looks like a whole request may have a feature called `inputs` or `instances`: with keys that no
    request has, or a value that is neither a list nor an object."""
    return isinstance(document, dict) and (
        bool(document.keys() - _OF_A_REQUEST)
        or not all(isinstance(document.get(name, []), list | dict) for name in ("inputs", "instances"))
    )


def _body(document: dict[str, Any], signature: str) -> bytes:
    from headrace.client.tensor_values import json_body

    return json_body(document | ({"signature_name": signature} if signature else {}))


def _show(document: Any) -> None:
    indent = 2 if sys.stdout.isatty() else None
    separators = None if indent else (",", ":")
    echo(json.dumps(document, default=_plain, indent=indent, separators=separators))


def _plain(value: Any) -> Any:
    from headrace.client.bodies import plain

    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return plain(value)
    return plain(value)
