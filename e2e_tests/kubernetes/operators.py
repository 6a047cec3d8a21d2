"""KEDA and Kueue in the node: images of their Go modules (node/operators.sh), and the manifests that they ship."""

from collections.abc import Sequence
from typing import Any

import yaml

from e2e_tests.kubernetes.cluster import HOME, Cluster

KUEUE, KEDA = "kueue", "keda"
_METRICS = "apiservice/v1beta1.external.metrics.k8s.io"


def install(cluster: Cluster, operators: Sequence[str]) -> None:
    """Returns when their Deployments have rolled out, and KEDA's metrics are answered."""
    cluster.import_images([f"local/{name}:1" for name in operators])
    for name in operators:
        text = cluster.kubectl("kustomize", str(HOME / "operators" / name / "config" / "default"))
        objects = [_fitting(name, item) for item in yaml.safe_load_all(text)]
        kinds = [item for item in objects if item["kind"] in ("Namespace", "CustomResourceDefinition")]
        for some in (kinds, objects):
            cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=yaml.safe_dump_all(some))
        for item in objects:
            if item["kind"] == "Deployment":
                where = ("--namespace", item["metadata"]["namespace"])
                cluster.kubectl("rollout", "status", f"deployment/{item['metadata']['name']}", "--timeout=5m", *where)
    if KEDA in operators:
        cluster.kubectl("wait", "--for=condition=Available", "--timeout=2m", _METRICS)


def _fitting(name: str, item: dict[str, Any]) -> dict[str, Any]:
    """With the image built here, and without the requests of a larger node."""
    if item["kind"] == "Deployment":
        for container in item["spec"]["template"]["spec"]["containers"]:
            container |= {"image": f"local/{name}:1", "imagePullPolicy": "Never"}
            container["resources"].pop("requests", None)
            container["resources"]["limits"].pop("cpu", None)
            container["resources"]["requests"] = {"cpu": "10m", "memory": "64Mi"}
    return item
