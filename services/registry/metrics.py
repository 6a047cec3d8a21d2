"""Operators' metrics at /metrics: read from the catalog at each scrape, so that a restart loses nothing.

Of a model only its version in production is shown, with bounded numbers of metrics and slices: a scrape grows
with the models that are in production and not with their versions.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from common.registry.catalog import CANARY, PREDECESSOR, PRODUCTION, THINNED_TO, JsonMap, Model, Version
from services.registry.catalog import Catalog

_MOST_MODELS, _MOST_METRICS, _MOST_SLICES, _MOST_LIVE_SLICES = 200, 20, 10, 20
_ALL = "all"
Family = GaugeMetricFamily | CounterMetricFamily
Sample = tuple[str, Sequence[str], float]
"""The family's name without `headrace_`, its labels' values, the value."""
_GAUGES: Mapping[str, tuple[str, Sequence[str]]] = {
    "registry_rounds": ("Rounds by state", ["state"]),
    "registry_versions": ("Versions by status", ["status"]),
    "registry_watchers": ("Watchers connected", []),
    "registry_disk_used_ratio": ("Of the disk with the registry's files, 0 to 1", []),
    "registry_packed_files": ("Files of which the registry keeps a patch in place of all bytes", []),
    "registry_packed_saved_bytes": ("Bytes that these patches save on the disk", []),
    "model_metric": (
        "A metric of the version in production on its own held-out slice, or on a part of it",
        ["model", "version", "slice", "metric"],
    ),
    "freshness_seconds": (
        "Age of the newest event that the version in production has learned from, since ingest took it",
        ["model"],
    ),
    "event_time_freshness_seconds": (
        "Age of the newest event that the version in production has learned from, by its event time",
        ["model"],
    ),
    "model_production_version": ("Number of the version in production", ["model"]),
    "model_live_metric": (
        "A metric of the newest labelled predictions of the version behind an alias, or of a part of them",
        ["model", "alias", "version", "slice", "metric"],
    ),
    "model_live_examples": (
        "Labelled predictions of the version behind an alias, or of a part of them",
        ["model", "alias", "version", "slice"],
    ),
    "model_canary_stage": ("The stage of a canary, from 1", ["model"]),
    "model_canary_share_percent": ("A canary's share of the requests that name neither version nor label", ["model"]),
    "model_canary_samples": ("Labelled predictions on which a canary was compared with production", ["model"]),
    "model_canary_e_value": (
        "Evidence that a canary is worse than production, or that it is no worse at its stage",
        ["model", "that_it_is"],
    ),
    "model_waiting_examples": ("Examples that no round of the model has taken yet", ["model"]),
    "model_converged": ("1 where every replica answers with the version in production, else 0", ["model"]),
    "model_versions_last_hour": ("Versions registered in the last hour", ["model"]),
    "model_state": ("1 for what the model is: ok, paused, or what is wrong", ["model", "state"]),
}
"""By name, without `headrace_`: the text and the labels."""


def _families() -> Iterator[Family]:
    for name, (text, labels) in _GAUGES.items():
        yield GaugeMetricFamily(f"headrace_{name}", text, labels=labels)
    yield CounterMetricFamily(
        "headrace_model_thinned_versions", "Versions that retention has thinned, by rule", labels=["model", "rule"]
    )


class CatalogMetrics(Collector):
    """Rounds by state, versions by status, watchers; quality and freshness of versions in production."""

    def __init__(
        self, catalog: Catalog, clock: Callable[[], float] = time.time, *, data_dir: Path | None = None
    ) -> None:
        """data_dir: the folder of the measured disk."""
        self._catalog, self._clock, self._data_dir = catalog, clock, data_dir

    def collect(self) -> Iterator[Family]:
        families = {family.name.removeprefix("headrace_"): family for family in _families()}
        for name, labels, value in self._samples():
            families[name].add_metric(labels, value)
        yield from families.values()

    def _samples(self) -> Iterator[Sample]:
        for (kind, label), count in self._catalog.counts().items():
            yield f"registry_{kind}", [label], count
        yield "registry_watchers", [], self._catalog.watcher_count
        for labels, count in [*self._catalog.thinned_counts().items()][: _MOST_MODELS * len(THINNED_TO)]:
            yield "model_thinned_versions", labels, count
        if self._data_dir is not None:
            disk = shutil.disk_usage(self._data_dir)
            yield "registry_disk_used_ratio", [], disk.used / disk.total
            count, saved_bytes = self._catalog.blobs.packed()
            yield "registry_packed_files", [], count
            yield "registry_packed_saved_bytes", [], saved_bytes
        for model in self._in_production():
            yield from self._of_production(model)
            yield from self._live(model)
            if model.canary:
                yield from self._canary(model)
        for shown in [model for model in self._catalog.observed.overview() if not model["archived"]][:_MOST_MODELS]:
            yield from _at_a_glance(shown)

    def _of_production(self, model: Model) -> Iterator[Sample]:
        version = self._catalog.get_version(model.name, model.aliases[PRODUCTION])
        yield "model_production_version", [model.name], version.version
        if version.last_event_at:
            yield "freshness_seconds", [model.name], max(0.0, self._clock() - version.last_event_at)
        if version.newest_event_time is not None:
            age_seconds = max(0.0, self._clock() - version.newest_event_time)
            yield "event_time_freshness_seconds", [model.name], age_seconds
        for part, name, value in _metrics_of(version):
            yield "model_metric", [model.name, str(version.version), part, name], value

    def _live(self, model: Model) -> Iterator[Sample]:
        """Production and the version that it is compared with, over the window. A version that leaves its alias has
        no more samples."""
        for alias in (PRODUCTION, PREDECESSOR, CANARY):
            number = model.aliases.get(alias, 0)
            for track in self._catalog.live_evidence(model.name, number).get("tracks", ()):
                if track["alias"] == alias:
                    yield from _of_track(track, [model.name, alias, str(number)])

    def _canary(self, model: Model) -> Iterator[Sample]:
        """Of a canary that comes to production in stages."""
        yield "model_canary_stage", [model.name], model.canary["stage"] + 1
        yield "model_canary_share_percent", [model.name], model.canary["share"]
        if found := self._catalog.live_evidence(model.name, model.canary["version"]).get("canary"):
            yield "model_canary_samples", [model.name], found["samples"]
            yield "model_canary_e_value", [model.name, "worse"], found["e_value"]
            yield "model_canary_e_value", [model.name, "no_worse"], found["no_worse_e_value"]

    def _in_production(self) -> list[Model]:
        models = (model for model in self._catalog.list_models() if not model.archived)
        return [model for model in models if model.aliases.get(PRODUCTION)][:_MOST_MODELS]


def _at_a_glance(model: JsonMap) -> Iterator[Sample]:
    """A model's numbers on the overview."""
    name = model["name"]
    if model["waiting_examples"] is not None:
        yield "model_waiting_examples", [name], model["waiting_examples"]
    if model["production"]:
        yield "model_converged", [name], float(model["serving"]["converged_at"] is not None)
    yield "model_versions_last_hour", [name], model["versions_last_hour"]
    yield "model_state", [name, str(model["why"]["state"])], 1.0


def _of_track(track: JsonMap, labels: list[str]) -> Iterator[Sample]:
    slices = sorted(track.get("slices", ()), key=lambda slice_: -slice_["total"]["examples"])[:_MOST_LIVE_SLICES]
    parts = [(_ALL, track), *((_name_of(slice_["where"]), slice_) for slice_ in slices)]
    for part, measured in parts:
        yield "model_live_examples", [*labels, part], measured["total"]["examples"]
        for name, value in measured["window"]["metrics"].items():
            yield "model_live_metric", [*labels, part, name], value


def _name_of(where: JsonMap) -> str:
    return ",".join(f"{key}={value}" for key, value in where.items())


def _metrics_of(version: Version) -> Iterator[tuple[str, str, float]]:
    """(slice, metric, value): of all held-out examples, then of the slices that the definition names."""
    parts = [(_ALL, version.metrics.get("candidate", {}))]
    for slice_ in version.evaluation.get("slices", ())[:_MOST_SLICES]:
        where = slice_.get("where")
        if where:
            parts.append((_name_of(where), slice_["metrics"].get("candidate", {})))
    for part, metrics in parts:
        for name, value in list(metrics.items())[:_MOST_METRICS]:
            if isinstance(value, int | float) and math.isfinite(value):
                yield part, name, float(value)
