"""A Prometheus with the rules and dashboards of the profile `observe`, on a platform that runs."""

import contextlib
import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e_tests.conftest import MakePupil
from e2e_tests.driver import Platform
from e2e_tests.kubernetes.chart import manifests
from e2e_tests.waiting import until
from testing.processes import free_port

OBSERVE = Path(__file__).parents[1] / "docker" / "observe"
NOT_SHOWN_HERE = re.compile(r"refused|deadletter|code!=|slice!=|outcome=~|rejected|live_metric|labels_accepted|> 0")
"""Queries for what a platform does not have that is well and whose stream has no late labels (test_rollout.py has)."""
pytestmark = [pytest.mark.slow, pytest.mark.local_only, pytest.mark.timeout(600, method="signal")]


@contextmanager
def prometheus_on(platform: Platform, folder: Path) -> Iterator[str]:
    """Its URL; the files of the profile, with this platform's doors in place of the containers' names."""
    addresses = platform.addresses
    doors = {"registry": addresses.registry, "ingest": addresses.ingest, "trainer": addresses.trainer}
    targets = {job: [url.removeprefix("http://")] for job, url in doors.items()}
    targets["serving"] = [url.removeprefix("http://") for url in addresses.serving]
    config = yaml.safe_load((OBSERVE / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(OBSERVE / "alerts.yml")]
    config["scrape_configs"] = [
        {"job_name": job["job_name"], "static_configs": [{"targets": targets[job["job_name"]]}]}
        for job in config["scrape_configs"]
    ]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    port = free_port()
    command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def asked(url: str, path: str, **query: str) -> Any:
    """The data of an answer. Raises what urllib raises for a query that is refused."""
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
        return json.load(answer)["data"]


def faults_of_metrics(url: str) -> str:
    """What Prometheus' own rules of names and units find in a door's metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        command = ["promtool", "check", "metrics"]
        told = subprocess.run(command, input=answer.read(), capture_output=True, check=False, timeout=60)
    return (told.stdout + told.stderr).decode() or ("" if told.returncode == 0 else f"status {told.returncode}")


def scaling_queries() -> Iterator[str]:
    """By which the Helm chart adds replicas; no pod's namespace is on the metrics here."""
    for item in manifests("production"):
        if item["kind"] == "ScaledObject":
            yield from (one["metadata"]["query"].replace('{namespace="data"}', "") for one in item["spec"]["triggers"])


def is_there(url: str) -> bool:
    try:
        return len(asked(url, "query", query="up == 1")["result"]) >= 4
    except OSError:
        return False


@pytest.mark.covers("srv-monitoring")
@pytest.mark.needs("prometheus", "promtool")
def test_every_query_of_dashboards_rules_and_autoscaling_answers(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    pupil = make_pupil(platform.client(), tmp_path / "definition", versions=1)
    pupil.probabilities()
    addresses = platform.addresses
    doors = (addresses.registry, addresses.ingest, addresses.trainer, *addresses.serving)
    assert {door: faults_of_metrics(door) for door in doors} == dict.fromkeys(doors, "")
    queries = {
        target["expr"]
        for path in (OBSERVE / "grafana" / "dashboards").glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    }
    queries |= set(scaling_queries())
    with prometheus_on(platform, tmp_path) as url:
        until(lambda: is_there(url), "every service is scraped")
        expected = {query for query in queries if not NOT_SHOWN_HERE.search(query)}
        assert len(expected) > 25

        silent = expected

        def all_answer() -> bool:
            nonlocal silent
            silent = {query for query in silent if not asked(url, "query", query=query)["result"]}
            return not silent

        with contextlib.suppress(AssertionError):
            until(all_answer, "every dashboard has something to show")
        assert not silent
        for query in queries - expected:
            asked(url, "query", query=query)
        rules = [rule for group in asked(url, "rules")["groups"] for rule in group["rules"]]
        assert len(rules) > 12
        until(
            lambda: all(rule["health"] == "ok" for group in asked(url, "rules")["groups"] for rule in group["rules"]),
            "every rule was evaluated",
        )
        down = [rule["name"] for rule in rules if rule["alerts"]]
        assert "InstanceDown" not in down
