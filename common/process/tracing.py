"""Traces of requests, batches and rounds: OpenTelemetry's spans, with W3C trace context between processes.

Off unless a share of requests is asked for (`TRACE_SAMPLE`). Of what is traced, each process keeps the newest spans in
memory, where /v1/traces shows them (traced_http.py), and sends them on where OTEL_EXPORTER_OTLP_ENDPOINT names a
collector. Both are bounded and neither makes anybody wait: spans that do not fit are dropped.
"""

import logging
import os
import random
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from common.errors import InvalidInput

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

TRACEPARENT = "traceparent"
"""The header of HTTP, the key of gRPC's metadata and of a record's headers (W3C Trace Context, level 1)."""
REQUEST_ID = "headrace.request_id"
"""The attribute under which a span has what its client calls the request."""
LINK_BYTES = 24
"""A trace id (16) and a span id (8), as records carry them."""
MOST_KEPT = 2_000
_NANOSECONDS = 1_000_000_000
_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_IS_SAMPLED = 1
_CLOSE_SECONDS = 2.0
"""How long a service that stops waits for a collector."""
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
Attributes = Mapping[str, object]
"""Texts, numbers and truth values."""


class Span:
    """Something that takes time, under way. Thread-safe as OpenTelemetry's is."""

    __slots__ = ("_span",)

    def __init__(self, span: Any) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        """What a request that is made on its behalf carries."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def link(self) -> bytes:
        """LINK_BYTES."""
        context = self._span.get_span_context()
        return bytes(context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big"))

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(dict(attributes))

    def end(self, error: str = "", *, at: float | None = None) -> None:
        """Once. error: why it failed; at: epoch seconds, None for now."""
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end(None if at is None else int(at * _NANOSECONDS))


class Tracing:
    """What a service traces with. Without `open_tracing` it is off, and costs a comparison."""

    is_on = False

    def takes(self, parent: str) -> bool:
        """Whether a request with this traceparent, "" for none, is to be traced; then `start` it with `always`."""
        return False

    def start(
        self,
        name: str,
        parent: str = "",
        *,
        kind: str = "internal",
        attributes: Attributes | None = None,
        links: Sequence[bytes] = (),
        at: float | None = None,
        always: bool = False,
    ) -> Span | None:
        """Begins a span where it is traced: as its parent is, or, without one, for a share of all.

        Args:
            parent: a traceparent; what is none counts as no parent, as W3C asks.
            kind: internal, server, client, producer or consumer.
            links: spans of other traces that it goes back to.
            at: epoch seconds at which it began; None for now.
            always: without asking `takes`.
        """
        return None

    def note(
        self, name: str, parent: str, began_at: float, ended_at: float, attributes: Attributes | None = None
    ) -> None:
        """A span that has ended already, below a parent; nothing where the parent is not traced."""
        if (span := self.start(name, parent, attributes=attributes, at=began_at)) is not None:
            span.end(at=ended_at)

    def kept(self, wanted: str) -> list[dict[str, Any]]:
        """The spans of a trace, or of every trace in which a request is called so; oldest first."""
        return []

    def close(self) -> None:
        """Sends what waits to be sent."""


OFF = Tracing()


class _OpenTelemetry(Tracing):
    is_on = True

    def takes(self, parent: str) -> bool:
        above = _FORM.fullmatch(parent) if parent else None
        if above is not None:
            return bool(int(above[3], 16) & _IS_SAMPLED)
        return random.random() < self._sample  # noqa: S311  no secret

    def __init__(self, service: str, sample: float) -> None:
        # Imported where it is used: a service that does not trace starts without it.
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        # It warns at each attempt to reach a collector, and tells of the spans that it gives up as an error.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        self._api, self._sample = trace, sample
        self._spans: deque[ReadableSpan] = deque(maxlen=MOST_KEPT)
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": f"headrace-{service}"}
        self._service = service
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create({**named, "process.pid": os.getpid()}), shutdown_on_exit=False
        )
        provider.add_span_processor(_keeping(self._spans))
        if any(os.environ.get(name) for name in _ENDPOINTS):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._provider, self._tracer = provider, provider.get_tracer("headrace")

    def start(
        self,
        name: str,
        parent: str = "",
        *,
        kind: str = "internal",
        attributes: Attributes | None = None,
        links: Sequence[bytes] = (),
        at: float | None = None,
        always: bool = False,
    ) -> Span | None:
        if not always and not self.takes(parent):
            return None
        above = _FORM.fullmatch(parent) if parent else None
        told: dict[str, Any] = dict(attributes or {})
        return Span(
            self._tracer.start_span(
                name,
                context=self._context_of(above) if above else self._api.set_span_in_context(self._api.INVALID_SPAN),
                kind=self._api.SpanKind[kind.upper()],
                attributes=told,
                links=[self._api.Link(self._span_context(link[:16].hex(), link[16:].hex())) for link in links],
                start_time=None if at is None else int(at * _NANOSECONDS),
            )
        )

    def _context_of(self, above: "re.Match[str]") -> Any:
        return self._api.set_span_in_context(self._api.NonRecordingSpan(self._span_context(above[1], above[2])))

    def _span_context(self, trace_id: str, span_id: str) -> Any:
        flags = self._api.TraceFlags(_IS_SAMPLED)
        return self._api.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags)

    def kept(self, wanted: str) -> list[dict[str, Any]]:
        spans = list(self._spans)
        traces = {span.context.trace_id for span in spans if (span.attributes or {}).get(REQUEST_ID) == wanted}
        if re.fullmatch("[0-9a-f]{32}", wanted):
            traces.add(int(wanted, 16))
        found = [self._shown(span) for span in spans if span.context.trace_id in traces]
        return sorted(found, key=lambda one: float(one["began_at"]))

    def _shown(self, span: "ReadableSpan") -> dict[str, Any]:
        began, ended = span.start_time or 0, span.end_time or 0
        return {
            "trace_id": f"{span.context.trace_id:032x}",
            "span_id": f"{span.context.span_id:016x}",
            "parent_id": f"{span.parent.span_id:016x}" if span.parent else "",
            "service": self._service,
            "name": span.name,
            "began_at": began / _NANOSECONDS,
            "seconds": (ended - began) / _NANOSECONDS,
            "error": span.status.description or "",
            "attributes": dict(span.attributes or {}),
            "links": [f"{link.context.trace_id:032x}" for link in span.links],
        }

    def close(self) -> None:
        ending = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)


def _keeping(spans: "deque[ReadableSpan]") -> Any:
    from opentelemetry.sdk.trace import SpanProcessor

    class Keeping(SpanProcessor):
        def on_end(self, span: "ReadableSpan") -> None:
            spans.append(span)

    return Keeping()


def open_tracing(service: str, sample: float) -> Tracing:
    """Args:
        sample: the share of requests without a traceparent that are traced, 0 to 1; 0: nothing is traced, whatever a
            traceparent says.

    Raises:
        InvalidInput: OpenTelemetry is not installed, or does not take what OTEL_* says.
    """
    if not sample or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return OFF
    try:
        return _OpenTelemetry(service, sample)
    except ImportError as error:
        raise InvalidInput(f"TRACE_SAMPLE needs the package {error.name}") from error
    except ValueError as error:
        raise InvalidInput(f"OpenTelemetry refuses its settings (OTEL_*): {error}") from error


def traceparent_of(link: bytes) -> str:
    """Of a span in the form of a record's headers."""
    return f"00-{link[:16].hex()}-{link[16:].hex()}-01"


def link_of(traceparent: str) -> bytes | None:
    """The inverse; None for what is no traceparent, and for one that is not sampled."""
    found = _FORM.fullmatch(traceparent)
    if found is None or not int(found[3], 16) & _IS_SAMPLED:
        return None
    return bytes.fromhex(found[1] + found[2])
