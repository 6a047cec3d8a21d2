"""Metrics where TensorFlow Serving's scrapers look for them: --monitoring_config_file names a path on the REST port.

There they are with this server's names and, of what it measures alike, with TensorFlow Serving's.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from prometheus_client.core import Metric
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from common.errors import InvalidInput
from protos import tfserving_config_pb2 as config_pb2
from services.serving.front.request_counts import ApiLatency, escaped
from services.serving.options.model_server_config import read_text
from services.serving.wire.codes import Code

DEFAULT_PATH = "/monitoring/prometheus/metrics"
_REQUEST_COUNT = ":tensorflow:serving:request_count"
_OUR_REQUESTS = "headrace_serving_requests"


def read_monitoring_path(path: Path) -> str:
    """Where a MonitoringConfig file wants metrics; "" where it wants none. Raises InvalidInput: it cannot be read, or
    its path is no path."""
    given = read_text(path, config_pb2.MonitoringConfig(), "a MonitoringConfig").prometheus_config
    if not given.enable:
        return ""
    if given.path and (not given.path.startswith("/") or "?" in given.path):
        raise InvalidInput(f"{path}: prometheus_config has path {given.path!r}, expected a path that begins with /")
    return given.path or DEFAULT_PATH


def add_metrics_route(app: FastAPI, path: str, latency: ApiLatency | None) -> None:
    """Serves the metrics at the configured path, before any other route; with the latency by API where it is kept."""
    if not path:
        return

    async def metrics(request: Request) -> Response:
        if request.url.query:
            requested = f"{request.url.path}?{request.url.query}"
            return PlainTextResponse(f"Unexpected path: {requested}. Should be {path}", status_code=400)
        text = generate_latest(REGISTRY).decode() + "".join(tensorflow_serving_lines(REGISTRY.collect()))
        text += "".join(latency.lines()) if latency is not None else ""
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    app.router.routes.insert(0, Route(path, metrics, include_in_schema=False))


def tensorflow_serving_lines(metrics: Iterable[Metric]) -> Iterator[str]:
    """TensorFlow Serving's counters, in its names and text."""
    counts: Counter[tuple[str, str]] = Counter()
    for metric in metrics:
        if metric.name == _OUR_REQUESTS:
            for sample in metric.samples:
                status = Code.of(int(sample.labels["code"])).name
                counts[sample.labels["model"], status] += int(sample.value)
    yield f"# TYPE {_REQUEST_COUNT} counter\n"
    for (model, status), count in sorted(counts.items()):
        yield f'{_REQUEST_COUNT}{{model_name="{escaped(model)}",status="{status}"}} {count}\n'
