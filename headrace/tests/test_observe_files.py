"""The profile `observe` as files: dashboards and rules name metrics that there are, and places in the guide."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.generate import metrics

ROOT = Path(__file__).parents[2]
OBSERVE = ROOT / "docker" / "observe"
DASHBOARDS = sorted((OBSERVE / "grafana" / "dashboards").glob("*.json"))
KNOWN = set(re.findall(r"`(headrace_\w+)` \(", metrics.document()))


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def rules() -> list[dict[str, Any]]:
    (group,) = read("docker/observe/alerts.yml")["groups"]
    return list(group["rules"])


def queries() -> Iterator[str]:
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def test_every_query_asks_for_metrics_that_there_are() -> None:
    named = {name for query in queries() for name in re.findall(r"headrace_\w+", query)}
    assert len(named) > 25
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in named} - KNOWN == set()


def test_every_metric_in_the_table_of_what_to_watch_has_a_rule_whose_place_in_the_guide_there_is() -> None:
    guide = (ROOT / "docs/guide/operate.md").read_text()
    table = [line.split("|")[1] for line in guide.splitlines() if line.startswith("| `")]
    watched = {name for line in table for name in re.findall(r"`(headrace_\w+|up)`", line)} & (KNOWN | {"up"})
    asked = " ".join(rule["expr"] for rule in rules())
    assert len(watched) > 10
    assert {name for name in watched if name not in asked} == set()
    for rule in rules():
        path, _, place = rule["annotations"]["runbook"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.MULTILINE)
        assert place in {heading.lower().replace(" ", "-") for heading in headings}, rule["alert"]


def test_dashboards_read_the_provisioned_source_and_have_links_of_their_own() -> None:
    sources = {
        one["uid"] for one in read("docker/observe/grafana/provisioning/datasources/headrace.yml")["datasources"]
    }
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len(boards) == 3
    for panel in (panel for board in boards for panel in board["panels"]):
        assert panel["datasource"]["uid"] in sources, panel["title"]


@pytest.mark.covers("tb-serve")
def test_the_compose_file_starts_tensorboard_over_the_registrys_versions() -> None:
    service = read("docker-compose.yml")["services"]["tensorboard"]
    assert service["entrypoint"][:3] == ["python", "-m", "services.trainer.summaries.board"]
    assert "--registry=http://registry:8701" in service["entrypoint"]
    assert "profiles" not in service, "without being asked"


@pytest.mark.covers("srv-monitoring")
def test_prometheus_finds_every_service_of_the_compose_file_and_only_the_profile_starts_it() -> None:
    services = read("docker-compose.yml")["services"]
    jobs = {
        job["job_name"]: job["dns_sd_configs"][0] for job in read("docker/observe/prometheus.yml")["scrape_configs"]
    }
    assert jobs.keys() == {"registry", "ingest", "trainer", "serving"}
    for name, found in jobs.items():
        assert found["names"] == [name]
        assert int(services[name]["build"]["args"]["HTTP_PORT"]) == found["port"]
    assert {name for name, one in services.items() if one.get("profiles") == ["observe"]} == {
        "prometheus", "grafana", "jaeger", "observe-proxy",
    }  # fmt: skip
