"""/metrics of the registry: what is in production, bounded whatever the number of versions and slices."""

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from services.registry.metrics import CatalogMetrics
from services.registry.tests.building import Clock, definition, new_catalog, publish


def test_quality_and_freshness_of_what_is_in_production_are_told_and_ten_models_are_a_small_scrape(
    tmp_path: Path,
) -> None:
    clock = Clock()
    catalog = new_catalog(tmp_path, clock)
    slices = [
        {"by": ["x"], "where": {"x": place}, "count": 9, "metrics": {"candidate": {"auc": 0.5, "nothing": None}}}
        for place in range(30)
    ]
    for number in range(10):
        name = f"model-{number}"
        catalog.register_model(name, stream="s", files=definition(name), by="test")
        for _ in range(2):
            publish(catalog, model=name, auc=0.75, evaluation={"slices": slices})
    clock.pass_seconds(30.5)
    registry = CollectorRegistry()
    registry.register(CatalogMetrics(catalog, clock))
    scrape = generate_latest(registry).decode()
    assert 'headrace_model_metric{metric="auc",model="model-3",slice="all",version="2"} 0.75' in scrape
    assert 'headrace_model_metric{metric="auc",model="model-3",slice="x=9",version="2"} 0.5' in scrape
    assert 'slice="x=10"' not in scrape, "ten slices of a model at most"
    assert 'headrace_freshness_seconds{model="model-3"} 31.0' in scrape
    assert 'headrace_model_production_version{model="model-3"} 2.0' in scrape
    assert 'version="1"' not in scrape
    assert len(scrape) < 50_000
    catalog.close()
