"""/metrics of the registry: what is in production, bounded whatever the number of versions and slices."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from docs.generate import metrics
from services.registry.catalog import Catalog
from services.registry.metrics import CatalogMetrics
from services.registry.pages import model, overview, serving, streams
from services.registry.pages.reading import Place, Reading
from services.registry.pages.service_links import ServiceLinks
from services.registry.tests.building import Clock, definition, publish

METRIC_OF_REPORTED = {
    "accepted_events_per_second": "headrace_ingest_events_accepted_total",
    "refused_events_per_second": "headrace_ingest_events_refused_total",
    "lag_examples": "headrace_trainer_lag_examples",
    "requests_per_second": "headrace_serving_requests_total",
    "failed_requests_per_second": "headrace_serving_requests_total",
    "request_p50_seconds": "headrace_serving_request_seconds",
    "request_p99_seconds": "headrace_serving_request_seconds",
    "open_requests": "headrace_serving_open_requests",
    "queue_requests": "headrace_serving_queue_requests",
}
METRIC_OF_RUNNER = {
    "runner_private_bytes": "headrace_serving_runner_private_bytes",
    "runner_batches_per_second": "headrace_serving_runner_batches_total",
    "runner_examples_per_second": "headrace_serving_runner_examples_total",
}
METRIC_OF_FLOW = {
    "waiting": "headrace_model_waiting_examples",
    "training": "headrace_registry_rounds",
    "versions": "headrace_model_versions_last_hour",
    "stalest": "headrace_freshness_seconds",
}
"""Numbers on the overview that no instance reports; `stage` is a word and `sparks` are what is reported, drawn."""
REPORTED_IN_FLOW = {"events", "refused", "predictions", "errors", "p50", "p99", "open"}


@dataclass(frozen=True)
class NotingReading(Reading):
    """Notes which of the numbers that instances report are asked for."""

    asked: set[str] = field(default_factory=set)

    def now(self, name: str, **where: Any) -> float | None:
        self.asked.add(name)
        return super().now(name, **where)

    def over_time(self, name: str, **where: Any) -> list[float | None]:
        self.asked.add(name)
        return super().over_time(name, **where)


def test_every_number_on_the_pages_is_a_metric_too(catalog: Catalog) -> None:
    publish(catalog)
    reading = NotingReading(catalog, ServiceLinks())
    place = Place("/", {"model": "m", "stream": "s"}, {}, "", "", "", "")
    flow = overview.page(reading, place)["flow"]
    for page in (model.page, serving.page, streams.listed, streams.page):
        page(reading, place)
    assert model.page(reading, place)["freshness"] == 0.5
    known = metrics.document()
    assert reading.asked == METRIC_OF_REPORTED.keys()
    assert flow.keys() == METRIC_OF_FLOW.keys() | REPORTED_IN_FLOW | {"stage", "sparks"}
    assert set(serving.OF_VERSION) - METRIC_OF_REPORTED.keys() == METRIC_OF_RUNNER.keys()
    for metric in (*METRIC_OF_REPORTED.values(), *METRIC_OF_FLOW.values(), *METRIC_OF_RUNNER.values()):
        assert re.search(rf"`{metric}` \(", known), metric


def test_quality_and_freshness_of_production_are_metrics_and_ten_models_a_small_scrape(
    catalog: Catalog, clock: Clock, tmp_path: Path
) -> None:
    slices = [
        {"by": ["x"], "where": {"x": f"{place}"}, "count": 9, "metrics": {"candidate": {"auc": 0.5, "nothing": None}}}
        for place in range(30)
    ]
    for number in range(10):
        name = f"model-{number}"
        catalog.register_model(name, stream="s", files=definition(name), by="test")
        for _ in range(2):
            told = {"newest_event_time": 999_990.25} if number == 3 else {}
            publish(catalog, model=name, auc=0.75, evaluation={"slices": slices}, environment=told)
    clock.pass_seconds(30.5)
    registry = CollectorRegistry()
    registry.register(CatalogMetrics(catalog, clock, data_dir=tmp_path))
    scrape = generate_latest(registry).decode()
    assert 'headrace_model_metric{metric="auc",model="model-3",slice="all",version="2"} 0.75' in scrape
    assert 'headrace_model_metric{metric="auc",model="model-3",slice="x=9",version="2"} 0.5' in scrape
    assert 'slice="x=10"' not in scrape, "ten slices of a model at most"
    assert 'headrace_freshness_seconds{model="model-3"} 31.0' in scrape
    assert 'headrace_event_time_freshness_seconds{model="model-3"} 40.25' in scrape
    assert 'headrace_event_time_freshness_seconds{model="model-4"}' not in scrape, "its stream has no event time"
    assert 'headrace_model_production_version{model="model-3"} 2.0' in scrape
    assert 'headrace_model_versions_last_hour{model="model-3"} 2.0' in scrape
    assert 'headrace_model_converged{model="model-3"} 0.0' in scrape, "no replica has reported"
    assert re.search(r'headrace_model_state{model="model-3",state="\w+"} 1.0', scrape)
    assert 0 < float(re.findall(r"^headrace_registry_disk_used_ratio (\S+)", scrape, re.MULTILINE)[0]) <= 1
    assert 'version="1"' not in scrape
    assert len(scrape) < 50_000
