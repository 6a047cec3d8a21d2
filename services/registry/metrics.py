"""What operators see at /metrics: read from the catalog at each scrape, so that a restart loses nothing.

Of a model only its version in production is told, with so many metrics and slices at most: what a scrape holds grows
with the models that are in production and not with their versions.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from common.registry.catalog import CANARY, PREDECESSOR, PRODUCTION, THINNED_TO, Model, Version
from services.registry.catalog import Catalog

_MOST_MODELS, _MOST_METRICS, _MOST_SLICES = 200, 20, 10
_ALL = "all"


class CatalogMetrics(Collector):
    """Rounds by state, versions by status, watchers; quality and freshness of what is in production."""

    def __init__(
        self, catalog: Catalog, clock: Callable[[], float] = time.time, *, data_dir: Path | None = None
    ) -> None:
        """data_dir: whose disk is looked at."""
        self._catalog, self._clock, self._data_dir = catalog, clock, data_dir

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        rounds = GaugeMetricFamily("headrace_registry_rounds", "Rounds by state", labels=["state"])
        versions = GaugeMetricFamily("headrace_registry_versions", "Versions by status", labels=["status"])
        for (kind, label), count in self._catalog.counts().items():
            (rounds if kind == "rounds" else versions).add_metric([label], count)
        watchers = GaugeMetricFamily("headrace_registry_watchers", "Watchers connected")
        watchers.add_metric([], self._catalog.watcher_count)
        thinned = CounterMetricFamily(
            "headrace_model_thinned_versions", "Versions that retention has thinned, by rule", labels=["model", "rule"]
        )
        for (model, rule), count in [*self._catalog.thinned_counts().items()][: _MOST_MODELS * len(THINNED_TO)]:
            thinned.add_metric([model, rule], count)
        yield from (rounds, versions, watchers, thinned)
        if self._data_dir is not None:
            disk = shutil.disk_usage(self._data_dir)
            used = GaugeMetricFamily(
                "headrace_registry_disk_used_ratio", "Of the disk with the registry's files, 0 to 1"
            )
            used.add_metric([], disk.used / disk.total)
            yield used
        yield from self._of_production()
        yield from self._at_a_glance()

    def _of_production(self) -> Iterator[GaugeMetricFamily]:
        quality = GaugeMetricFamily(
            "headrace_model_metric",
            "A metric of the version in production on its own held-out slice, or on a part of it",
            labels=["model", "version", "slice", "metric"],
        )
        freshness = GaugeMetricFamily(
            "headrace_freshness_seconds",
            "Age of the newest event that the version in production has learned from, since ingest took it",
            labels=["model"],
        )
        by_event_time = GaugeMetricFamily(
            "headrace_event_time_freshness_seconds",
            "Age of the newest event that the version in production has learned from, by its event time",
            labels=["model"],
        )
        version_number = GaugeMetricFamily(
            "headrace_model_production_version", "Number of the version in production", labels=["model"]
        )
        for model in self._in_production():
            version = self._catalog.get_version(model.name, model.aliases[PRODUCTION])
            version_number.add_metric([model.name], version.version)
            if version.last_event_at:
                freshness.add_metric([model.name], max(0.0, self._clock() - version.last_event_at))
            if version.newest_event_time is not None:
                by_event_time.add_metric([model.name], max(0.0, self._clock() - version.newest_event_time))
            for part, name, value in _metrics_of(version):
                quality.add_metric([model.name, str(version.version), part, name], value)
        yield from (quality, freshness, by_event_time, version_number)
        yield from self._live()

    def _live(self) -> Iterator[GaugeMetricFamily]:
        """Of production and of what the judge compares it with, over the window."""
        quality = GaugeMetricFamily(
            "headrace_model_live_metric",
            "A metric of the newest labelled predictions of the version behind an alias",
            labels=["model", "alias", "metric"],
        )
        examples = GaugeMetricFamily(
            "headrace_model_live_examples",
            "Labelled predictions of the version behind an alias",
            labels=["model", "alias"],
        )
        for model in self._in_production():
            for alias in (PRODUCTION, PREDECESSOR, CANARY):
                for track in self._catalog.live_evidence(model.name, model.aliases.get(alias, 0)).get("tracks", ()):
                    if track["alias"] == alias:
                        examples.add_metric([model.name, alias], track["total"]["examples"])
                        for name, value in track["window"]["metrics"].items():
                            quality.add_metric([model.name, alias, name], value)
        yield from (quality, examples)
        yield from self._canaries()

    def _canaries(self) -> Iterator[GaugeMetricFamily]:
        """Of those that come to production in stages."""
        stage = GaugeMetricFamily("headrace_model_canary_stage", "The stage of a canary, from 1", labels=["model"])
        share = GaugeMetricFamily(
            "headrace_model_canary_share_percent",
            "A canary's share of the requests that name neither version nor label",
            labels=["model"],
        )
        samples = GaugeMetricFamily(
            "headrace_model_canary_samples",
            "Labelled predictions on which a canary was compared with production",
            labels=["model"],
        )
        evidence = GaugeMetricFamily(
            "headrace_model_canary_e_value",
            "Evidence that a canary is worse than production, or that it is no worse at its stage",
            labels=["model", "that_it_is"],
        )
        for model in self._in_production():
            if not model.canary:
                continue
            stage.add_metric([model.name], model.canary["stage"] + 1)
            share.add_metric([model.name], model.canary["share"])
            told = self._catalog.live_evidence(model.name, model.canary["version"]).get("canary")
            if told:
                samples.add_metric([model.name], told["samples"])
                evidence.add_metric([model.name, "worse"], told["e_value"])
                evidence.add_metric([model.name, "no_worse"], told["no_worse_e_value"])
        yield from (stage, share, samples, evidence)

    def _at_a_glance(self) -> Iterator[GaugeMetricFamily]:
        """What the overview says of each model that is not archived."""
        waiting = GaugeMetricFamily(
            "headrace_model_waiting_examples", "Examples that no round of the model has taken yet", labels=["model"]
        )
        converged = GaugeMetricFamily(
            "headrace_model_converged",
            "1 where every replica answers with the version in production, else 0",
            labels=["model"],
        )
        made = GaugeMetricFamily(
            "headrace_model_versions_last_hour", "Versions registered in the last hour", labels=["model"]
        )
        state = GaugeMetricFamily(
            "headrace_model_state", "1 for what the model is: ok, paused, or what is wrong", labels=["model", "state"]
        )
        shown = [model for model in self._catalog.overview() if not model["archived"]]
        for model in shown[:_MOST_MODELS]:
            name = model["name"]
            if model["waiting_examples"] is not None:
                waiting.add_metric([name], model["waiting_examples"])
            if model["production"]:
                converged.add_metric([name], float(model["serving"]["converged_at"] is not None))
            made.add_metric([name], model["versions_last_hour"])
            state.add_metric([name, str(model["why"]["state"])], 1.0)
        yield from (waiting, converged, made, state)

    def _in_production(self) -> list[Model]:
        models = [one for one in self._catalog.list_models() if one.aliases.get(PRODUCTION) and not one.archived]
        return models[:_MOST_MODELS]


def _metrics_of(version: Version) -> Iterator[tuple[str, str, float]]:
    """(slice, metric, value): of all held-out examples, then of the slices that the definition names."""
    parts = [(_ALL, version.metrics.get("candidate", {}))]
    for told in version.evaluation.get("slices", ())[:_MOST_SLICES]:
        where = told.get("where")
        if where:
            name = ",".join(f"{key}={value}" for key, value in where.items())
            parts.append((name, told["metrics"].get("candidate", {})))
    for part, metrics in parts:
        for name, value in list(metrics.items())[:_MOST_METRICS]:
            if isinstance(value, int | float) and math.isfinite(value):
                yield part, name, float(value)
