"""Traces of requests, batches and rounds, with W3C trace context between processes.

Off unless a share of requests is asked for (`TRACE_SAMPLE`). Of what is traced, each process keeps the newest spans in
memory, where /v1/traces shows them (traced_http.py), and sends them on where OTEL_EXPORTER_OTLP_ENDPOINT names a
collector. Both are bounded and neither makes anybody wait: spans that do not fit are dropped.
"""

import os
import random
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from common.errors import InvalidInput

if TYPE_CHECKING:
    from common.process.trace_export import Exporter

TRACEPARENT = "traceparent"
"""The header of HTTP, the key of gRPC's metadata and of a record's headers (W3C Trace Context, level 1)."""
REQUEST_ID = "headrace.request_id"
"""The attribute under which a span has what its client calls the request."""
LINK_BYTES = 24
"""A trace id (16) and a span id (8), as records carry them."""
MOST_KEPT = 2_000
_NANOSECONDS = 1_000_000_000
_DRAWS = random.SystemRandom()  # Python's own generator belongs to the model that is built
_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_IS_SAMPLED = 1
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
Attributes = Mapping[str, object]
"""Texts, numbers and truth values."""


class Span:
    """Something that takes time. While a request is under way a span is a few numbers; what a collector wants is made
    of them later, by the thread that sends."""

    __slots__ = (
        "_tracing", "attributes", "began", "ended", "error", "kind", "links", "name", "parent_id", "span_id",
        "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        tracing: "Tracing",
        name: str,
        above: "re.Match[str] | None",
        kind: str,
        attributes: Attributes | None,
        links: Sequence[bytes],
        at: float | None,
    ) -> None:
        self._tracing, self.name, self.kind = tracing, name, kind
        self.trace_id, self.parent_id = (above[1], above[2]) if above else (os.urandom(16).hex(), "")
        self.span_id = os.urandom(8).hex()
        self.attributes = dict(attributes or {})
        self.links = tuple(links)
        self.began = time.time_ns() if at is None else int(at * _NANOSECONDS)
        self.ended = 0
        self.error = ""

    @property
    def traceparent(self) -> str:
        """What a request that is made on its behalf carries."""
        return f"00-{self.trace_id}-{self.span_id}-01"

    @property
    def link(self) -> bytes:
        """LINK_BYTES."""
        return bytes.fromhex(self.trace_id + self.span_id)

    def set(self, attributes: Attributes) -> None:
        self.attributes.update(attributes)

    def end(self, error: str = "", *, at: float | None = None) -> None:
        """Once. error: why it failed; at: epoch seconds, None for now."""
        self.error = error
        self.ended = time.time_ns() if at is None else int(at * _NANOSECONDS)
        self._tracing.take(self)


class Tracing:
    """What a service traces with. Without a share to sample it is off, and costs a comparison."""

    def __init__(self, service: str = "", sample: float = 0.0, exporter: "Exporter | None" = None) -> None:
        self.is_on = sample > 0
        self._service, self._sample, self._exporter = service, sample, exporter
        self._spans: deque[Span] = deque(maxlen=MOST_KEPT)

    def takes(self, parent: str) -> bool:
        """Whether a request with this traceparent, "" for none, is to be traced; then `start` it with `always`."""
        if not self.is_on:
            return False
        if parent and (above := _FORM.fullmatch(parent)) is not None:
            return bool(int(above[3], 16) & _IS_SAMPLED)
        return _DRAWS.random() < self._sample

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
        """Begins a span where it is traced: as its parent is, or, without a parent, for a share of all.

        Args:
            parent: a traceparent; what is none counts as no parent, as W3C asks.
            kind: internal, server, client, producer or consumer.
            links: spans of other traces that it goes back to.
            at: epoch seconds at which it began; None for now.
            always: without asking `takes`.
        """
        if not self.is_on or not (always or self.takes(parent)):
            return None
        above = _FORM.fullmatch(parent) if parent else None
        return Span(self, name, above, kind, attributes, links, at)

    def note(
        self, name: str, parent: str, began_at: float, ended_at: float, attributes: Attributes | None = None
    ) -> None:
        """A span that has ended already, below a parent; nothing where the parent is not traced."""
        if (span := self.start(name, parent, attributes=attributes, at=began_at)) is not None:
            span.end(at=ended_at)

    def take(self, span: Span) -> None:
        """A span that has ended."""
        self._spans.append(span)
        if self._exporter is not None:
            self._exporter.take(span)

    def kept(self, wanted: str) -> list[dict[str, Any]]:
        """The spans of a trace, or of every trace in which a request is called so; oldest first."""
        spans = list(self._spans)
        traces = {span.trace_id for span in spans if span.attributes.get(REQUEST_ID) == wanted} | {wanted}
        return sorted((self._shown(span) for span in spans if span.trace_id in traces), key=itemgetter("began_at"))

    def _shown(self, span: Span) -> dict[str, Any]:
        return {
            "trace_id": span.trace_id,
            "span_id": span.span_id,
            "parent_id": span.parent_id,
            "service": self._service,
            "name": span.name,
            "began_at": span.began / _NANOSECONDS,
            "seconds": (span.ended - span.began) / _NANOSECONDS,
            "error": span.error,
            "attributes": span.attributes,
            "links": [link[:16].hex() for link in span.links],
        }

    def close(self) -> None:
        """Sends what waits to be sent."""
        if self._exporter is not None:
            self._exporter.close()


OFF = Tracing()


def open_tracing(service: str, sample: float) -> Tracing:
    """Args:
        sample: the share of requests without a traceparent that are traced, 0 to 1; 0: no request is traced, even with
            a traceparent.

    Raises:
        InvalidInput: OpenTelemetry is not installed, or does not take what OTEL_* says.
    """
    if not sample or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return OFF
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return Tracing(service, sample)
    try:
        from common.process.trace_export import Exporter  # a service that sends nothing starts without OpenTelemetry

        return Tracing(service, sample, Exporter(service))
    except ImportError as error:
        raise InvalidInput(f"OTEL_EXPORTER_OTLP_ENDPOINT needs the package {error.name}") from error
    except ValueError as error:
        raise InvalidInput(f"OpenTelemetry refuses its settings (OTEL_*): {error}") from error


def traceparent_of(link: bytes) -> str:
    """Of a span in the form of a record's headers."""
    return f"00-{link[:16].hex()}-{link[16:].hex()}-01"


def link_of(traceparent: str) -> bytes | None:
    """The inverse; None for text that is no traceparent, and for a span that is not sampled."""
    found = _FORM.fullmatch(traceparent)
    if found is None or not int(found[3], 16) & _IS_SAMPLED:
        return None
    return bytes.fromhex(found[1] + found[2])
