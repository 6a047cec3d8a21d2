"""Spans to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names: OpenTelemetry's exporter, in a separate thread."""

import logging
import os
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from common.process.tracing import Span

_FLAGS = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_CLOSE_SECONDS = 2.0
"""How long a service that stops waits for a collector."""


class Exporter:
    """Bounded as OTEL_BSP_* says: spans that do not fit are dropped. Raises ValueError for settings of OTEL_* that
    OpenTelemetry does not take."""

    def __init__(self, service: str) -> None:
        # It warns at each attempt to reach a collector, and tells of the spans that it gives up as an error.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        self._processor = BatchSpanProcessor(_Converting(service, OTLPSpanExporter()))

    def take(self, span: Span) -> None:
        self._processor.on_end(_Ended(span))

    def close(self) -> None:
        ending = threading.Thread(target=self._processor.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)


class _Ended(ReadableSpan):
    """What the processor keeps until it sends: it asks for nothing but whether the span is sampled."""

    context = SimpleNamespace(trace_flags=_FLAGS)

    def __init__(self, span: Span) -> None:
        self.span = span


class _Converting(SpanExporter):
    def __init__(self, service: str, inner: SpanExporter) -> None:
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": f"headrace-{service}"}
        self._resource = Resource.create({**named, "process.pid": os.getpid()})
        self._inner = inner

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._inner.export([self._converted(span.span) for span in spans if isinstance(span, _Ended)])

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def _converted(self, span: Span) -> ReadableSpan:
        status = trace.Status(trace.StatusCode.ERROR, span.error) if span.error else trace.Status()
        attributes: dict[str, Any] = span.attributes
        return ReadableSpan(
            span.name,
            _context(span.trace_id, span.span_id),
            parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
            resource=self._resource,
            attributes=attributes,
            links=[trace.Link(_context(link[:16].hex(), link[16:].hex())) for link in span.links],
            kind=trace.SpanKind[span.kind.upper()],
            status=status,
            start_time=span.began,
            end_time=span.ended,
            instrumentation_scope=InstrumentationScope("headrace"),
        )


def _context(trace_id: str, span_id: str) -> trace.SpanContext:
    return trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_FLAGS)
