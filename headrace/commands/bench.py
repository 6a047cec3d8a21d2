"""bench: how many predictions a second a server answers, and how fast."""

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import SplitResult, quote, urlsplit

import orjson
import typer

from common.counted import counted
from common.errors import InvalidInput, NotFound
from common.suggestions import there_is_no
from headrace.client.credentials import token_for
from headrace.client.trust import context_of
from headrace.commands.session import Session

_SEED = 7
NO_ANSWER = 1
"""Exit status when not one request was answered well."""
_STATUS_SECONDS = 10.0


def bench(
    context: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="http://host:port or https://host:port, or the whole URL of a predict call."
        ),
    ],
    model: Annotated[str, typer.Option(help="The model, where the URL names none and several are served.")] = "",
    body: Annotated[Path | None, typer.Option(help="A file with the body; none: made from the metadata.")] = None,
    rows: Annotated[int, typer.Option(help="Rows in a body that is made from the metadata.", min=1)] = 1,
    signature: Annotated[str, typer.Option(help="The signature of a body that is made.")] = "",
    connections: Annotated[int, typer.Option(help="Connections at a time.", min=1, max=10_000)] = 16,
    seconds: Annotated[float, typer.Option(help="How long to measure, after a second to warm up.", min=0.1)] = 5.0,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second, whether answers come or not; none: as answers come.", min=0.1),
    ] = None,
) -> None:
    """Send predictions to a server as fast as it answers, or at a fixed rate, and print rates and latencies."""
    from headrace.commands.load import LoadPlan, run_load

    session: Session = context.obj
    root, path, content = _target(url, model, body, signature, rows)
    scheme, host, port = root.scheme, root.hostname or "", root.port or 0
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n{_credentials(host, port)}\r\n"
    )
    plan = LoadPlan(
        host, port, head.encode() + content, connections=connections, seconds=seconds, rate=rate,
        tls=context_of() if scheme == "https" else None,
    )  # fmt: skip
    report = run_load(plan)
    document = {
        "url": f"{scheme}://{host}:{port}{path}", "connections": connections, "seconds": seconds, "rate": rate,
        "body_bytes": len(content), "rows": rows if body is None else None,
        "predictions_per_second": round(report.answered / seconds, 1),
        "p50_ms": round(report.percentile(0.5), 3), "p95_ms": round(report.percentile(0.95), 3),
        "p99_ms": round(report.percentile(0.99), 3), "errors": dict(report.errors), "unsent": report.unsent,
        "generator_share": round(report.generator_share, 2), "generator_late_ms": round(report.late_ms, 3),
        "generator_is_the_limit": report.is_generator_the_limit,
    }  # fmt: skip
    session.show(document, lambda: _print(document, report.first_error, is_made=body is None))
    if not report.answered:
        raise typer.Exit(NO_ANSWER)


def _credentials(host: str, port: int) -> str:
    token = token_for(f"{host}:{port}")
    return f"Authorization: Bearer {token}\r\n" if token else ""


def _print(document: dict[str, Any], first_error: str, *, is_made: bool) -> None:
    how = f"{document['rate']:g} requests/s due" if document["rate"] else "closed loop"
    typer.echo(f"{document['url']}: {counted(document['connections'], 'connection')}, {document['seconds']:g} s, {how}")
    typer.echo(
        f"{document['predictions_per_second']:,.0f} predictions/s   p50 {document['p50_ms']:.2f} ms   "
        f"p95 {document['p95_ms']:.2f} ms   p99 {document['p99_ms']:.2f} ms"
    )
    errors = ", ".join(f"{count:,} x {what}" for what, count in document["errors"].items())
    typer.echo(f"errors: {errors or 'none'}" + (f" (first: {first_error})" if first_error else ""))
    if is_made and first_error and not document["predictions_per_second"]:
        typer.echo(
            "the body was made from the metadata, which does not say what values are valid; give one with --body"
        )
    if document["unsent"]:
        typer.echo(
            f"{counted(document['unsent'], 'request')} due found no free connection: the server is slower than that"
        )
    if document["generator_is_the_limit"]:
        typer.echo(
            f"the generator itself was the limit: it took {document['generator_share']:.0%} of a core and sent "
            f"{document['generator_late_ms']:.1f} ms late (p99); the server may be faster than this",
        )


def _target(url: str, model: str, body: Path | None, signature: str, rows: int) -> tuple[SplitResult, str, bytes]:
    """(the URL, path, body).

    Raises:
        InvalidInput, NotFound: the URL, the file or the model is none; Unavailable: nobody answers there.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port is None:
        raise InvalidInput(f"bench takes http://host:port or https://host:port, with or without a path, got {url!r}")
    root = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    if path and model:
        raise InvalidInput("name the model in the URL or with --model, not both")
    if not path:
        path = f"/v1/models/{quote(model or _only_model(root), safe='')}:predict"
    if body is not None:
        if signature:
            raise InvalidInput("--signature is for a body that is made; say signature_name in the file")
        try:
            return parts, path, body.read_bytes()
        except OSError as error:
            raise InvalidInput(f"{body} cannot be read: {error.strerror}") from error
    return parts, path, _made_body(root, path, signature, rows)


def _only_model(root: str) -> str:
    from headrace.client.connection import Door

    door = Door("serving", root, timeout_seconds=_STATUS_SECONDS)
    try:
        models = sorted(door.call("GET", "/headrace/status", repeatable=False).json().get("models", {}))
    finally:
        door.close()
    if len(models) != 1:
        known = f"it serves {', '.join(models)}" if models else "it serves none yet"
        raise InvalidInput(f"name a model with --model: {known}")
    return str(models[0])


def _made_body(root: str, path: str, signature: str, rows: int) -> bytes:
    """Random values (of a fixed seed) that fit the signature; sizes that are not fixed are 1."""
    import numpy as np

    from headrace.client.connection import Door

    if not path.endswith(":predict"):
        raise InvalidInput(f"{path} is no predict call; give a body with --body")
    door = Door("serving", root, timeout_seconds=_STATUS_SECONDS)
    try:
        answer = door.call("GET", path.removesuffix(":predict") + "/metadata", repeatable=False).json()
    finally:
        door.close()
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    wanted = signature or "serving_default"
    found = signatures.get(wanted)
    if found is None:
        raise NotFound(there_is_no(f"signature {wanted}", wanted, signatures))
    random = np.random.default_rng(_SEED)
    inputs = {name: _values(random, name, spec, rows) for name, spec in found["inputs"].items()}
    document = {"inputs": inputs} | ({"signature_name": signature} if signature else {})
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _values(random: Any, name: str, spec: dict[str, Any], rows: int) -> Any:
    sizes = (
        [int(dim["size"]) for dim in spec["tensor_shape"]["dim"]] if not spec["tensor_shape"]["unknown_rank"] else [-1]
    )
    shape = [size if size >= 0 else (rows if axis == 0 else 1) for axis, size in enumerate(sizes)]
    dtype = str(spec["dtype"])
    if dtype == "DT_STRING":
        import numpy as np

        return np.full(shape, "a", object).tolist()
    if dtype == "DT_BOOL":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("DT_INT", "DT_UINT")):
        return random.integers(0, 10, shape)
    if dtype in ("DT_FLOAT", "DT_DOUBLE"):
        return random.random(shape, "float32")
    raise InvalidInput(f"input {name} has type {dtype}, which JSON does not carry; give a body with --body")
