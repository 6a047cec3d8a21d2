"""What operators see at /metrics: read from the catalog at each scrape, so that a restart loses nothing."""

from collections.abc import Iterator

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.registry.catalog import Catalog


class CatalogMetrics(Collector):
    """Rounds by state, versions by status, watchers."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def collect(self) -> Iterator[GaugeMetricFamily]:
        rounds = GaugeMetricFamily("headrace_registry_rounds", "Rounds by state", labels=["state"])
        versions = GaugeMetricFamily("headrace_registry_versions", "Versions by status", labels=["status"])
        for (kind, label), count in self._catalog.counts().items():
            (rounds if kind == "rounds" else versions).add_metric([label], count)
        watchers = GaugeMetricFamily("headrace_registry_watchers", "Watchers connected")
        watchers.add_metric([], self._catalog.watcher_count)
        yield from (rounds, versions, watchers)
