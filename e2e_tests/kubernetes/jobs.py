"""Jobs of trainers that only help: by themselves, and within the quota of a ClusterQueue of Kueue."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from e2e_tests.kubernetes.cluster import RELEASE, Cluster, is_ready
from e2e_tests.kubernetes.report import Report
from e2e_tests.teaching import Pupil
from e2e_tests.waiting import until

_STEP_SECONDS = 480.0
_QUEUE = "training"
_KIND = "kueue.x-k8s.io/v1beta2"


def begin(cluster: Cluster, job: str) -> None:
    cluster.kubectl("create", "job", job, f"--from=cronjob/{RELEASE}-trainer-helpers")


def helped_round(cluster: Cluster, pupil: Pupil, folder: Path, *, job: str) -> int:
    """How many trainers computed a round that began with the Job's trainer ready. Returns when the Job has ended."""

    def helps(pod: Mapping[str, Any]) -> bool:
        return is_ready(pod) and pod["metadata"]["labels"]["job-name"] == job

    until(lambda: any(map(helps, cluster.pods("trainer-helpers"))), f"{job} is ready", timeout_seconds=_STEP_SECONDS)
    with cluster.client() as client:  # of the replicas as they are now
        wide = replace(pupil, client=client, stream=f"wide-{job}", model=f"wide-{job}")
        wide.apply(folder / job, passes=100, shards=2)
        wide.learn_version(1)
        cluster.kubectl("wait", "--for=condition=complete", f"job/{job}", "--timeout=5m")
        (version,) = client.versions(wide.model)
    return int(version.environment["trainers"])


def queued(cluster: Cluster, pupil: Pupil, folder: Path, tag: str, report: Report) -> None:
    """The ClusterQueue has room for one helper: a second Job waits for the end of the first, and helps with a round."""
    with report.step("Kueue: helpers within a quota") as figures:
        cluster.helm("upgrade", values={"image": {"tag": tag}, "trainer": {"helpers": {"queue": _QUEUE}}})
        (cron,) = cluster.get("cronjobs", "trainer-helpers")
        (helper,) = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        cluster.apply(*_quota(helper["resources"]["requests"]))
        begin(cluster, "first")
        until(lambda: not _is_suspended(cluster, "first"), "the first Job was admitted", timeout_seconds=_STEP_SECONDS)
        begin(cluster, "second")
        figures["the second Job"] = until(lambda: _why_it_waits(cluster, "second"), "the second Job waited for quota")
        report.expect(_is_suspended(cluster, "second"), "a Job was admitted beyond the quota of its ClusterQueue")
        cluster.kubectl("wait", "--for=condition=complete", "job/first", "--timeout=5m")
        figures["trainers of a round"] = count = helped_round(cluster, pupil, folder, job="second")
        report.expect(count == 2, f"a round that Kueue's Job should help with had {count} trainers")


def _quota(requests: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """A queue with room for one pod with these requests."""
    resources = [{"name": name, "nominalQuota": quantity} for name, quantity in requests.items()]
    group = {"coveredResources": [*requests], "flavors": [{"name": "any", "resources": resources}]}
    return [
        {"apiVersion": _KIND, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
        {
            "apiVersion": _KIND, "kind": "ClusterQueue", "metadata": {"name": _QUEUE},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        },
        {
            "apiVersion": _KIND, "kind": "LocalQueue", "metadata": {"name": _QUEUE, "namespace": "default"},
            "spec": {"clusterQueue": _QUEUE},
        },
    ]  # fmt: skip


def _is_suspended(cluster: Cluster, job: str) -> bool:
    return bool(json.loads(cluster.kubectl("get", "job", job, "-o", "json"))["spec"].get("suspend"))


def _why_it_waits(cluster: Cluster, job: str) -> str:
    """What Kueue says of a Job without quota; "" while it says nothing."""
    for workload in json.loads(cluster.kubectl("get", "workloads", "-o", "json"))["items"]:
        if workload["metadata"]["ownerReferences"][0]["name"] == job:
            conditions = {item["type"]: item for item in workload.get("status", {}).get("conditions", [])}
            reserved = conditions.get("QuotaReserved", {})
            return str(reserved["message"]) if reserved.get("status") == "False" else ""
    return ""
