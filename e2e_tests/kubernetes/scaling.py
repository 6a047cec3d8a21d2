"""What KEDA makes of the chart's ScaledObjects: replicas of serving by the queue, trainers by waiting examples and by
freshness.

It asks a Prometheus of this machine, as the chart has it: the length of a queue is the largest report of any replica,
which no single endpoint knows, so that KEDA's `metrics-api` scaler would not do.
"""

import json
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from e2e_tests.kubernetes.cluster import HTTP_PORTS, Cluster, is_ready, names
from e2e_tests.kubernetes.report import Report
from e2e_tests.points import ROUND_EVENTS
from e2e_tests.teaching import Pupil, await_more
from e2e_tests.waiting import until

_ADDRESS, _PORT = "10.88.255.53", 9090
"""Of the cluster's DNS: pods reach it."""
_STEP_SECONDS = 480.0
_ASKERS = 24
_NEVER = 1_000_000


@contextmanager
def prometheus(cluster: Cluster) -> Iterator[str]:
    """Asks every pod of the services as the chart's ServiceMonitor would have it; yields its address. Debian's knows no
    discovery by Kubernetes, so it reads a file that names the pods of each moment."""
    with tempfile.TemporaryDirectory() as folder:
        targets, config = Path(folder) / "targets.json", Path(folder) / "prometheus.yml"
        scrape = {
            "job_name": "headrace",
            "authorization": {"credentials": cluster.token("prometheus")},
            "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "2s"}],
        }
        config.write_text(yaml.safe_dump({"global": {"scrape_interval": "2s"}, "scrape_configs": [scrape]}))
        stop = threading.Event()
        follower = threading.Thread(target=_follow, args=(cluster, targets, stop))
        options = [f"--config.file={config}", f"--storage.tsdb.path={folder}/data", "--log.level=warn"]
        process = subprocess.Popen(["prometheus", *options, f"--web.listen-address={_ADDRESS}:{_PORT}"])
        follower.start()
        try:
            until(_is_answered, "Prometheus answers")
            yield f"http://{_ADDRESS}:{_PORT}"
        finally:
            stop.set()
            follower.join()
            process.terminate()
            process.wait(30)


def _is_answered() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_ADDRESS, _PORT)) == 0


def _follow(cluster: Cluster, path: Path, stop: threading.Event) -> None:
    while not stop.wait(2):
        with suppress(RuntimeError):  # the API server is busy
            found = [
                {
                    "targets": [f"{pod['status']['podIP']}:{port}"],
                    "labels": {"namespace": "default", "pod": pod["metadata"]["name"]},
                }
                for service, port in HTTP_PORTS.items()
                for pod in cluster.pods(service)
                if "podIP" in pod["status"]
            ]
            new = path.with_suffix(".new")
            new.write_text(json.dumps(found))
            new.replace(path)


def autoscaled(cluster: Cluster, pupil: Pupil, tag: str, report: Report) -> None:
    """A release that runs gets its autoscaler, and keeps every replica meanwhile. Needs KEDA's kinds, and not KEDA."""
    with report.step("autoscaling of a release that runs") as figures, pupil.asking() as outcomes:
        before = names(cluster.pods("serving"))
        keda = {"enabled": True, "prometheus": f"http://{_ADDRESS}:{_PORT}", "serving": {"minReplicas": len(before)}}
        cluster.helm("upgrade", values={"image": {"tag": tag}, "keda": keda})
        figures["replicas of serving"] = len(before)
        report.expect(names(cluster.pods("serving")) == before, f"the upgrade ended some of {before}")
        await_more(outcomes)
        _count(outcomes, figures, report)
        cluster.helm("upgrade", values={"image": {"tag": tag}})


def scaled(cluster: Cluster, pupil: Pupil, tag: str, report: Report) -> None:
    """One replica of serving and one trainer at rest; two of each while there is work, and one again."""
    with prometheus(cluster) as address:
        _scale_by(cluster, address, tag, waitingExamples=ROUND_EVENTS // 4)
        with report.step("KEDA: serving by its queue") as figures:
            _await_replicas(cluster, "serving", 1, figures)
            with pupil.seen_by(cluster.client(timeout_seconds=30)).asking(_ASKERS, pause_seconds=0.01) as outcomes:
                _await_replicas(cluster, "serving", 2, figures)
                await_more(outcomes)
            _await_replicas(cluster, "serving", 1, figures)
            _count(outcomes, figures, report)
        with report.step("KEDA: trainers by waiting examples") as figures:
            _work_waits(cluster, pupil, figures)
        _scale_by(cluster, address, tag, waitingExamples=_NEVER, freshnessSeconds=20)
        with report.step("KEDA: trainers by freshness") as figures:
            _work_waits(cluster, pupil, figures)
        cluster.helm("upgrade", values={"image": {"tag": tag}})


def _count(outcomes: list[str], figures: dict[str, Any], report: Report) -> None:
    failed = [outcome for outcome in outcomes if outcome != "ok"]
    figures |= {"predictions": len(outcomes), "failed": len(failed)}
    report.expect(not failed, f"predictions failed while KEDA scaled serving: {sorted(set(failed))[:3]}")


def _scale_by(cluster: Cluster, address: str, tag: str, **trainer: int) -> None:
    keda = {
        "enabled": True,
        "prometheus": address,
        "serving": {"minReplicas": 1, "maxReplicas": 2, "queuedRequests": 2},
        "trainer": {"minReplicas": 1, "maxReplicas": 2, **trainer},
    }
    cluster.helm("upgrade", values={"image": {"tag": tag}, "keda": keda})
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=2m", "scaledobjects", "--all")


def _work_waits(cluster: Cluster, pupil: Pupil, figures: dict[str, Any]) -> None:
    """Events that begin no round by themselves bring a second trainer; when they are trained on it leaves."""
    with cluster.client() as client:
        now = pupil.seen_by(client)  # of the replicas as they are now
        _await_replicas(cluster, "trainer", 1, figures)
        now.teach(seed=71, count=ROUND_EVENTS - 1)
        _await_replicas(cluster, "trainer", 2, figures)
        now.train_the_rest()
        until(lambda: client.account(now.model)["examples"]["waiting"] == 0, "nothing waits", timeout_seconds=120)
    _await_replicas(cluster, "trainer", 1, figures)


def _await_replicas(cluster: Cluster, component: str, count: int, figures: dict[str, Any]) -> None:
    def is_so() -> bool:
        pods = cluster.pods(component)
        return len(pods) == count and all(map(is_ready, pods))

    until(is_so, f"{component} has {count} replicas", timeout_seconds=_STEP_SECONDS)
    figures[component] = f"{figures[component]}, {count}" if component in figures else str(count)
