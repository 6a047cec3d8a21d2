"""One real Kubernetes node on this machine (node/up.sh), and the chart in it, by kubectl, helm and ctr."""

import base64
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e_tests.kubernetes.chart import CHART, values_path
from headrace import Addresses, Client

SERVICES = ("registry", "ingest", "trainer", "serving")
RELEASE = "headrace"
_NODE = Path(__file__).parent / "node"
HOME = Path(os.environ.get("KUBEHOME", Path.home() / ".kube-local"))
_RUN = Path(os.environ.get("KUBE_RUN", "/tmp/kube-local"))
KUBECONFIG = _RUN / "kubeconfig"
HTTP_PORTS = {"registry": 8701, "ingest": 8601, "trainer": 8801, "serving": 8501}
_CLAIMS = ("registry", "registry-2", "registry-3", "trainer", "kafka", "redis")
_STORAGE_CLASS = "node"
_BASES = {"kafka": "KAFKA_IMAGE", "redis": "REDIS_IMAGE"}
_LONGEST_SECONDS = 540
_HELPER_IDLE_SECONDS = 30


class Cluster:
    """A node that runs. `images` are the services' tag; `bases` name the images of Kafka and Redis."""

    def __init__(self, tag: str, bases: Mapping[str, str]) -> None:
        self._tag, self._bases, self.chart = tag, bases, CHART
        self.values: Mapping[str, Any] = {}
        """Of the chart, beside the example's and the run's."""
        # Of this process and those that it starts.
        os.environ |= {"KUBECONFIG": str(KUBECONFIG), "PATH": f"{HOME / 'bin'}:{os.environ['PATH']}"}
        self._example: Mapping[str, Any] = yaml.safe_load(values_path("try").read_text())

    def up(self, *, operators: Sequence[str] = ()) -> None:
        for script in (["up.sh"], ["operators.sh", *operators]):
            subprocess.run([_NODE / script[0], *script[1:]], check=True, timeout=3600)

    def down(self) -> None:
        subprocess.run([_NODE / "down.sh"], check=True, timeout=_LONGEST_SECONDS)

    def learn_kinds(self) -> None:
        """Those of operators that the chart has objects for, without the operators."""
        self.kubectl("apply", "--server-side", *(f"--filename={path}" for path in sorted((HOME / "crds").iterdir())))
        self.kubectl("wait", "--for=condition=established", "--timeout=60s", "customresourcedefinitions", "--all")

    def take_images(self, *tags: str) -> None:
        """The containers' engine hands the node the services' images of these tags, and those of Kafka and Redis."""
        self.import_images(
            [f"headrace/{service}:{tag}" for tag in tags for service in SERVICES] + [*self._bases.values()]
        )

    def import_images(self, images: Sequence[str]) -> None:
        """Of the containers' engine, by their names."""
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as saved:
            self._ctr("images", "import", "-", stdin=saved.stdout)
        if saved.returncode:
            raise RuntimeError(f"docker save ended with status {saved.returncode}")

    def make_volumes(self) -> None:
        """A folder of the node for each claim, since nothing here provisions any."""
        for name in _CLAIMS:
            folder = _RUN / "volumes" / name
            folder.mkdir(parents=True)
            folder.chmod(0o777)  # A folder of the node is not given to the pod's group.
            self.apply(_volume(name, folder))

    def enforce(self, level: str) -> None:
        """The API server refuses pods below this level of the pod security standards."""
        self.kubectl("label", "--overwrite", "namespace", "default", f"pod-security.kubernetes.io/enforce={level}")

    def apply(self, *objects: Mapping[str, Any], server_dry_run: bool = False) -> None:
        """Raises CalledProcessError for what the API server refuses, unknown fields among it."""
        options = ["--dry-run=server"] if server_dry_run else []
        self.kubectl("apply", "--validate=strict", *options, "-f", "-", text=yaml.safe_dump_all(objects))

    def helm(self, command: str, *options: str, values: Mapping[str, Any] | None = None) -> None:
        """`helm install` or `upgrade` with the run's values and `values`; returns when all pods are ready, but for
        registries that stand by."""
        given = _merged(self._values(), values or {})
        is_waiting = ["--wait", "--timeout", "8m"] if self.registries == 1 else []
        self._run(
            "helm",
            command,
            RELEASE,
            str(self.chart),
            "--values",
            "-",
            *is_waiting,
            *options,
            text=yaml.safe_dump(given),
        )
        if not is_waiting:
            self._await_rollout()

    @property
    def registries(self) -> int:
        return int(self.values.get("registry", {}).get("replicas", 1))

    def _await_rollout(self) -> None:
        """A registry that stands by is not ready, so Helm would wait for ever."""
        for kind in ("deployments", "statefulsets"):
            for name in names(self.get(kind)):
                if f"{RELEASE}-registry" not in name:
                    self.kubectl("rollout", "status", f"{kind}/{name}", "--timeout=8m")

    def uninstall(self) -> None:
        """Returns when no pod is left."""
        self._run("helm", "uninstall", RELEASE, "--cascade", "foreground", "--wait", "--timeout", "5m")

    def kubectl(self, *arguments: str, text: str = "") -> str:
        return self._run("kubectl", *arguments, text=text)

    def get(self, kinds: str, component: str = "") -> list[Mapping[str, Any]]:
        """The release's objects of these kinds, of one component or of all."""
        labels = f"app.kubernetes.io/instance={RELEASE}" + (
            f",app.kubernetes.io/component={component}" if component else ""
        )
        found: list[Mapping[str, Any]] = json.loads(self.kubectl("get", kinds, "-l", labels, "-o", "json"))["items"]
        return found

    def pods(self, component: str) -> list[Mapping[str, Any]]:
        """Those that are not being ended, oldest first."""
        there = [pod for pod in self.get("pods", component) if "deletionTimestamp" not in pod["metadata"]]
        return sorted(there, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def delete(self, pod: Mapping[str, Any]) -> None:
        """As a node that is lost: at once, without the time to drain. Another pod takes its place."""
        self.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")

    def kill(self, pod: Mapping[str, Any]) -> None:
        """SIGKILL to its service, which the kubelet starts again in the same pod."""
        (container,) = pod["status"]["containerStatuses"]
        self._ctr("tasks", "kill", "--signal", "SIGKILL", container["containerID"].removeprefix("containerd://"))

    def token(self, principal: str = "operator") -> str:
        secret = json.loads(self.kubectl("get", "secret", f"{RELEASE}-access", "-o", "json"))
        return base64.b64decode(secret["data"][principal]).decode()

    def addresses(self) -> Addresses:
        """The Services', and each replica's of serving as of now."""
        clusters = {service: self.get("services", service)[0]["spec"]["clusterIP"] for service in SERVICES}
        urls = {service: f"http://{clusters[service]}:{port}" for service, port in HTTP_PORTS.items()}
        replicas = [f"http://{pod['status']['podIP']}:{HTTP_PORTS['serving']}" for pod in self.pods("serving")]
        return Addresses(
            registry=urls["registry"], ingest=urls["ingest"], trainer=urls["trainer"], serving=tuple(replicas),
            predictions=urls["serving"],
        )  # fmt: skip

    def client(self, *, timeout_seconds: float = 120.0) -> Client:
        return Client(self.addresses(), timeout_seconds=timeout_seconds, token=self.token())

    def _values(self) -> dict[str, Any]:
        claim = {"persistence": {"storageClass": _STORAGE_CLASS, "size": "1Gi"}}
        run = {
            "image": {"tag": self._tag, "pullPolicy": "Never"},
            "registry": claim,
            "trainer": {**claim, "helpers": {"enabled": True, "parallelism": 1, "idleSeconds": _HELPER_IDLE_SECONDS}},
            **{name: {**claim, "image": self._bases[name]} for name in _BASES},
        }
        return _merged(_merged(self._example, run), self.values)

    def _ctr(self, *arguments: str, stdin: Any = None) -> None:
        self._run("ctr", "-a", str(_RUN / "containerd" / "socket"), "-n", "k8s.io", *arguments, stdin=stdin)

    def _run(self, *command: str, text: str = "", stdin: Any = None) -> str:
        given: Any = {"stdin": stdin} if stdin is not None else {"input": text.encode()}
        try:
            done = subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_SECONDS, **given)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{' '.join(command[:3])}: {error.stderr.decode(errors='replace')[-2000:]}") from error
        return str(done.stdout, "utf-8")


def base_images(environment_file: Path) -> Mapping[str, str]:
    """The images of Kafka and Redis that the stand-ins' file names."""
    lines = dict(line.split("=", 1) for line in environment_file.read_text().splitlines() if "=" in line)
    return {name: lines[variable] for name, variable in _BASES.items()}


def _volume(name: str, folder: Path) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"headrace-{name}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": _STORAGE_CLASS,
            "hostPath": {"path": str(folder)},
        },
    }


def _merged(into: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    inner = {key: _merged(into[key], value) for key, value in changes.items() if isinstance(into.get(key), Mapping)}
    return {**into, **changes, **inner}


def names(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    return [item["metadata"]["name"] for item in objects]


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = {item["type"]: item["status"] for item in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"
