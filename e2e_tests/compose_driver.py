"""The platform in containers, by headrace/compose/platform.py and, for what faults need, the engine's API.

Every platform is a Compose project of its own on free ports; closing it removes its containers and its data. What the
environment holds under TRAINER_, SERVING_, INGEST_ and REGISTRY_ is set in the containers of that service, as it is for
the processes of a local platform. Faults act on the host's process ids, so this needs to run as root on the engine's
machine.
"""

import contextlib
import io
import os
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path

import yaml
from docker.errors import APIError, DockerException
from docker.models.containers import Container
from docker.models.networks import Network

import docker
from e2e_tests.waiting import until
from headrace import Addresses, Client, Conflict, HeadraceError, Unavailable
from headrace.compose.platform import ComposeLauncher
from headrace.compose.state import ComposeState

SERVICES = ("registry", "ingest", "trainer", "serving")
_GRPC_PORT_OF = {"registry": 8700, "ingest": 8600, "serving": 8500}
_REPOSITORY = Path(__file__).parent.parent
_OF_COMPOSE = {"SERVING_NICE_LIMIT"}
"""Variables that look like a service's, but are docker-compose.yml's."""
_STOP_SECONDS = 60
_ENGINE_SECONDS = 90
_NEXT_RELEASE = "e2e-next-release"


class ComposePlatform:
    """Fills driver.Platform, and more for faults: pause, disconnect, stats, run_in. Names are those of
    headrace/compose: kafka, redis, proxy, registry, ingest, trainer, serving-0; further ones ingest-1, trainer-1,
    serving-1."""

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int = 1,
        trainers: int = 1,
        tensorboard: bool = False,
        extra_files: Sequence[Path] = (),
    ) -> None:
        """Starts a platform and returns when it is ready; `folder` keeps what is ours of it. `extra_files` are Compose
        files on top of the others.

        Raises:
            headrace.HeadraceError: there is no engine, an image is missing, or it did not get ready.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._data_dir = folder
        self._settings = folder / "settings.yml"
        self._tags: dict[str, str] = {}
        self._write_settings()
        self._services = ("proxy", "ingest", "trainer", "serving", *(["tensorboard"] if tensorboard else []))
        self._launcher = ComposeLauncher(
            _REPOSITORY,
            project=f"headrace-e2e-{secrets.token_hex(4)}",
            extra_files=(*extra_files, self._settings),
            services=self._services,
            is_temporary=True,
        )
        self._scales = {"serving": replicas, "trainer": trainers}
        try:
            self._engine = docker.from_env(timeout=_ENGINE_SECONDS)
        except DockerException as error:
            raise Unavailable(f"no container engine answers: {error}") from error
        try:
            self._launcher.up(replicas=replicas, trainers=trainers, port_offset=None)
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def project(self) -> str:
        return self._launcher.project

    @property
    def data_dir(self) -> Path:
        """Our own files only: the platform's data is in volumes."""
        return self._data_dir

    @property
    def event_log_dir(self) -> Path:
        raise Conflict("a platform in containers has its event log in Kafka")

    @property
    def addresses(self) -> Addresses:
        return self._state().addresses

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(process.name for process in self._state().processes)

    def client(self, *, timeout_seconds: float = 30.0) -> Client:
        """Through the proxy, whose ports stay; the replicas' own ports are those of now."""
        return self._launcher.client(timeout_seconds=timeout_seconds, by="e2e test")

    def grpc_port(self, name: str) -> int:
        """The proxy's, for the service."""
        inner = _GRPC_PORT_OF[name.partition("-")[0]]
        bindings = self.container("proxy").ports[f"{inner}/tcp"]
        if not bindings:
            raise Unavailable("the proxy does not run")
        return int(bindings[0]["HostPort"])

    def container(self, name: str) -> Container:
        """What the docker SDK has of it."""
        self._state().process(name)
        return self._engine.containers.get(self._state().ids[name])

    def pid(self, name: str) -> int:
        return self._state().process(name).pid

    def log_text(self, name: str) -> str:
        return bytes(self.container(name).logs()).decode(errors="replace")

    def run_in(self, name: str, *command: str) -> str:
        """What the command printed in the container.

        Raises:
            Conflict: its exit status was not 0.
        """
        status, output = self.container(name).exec_run(list(command))
        assert isinstance(output, bytes)
        told = output.decode(errors="replace")
        if status:
            raise Conflict(f"{command[0]} in {name} ended with status {status}: {told}")
        return told

    def kill(self, name: str) -> None:
        """By the process's id on the host: after `docker kill` the restart policy would not act."""
        pid = self.pid(name)
        if not pid:
            raise Conflict(f"{name} does not run")
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.pid(name) != pid, f"{name} ended")

    def pause(self, name: str) -> None:
        """Nothing in it runs until unpause(); its connections stay open."""
        self.container(name).pause()

    def unpause(self, name: str) -> None:
        self.container(name).unpause()

    def disconnect(self, name: str) -> None:
        """Cuts it off from the others, and from this machine; it goes on running."""
        self._network().disconnect(self.container(name), force=True)

    def connect(self, name: str) -> None:
        """Undoes disconnect()."""
        container = self.container(name)
        service = container.labels["com.docker.compose.service"]
        self._network().connect(container, aliases=[service, container.short_id])

    def stop(self, name: str) -> None:
        self.container(name).stop(timeout=_STOP_SECONDS)

    def start(self, name: str) -> None:
        self.container(name).start()
        self.wait_until_ready()

    def scale(self, service: str, count: int) -> None:
        """Returns when so many containers of the service are there and ready."""
        self._scales[service] = count
        self._launcher.scale(count, service=service)
        self.wait_until_ready()

    def upgrade(self, service: str) -> None:
        """One service to its next release, as docs/guide/containers.md tells it; the others stay as they are. Serving's
        replicas are replaced one after the other, so that one always answers."""
        self._make_next_release(service)
        self._tags[service] = _NEXT_RELEASE
        self._write_settings()
        if service == "serving":
            self._replace_serving()
        else:
            count = self._scales.get(service, 1)
            self._launcher.compose("up", "--detach", "--no-deps", "--scale", f"{service}={count}", service)
        self.wait_until_ready()

    def kill_everything(self) -> None:
        pids = [process.pid for process in self._state().processes if process.pid]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(
            lambda: not any(process.pid in pids for process in self._state().processes), "everything was started again"
        )
        self.wait_until_ready()

    def wait_until_ready(self, *, timeout_seconds: float = 120.0) -> None:
        self._launcher.wait_until_ready(timeout_seconds=timeout_seconds)

    def close(self) -> None:
        """Removes every container, network and volume of it; what is paused is let go first."""
        with contextlib.suppress(APIError, HeadraceError):
            for name in self.names:
                container = self.container(name)
                if container.status == "paused":
                    container.unpause()
        self._launcher.close()
        self._engine.close()

    def _state(self) -> ComposeState:
        return self._launcher.state()

    def _network(self) -> Network:
        return self._engine.networks.get(f"{self.project}_default")

    def _write_settings(self) -> None:
        """The compose file on top of the others: settings from the environment, images of services that moved on."""
        # Compose 1.29 takes no file without a service.
        services: dict[str, dict[str, object]] = {"registry": {"environment": {}}}
        for service in SERVICES:
            prefix = f"{service.upper()}_"
            mine = {
                key: value for key, value in os.environ.items() if key.startswith(prefix) and key not in _OF_COMPOSE
            }
            if mine:
                services.setdefault(service, {})["environment"] = mine
            if service in self._tags:
                services.setdefault(service, {})["image"] = f"headrace/{service}:{self._tags[service]}"
        self._settings.write_text(yaml.safe_dump({"services": services}))

    def _make_next_release(self, service: str) -> None:
        """An image of its own that does the same: another release would have other files in it."""
        recipe = f"FROM headrace/{service}:latest\nLABEL headrace.release=next\n"
        tag = f"headrace/{service}:{_NEXT_RELEASE}"
        self._engine.images.build(fileobj=io.BytesIO(recipe.encode()), tag=tag, rm=True, forcerm=True)

    def _replace_serving(self) -> None:
        old = [self.container(name) for name in self.names if name.startswith("serving-")]
        self._launcher.scale(2 * len(old))
        self.wait_until_ready()
        for container in old:
            container.stop(timeout=_STOP_SECONDS)
            container.remove(v=True)
