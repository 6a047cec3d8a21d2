"""Predictions from Python: numpy in, numpy out, over REST or gRPC, of Headrace or of a TensorFlow Serving.

    from headrace import PredictionClient

    with PredictionClient("http://127.0.0.1:8501") as client:            # or grpc://127.0.0.1:8500
        answer = client.predict("digits", {"pixels": pixels})
        answer.outputs["probabilities"], answer.version

Thread-safe. Every call has a timeout, which the server knows, and raises one of the six errors. Predictions change
nothing, so they are sent again, with growing and random pauses, while the server is away or overloaded; a prediction
that failed (500) or took too long (504) is not. A submission is sent again only where it certainly was not taken.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import numpy as np

from common.errors import InvalidInput, Unavailable
from headrace.client.predict_rest import RestTransport
from headrace.client.prediction_types import Call, PendingPrediction, Prediction, Target
from headrace.client.tensor_values import SignatureTypes
from headrace.client.trust import grpc_credentials_of

if TYPE_CHECKING:
    from headrace.client.predict_grpc import GrpcTransport

_LONGEST_POLL_SECONDS = 20.0


class PredictionClient:
    """Use as a context manager, or call close()."""

    def __init__(self, url: str, *, timeout_seconds: float = 30.0, token: str | None = None, ca_file: str = "") -> None:
        """`url` is http://host:port or https://host:port (REST), grpc://host:port or, with TLS, grpcs://host:port.

        Args:
            token: what the server is shown; None: HEADRACE_TOKEN, the file that HEADRACE_TOKEN_FILE names, or what
                `headrace login` has stored.
            ca_file: PEM; whom TLS trusts. HEADRACE_CA_FILE wins over it; without either the machine's authorities.

        Raises:
            InvalidInput: it is of another form, or gRPC is asked for and grpcio is not installed.
        """
        self.url = url
        self._timeout_seconds = timeout_seconds
        self._transport = _transport(url, token, ca_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def predict(
        self,
        model: str,
        inputs: Any = None,
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        signature_name: str = "",
        version: int | None = None,
        label: str | None = None,
        output_filter: Sequence[str] = (),
        timeout_seconds: float | None = None,
        request_id: str = "",
    ) -> Prediction:
        """Asks for predictions.

        Args:
            inputs: {input: array or nested list}, or the array of a signature with one input.
            rows: in place of inputs, one mapping per row.
            output_filter: the outputs that are wanted; none means all.
            timeout_seconds: of this call, repetitions included.
            request_id: what the server's logs call the request; without it, a random id.

        Raises:
            InvalidInput: the inputs do not fit the signature, or there is none of that name. NotFound: no such model or
            version. Overloaded, Unavailable: no answer in time.
        """
        target = Target(model, version, label, signature_name)
        return self._transport.predict(self._call(target, inputs, rows, output_filter, request_id, timeout_seconds))

    def predict_raw(self, target: Target, body: bytes, *, timeout_seconds: float | None = None) -> bytes:
        """Sends a body of TensorFlow Serving's REST API as it is, and returns the answer's. Raises the errors of
        `predict`; InvalidInput over gRPC."""
        return self._transport.predict_raw(target, body, self._deadline(timeout_seconds))

    def submit(
        self,
        model: str,
        inputs: Any = None,
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        signature_name: str = "",
        version: int | None = None,
        label: str | None = None,
        output_filter: Sequence[str] = (),
        deadline_seconds: float | None = None,
    ) -> PendingPrediction:
        """Asks for predictions that are fetched later with `wait`; over REST only.

        Args:
            deadline_seconds: after which the server gives the prediction up; none means its own limit.

        Raises:
            the errors of `predict`; Unavailable also when it is unknown whether it was taken.
        """
        target = Target(model, version, label, signature_name)
        call = self._call(target, inputs, rows, output_filter, "", None)
        return self._transport.submit(call, deadline_seconds)

    def wait(self, pending: PendingPrediction, *, timeout_seconds: float | None = None) -> Prediction:
        """The answer of a submitted prediction, as soon as it is there.

        Raises:
            Unavailable: there was none in time; asking again is fine. NotFound: unknown, cancelled or kept long enough.
            InvalidInput and others: the prediction itself failed.
        """
        deadline = self._deadline(timeout_seconds)
        while True:
            left_seconds = max(0.0, deadline - time.monotonic())
            found = self._transport.poll(pending, min(left_seconds, _LONGEST_POLL_SECONDS), deadline + 5.0)
            if found is not None:
                return found
            if time.monotonic() >= deadline:
                raise Unavailable(f"prediction {pending.prediction_id} has no answer yet; wait again")

    def cancel(self, pending: PendingPrediction) -> bool:
        """Takes it off the queue, or throws its answer away; true when it had none yet. Raises NotFound."""
        return self._transport.cancel(pending, self._deadline(None))

    def signature(
        self, model: str, signature_name: str = "", *, version: int | None = None, label: str | None = None
    ) -> SignatureTypes:
        """The inputs and outputs of a signature with their types."""
        return self._transport.signature(Target(model, version, label, signature_name), self._deadline(None))

    def _deadline(self, timeout_seconds: float | None) -> float:
        return time.monotonic() + (self._timeout_seconds if timeout_seconds is None else timeout_seconds)

    def _call(
        self,
        target: Target,
        inputs: Any,
        rows: Sequence[Mapping[str, Any]] | None,
        output_filter: Sequence[str],
        request_id: str,
        timeout_seconds: float | None,
    ) -> Call:
        if (inputs is None) == (rows is None):
            raise InvalidInput("predict takes either inputs (columns) or rows")
        given = inputs if rows is None else columns_of(rows)
        return Call(
            target, given, tuple(output_filter), request_id or uuid.uuid4().hex, self._deadline(timeout_seconds)
        )


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """[{name: value}] -> {name: [value]}. Raises InvalidInput: there are none, or they differ in their names; says
    which."""
    if not rows:
        raise InvalidInput("there are no rows")
    names = list(rows[0])
    for index, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise InvalidInput(f"row {index} has {', '.join(row) or 'nothing'}; row 0 has {', '.join(names)}")
    return {
        name: [np.asarray(row[name]).tolist() if hasattr(row[name], "dtype") else row[name] for row in rows]
        for name in names
    }


def _transport(url: str, token: str | None, ca_file: str) -> "RestTransport | GrpcTransport":
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return RestTransport(url, token, ca_file)
    if parts.scheme not in ("grpc", "grpcs") or not parts.hostname or parts.port is None:
        forms = "http://host:port or grpc://host:port, with TLS https:// or grpcs://"
        raise InvalidInput(f"the address of serving must read {forms}, got {url!r}")
    try:
        from headrace.client.predict_grpc import GrpcTransport
    except ImportError as error:
        raise InvalidInput(f"gRPC needs the packages grpcio and protobuf: {error}") from error
    return GrpcTransport(
        parts.netloc, token, credentials=grpc_credentials_of(ca_file) if parts.scheme == "grpcs" else None
    )
