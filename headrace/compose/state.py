"""What the engine says of the platform in containers: its processes, doors and volumes.

A container's name here is its service's, and serving's replicas are serving-0, serving-1, ...; a second trainer is
trainer-1.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from common.errors import NotFound, Unavailable
from headrace.compose.docker_cli import containers, memory_bytes
from headrace.places import GRPC_PORT_OF, HOST, HTTP_PORT_OF, SERVICES, Addresses, PlatformState, ProcessState

_PROJECT = "com.docker.compose.project"
_SERVICE = "com.docker.compose.service"
_NUMBER = "com.docker.compose.container-number"
_ACCESS = "access"
"""The service that makes the tokens, and ends."""
_CERTIFICATES = "certificates"
"""The service of docker-compose.tls.yml that makes certificates, and ends."""


@dataclass(frozen=True)
class ComposeState(PlatformState):
    """What runs of one Compose project. `data_dir` is empty: the data is in volumes.

    Attributes:
        project: the Compose project.
        doors: the proxy's; None while the proxy does not run.
        ids: {name: container id}.
        volumes: names of all their volumes.
        access_id: of the container that has made the tokens; "" where there is none.
    """

    project: str = ""
    doors: Addresses | None = None
    ids: Mapping[str, str] = field(default_factory=dict)
    volumes: frozenset[str] = frozenset()
    access_id: str = ""

    @property
    def place(self) -> str:
        return f"compose project {self.project}"

    @property
    def addresses(self) -> Addresses:
        if self.doors is None:
            raise Unavailable(f"the proxy of {self.place} does not run; `headrace --platform compose status` has more")
        return self.doors

    def door_of(self, service: str) -> str:
        """The proxy's for a service. Raises Unavailable while the proxy does not run."""
        addresses = self.addresses
        return addresses.predictions if service == "serving" else str(getattr(addresses, service))

    def memory_mb(self) -> dict[str, int]:
        """Megabytes by name, without the page cache; 0 for what does not run."""
        running = {name: identity for name, identity in self.ids.items() if self.process(name).pid}
        found = memory_bytes(list(running.values()))
        return {p.name: round(found.get(running.get(p.name, ""), 0) / 1e6) for p in self.processes}


def state_of(project: str) -> ComposeState:
    """What the engine says of a Compose project.

    Raises:
        NotFound: there is no such project. Unavailable: no engine answers.
    """
    found = containers(f"{_PROJECT}={project}")
    if not {"registry", "serving"} & {item["Config"]["Labels"][_SERVICE] for item in found}:
        raise NotFound(
            f"there is no compose project {project}; start it with `headrace --platform compose up`, or name another "
            "by COMPOSE_PROJECT_NAME"
        )
    ended = [item for item in found if item["Config"]["Labels"][_SERVICE] == _ACCESS]
    named = _named([item for item in found if item["Config"]["Labels"][_SERVICE] not in (_ACCESS, _CERTIFICATES)])
    processes = tuple(_process(name, item) for name, item in named.items())
    started = [process.started_at for process in processes if process.pid]
    volumes = frozenset(mount["Name"] for item in found for mount in item["Mounts"] if mount["Type"] == "volume")
    return ComposeState(
        supervisor_pid=0, data_dir="", started_at=min(started, default=0.0), processes=processes,
        project=project, doors=_doors(named), ids={name: item["Id"] for name, item in named.items()}, volumes=volumes,
        access_id=str(ended[0]["Id"]) if ended else "",
    )  # fmt: skip


def _named(found: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """By our names, serving's replicas last: the order of their numbers, counted from 0."""

    def place(item: Mapping[str, Any]) -> tuple[bool, str, int]:
        labels = item["Config"]["Labels"]
        return labels[_SERVICE] == "serving", labels[_SERVICE], int(labels[_NUMBER])

    named: dict[str, Mapping[str, Any]] = {}
    count: dict[str, int] = {}
    for item in sorted((item for item in found if item["Config"]["Labels"].get(_NUMBER)), key=place):
        service = item["Config"]["Labels"][_SERVICE]
        index = count.get(service, 0)
        count[service] = index + 1
        named[f"{service}-{index}" if service == "serving" or index else service] = item
    return named


def _process(name: str, item: Mapping[str, Any]) -> ProcessState:
    state = item["State"]
    service = item["Config"]["Labels"][_SERVICE]
    ports = _published(item)
    phase, note = _phase(state)
    return ProcessState(
        name=name,
        pid=int(state["Pid"]),
        http_port=ports.get(HTTP_PORT_OF.get(service, 0), 0),
        phase=phase,
        note=note,
        restart_count=int(item["RestartCount"]),
        started_at=_epoch(state["StartedAt"]) if state["Pid"] else 0.0,
    )


def _phase(state: Mapping[str, Any]) -> tuple[str, str]:
    """Our phase and a note, of a container's state."""
    if state["Paused"]:
        return "not ready", "paused"
    if state["Restarting"]:
        return "restarting", f"ended with status {state['ExitCode']}"
    if not state["Running"]:
        return "stopped", f"ended with status {state['ExitCode']}"
    health = state.get("Health") or {}
    status = health.get("Status", "healthy")
    if status == "healthy":
        return "ready", ""
    outputs = [str(entry["Output"]).strip() for entry in health.get("Log") or () if entry["ExitCode"]]
    return "not ready" if status == "unhealthy" else "starting", (outputs[-1].splitlines() or [""])[
        -1
    ] if outputs else ""


def _doors(named: Mapping[str, Mapping[str, Any]]) -> Addresses | None:
    ports = _published(named["proxy"]) if "proxy" in named else {}
    if not all(HTTP_PORT_OF[service] in ports for service in SERVICES):
        return None
    replicas = [_published(item) for name, item in named.items() if name.startswith("serving-")]
    http, registry_grpc = HTTP_PORT_OF["serving"], GRPC_PORT_OF["registry"]
    scheme = _scheme(named["proxy"])
    return Addresses(
        registry=url_of(ports[HTTP_PORT_OF["registry"]], scheme),
        ingest=url_of(ports[HTTP_PORT_OF["ingest"]], scheme),
        trainer=url_of(ports[HTTP_PORT_OF["trainer"]], scheme),
        serving=tuple(url_of(replica[http], scheme) for replica in replicas if http in replica),
        predictions=url_of(ports[http], scheme),
        registry_grpc=f"{HOST}:{ports[registry_grpc]}" if registry_grpc in ports else "",
    )


def _scheme(proxy: Mapping[str, Any]) -> str:
    """Of every door, as docker-compose.tls.yml says to the proxy. HEADRACE_CA_FILE verifies https:// doors."""
    return "https" if "PROXY_TLS=yes" in (proxy["Config"].get("Env") or ()) else "http"


def url_of(port: int, scheme: str = "http") -> str:
    return f"{scheme}://{HOST}:{port}"


def _published(item: Mapping[str, Any]) -> dict[int, int]:
    """{port in the container: port on this machine}; of a running one only."""
    ports: Mapping[str, Any] = (item.get("NetworkSettings") or {}).get("Ports") or {}
    return {
        int(inner.partition("/")[0]): int(bindings[0]["HostPort"])
        for inner, bindings in ports.items()
        if bindings and bindings[0].get("HostPort")
    }


def _epoch(text: str) -> float:
    """Of 2026-11-21T06:23:41.123456789Z."""
    return datetime.fromisoformat(re.sub(r"\.\d+", "", text).replace("Z", "+00:00")).timestamp()
