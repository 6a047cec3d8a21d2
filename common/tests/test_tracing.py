"""Traces: off by default, as W3C's header says, bounded, and nobody waits for a collector."""

import http.server
import queue
import threading
from collections.abc import Iterator

import pytest

from common.errors import InvalidInput, Unavailable
from common.process import tracing
from common.process.health import Health
from common.process.tracing import OFF, REQUEST_ID, Tracing, link_of, open_tracing, traceparent_of
from common.process.web import create_app
from testing.asgi import asked
from testing.rows import each_row

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


@pytest.fixture
def asked_only() -> Iterator[Tracing]:
    """Traces what a traceparent asks for and next to nothing else."""
    opened = open_tracing("test", 1e-12)
    yield opened
    opened.close()


def test_nothing_is_traced_unless_a_share_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_tracing("test", 0.0) is OFF
    assert OFF.start("work", SAMPLED, always=True) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert open_tracing("test", 1.0) is OFF


@each_row("parent", [NOT_SAMPLED, "", "00-xyz", f"00-{TRACE}-{SPAN}", f"{SAMPLED}-more"])
def test_a_request_without_a_sampled_traceparent_is_not_traced(asked_only: Tracing, parent: str) -> None:
    assert asked_only.start("work", parent) is None


def test_a_span_goes_on_with_its_parents_trace_and_names_itself_to_the_next(asked_only: Tracing) -> None:
    span = asked_only.start("work", SAMPLED, attributes={REQUEST_ID: "order-17"}, links=[b"t" * 24])
    assert span is not None
    assert link_of(traceparent_of(span.link)) == span.link
    asked_only.note("a part", span.traceparent, 10.0, 12.5, {"rows": 3})
    span.end("it broke")
    part, work = asked_only.kept("order-17")
    assert (part["seconds"], part["attributes"], part["parent_id"]) == (2.5, {"rows": 3}, work["span_id"])
    assert (work["trace_id"], work["parent_id"], work["error"]) == (TRACE, SPAN, "it broke")
    assert work["links"] == [(b"t" * 16).hex()]
    assert asked_only.kept(TRACE) == [part, work]


def test_the_newest_spans_are_kept_and_no_more(asked_only: Tracing, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(tracing.MOST_KEPT + 5):
        asked_only.note(str(number), SAMPLED, number, number + 1)
    kept = asked_only.kept(TRACE)
    assert (len(kept), kept[0]["name"], kept[-1]["name"]) == (tracing.MOST_KEPT, "5", str(tracing.MOST_KEPT + 4))


def test_a_door_traces_its_requests_shows_them_and_says_when_it_does_not(asked_only: Tracing) -> None:
    app = create_app("test", Health(), tracing=asked_only)

    @app.get("/v1/things/{name}")
    async def things(name: str) -> str:
        if name == "away":
            raise Unavailable("it is away")
        return name

    sampled = {"traceparent": SAMPLED}
    plain = asked(app, "/v1/things/one")
    named = asked(app, "/v1/things/one", headers=sampled)
    asked(app, "/v1/things/away", headers=sampled | {"x-request-id": "order-17"})
    shown, none = asked(app, "/v1/traces/order-17"), asked(app, "/v1/traces/none")
    off = asked(create_app("test", Health()), "/v1/traces/none")
    assert ("x-request-id" in plain.headers, named.headers["x-request-id"]) == (False, TRACE)
    one, away = shown.json()["spans"]
    assert (one["name"], one["error"]) == ("GET /v1/things/one", "")
    assert (away["attributes"]["http.response.status_code"], away["error"]) == (503, "status 503")
    assert (none.status_code, off.status_code) == (404, 409)
    assert "TRACE_SAMPLE" in off.json()["error"]["message"]


def test_spans_are_sent_to_the_collector_that_opentelemetrys_variables_name(monkeypatch: pytest.MonkeyPatch) -> None:
    came: queue.Queue[bytes] = queue.Queue()

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *said: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    opened = open_tracing("ingest", 1.0)
    span = opened.start("work", SAMPLED)
    assert span is not None
    span.end()
    opened.close()
    sent = came.get(timeout=60)
    assert bytes.fromhex(TRACE) in sent
    assert b"headrace-ingest" in sent
    server.shutdown()
    server.server_close()


def test_a_wrong_setting_of_opentelemetry_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-5")
    with pytest.raises(InvalidInput, match="OTEL_"):
        open_tracing("test", 1.0)
