"""The platform in containers: starts, watches and stops it as headrace/local/launcher.py does with one of processes.

Clients talk to the proxy, whose ports stay the same; each replica has its own port beside it, which the engine
chooses anew at every start, for questions that are put to one replica.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from common.errors import Conflict, InvalidInput, NotFound, Unavailable
from common.process.own_time import Usage
from headrace.client.credentials import read_token, token_for
from headrace.client.platform import Client
from headrace.compose.docker_cli import read_logs, run_compose, run_docker
from headrace.compose.state import ComposeState, state_of, url_of
from headrace.local.patience import LIMIT_SECONDS, Patience, lacks, wait_until_ready
from headrace.local.ports import check_free, find_free_offset, start_at_free_offset
from headrace.local.probes import probe
from headrace.places import GRPC_PORT_OF, HTTP_PORT_OF, SERVICES, PlatformState, ProcessState

MAX_CONTAINERS = 16
"""Of one service: as many as docker/haproxy/haproxy.cfg has places for."""
_PORT_VARIABLES: Mapping[str, int] = {
    **{f"PORT_{service.upper()}_HTTP": HTTP_PORT_OF[service] for service in SERVICES},
    **{f"PORT_{service.upper()}_GRPC": GRPC_PORT_OF[service] for service in SERVICES if service != "trainer"},
    "PORT_TENSORBOARD": 6006,
    "PORT_PROXY_STATE": 8404,
}
_POLL_SECONDS = 0.25
_STOP_SECONDS = "30"
"""How long a container may take to stop: the longest grace period that docker-compose.yml gives to one of ours."""
_FORGET_SECONDS = "1"
"""The same where its data goes, too."""
_LOG_SECONDS = 10.0
_ANONYMOUS = re.compile(r"[0-9a-f]{64}")


class ComposeLauncher:
    """One Compose project. Any number of launchers, in any process, may act on the same project."""

    look_seconds = 2.0
    """How often a caller that watches may call state()."""

    def __init__(
        self,
        folder: str | Path = ".",
        *,
        project: str = "",
        extra_files: Sequence[Path] = (),
        services: Sequence[str] = (),
        is_temporary: bool = False,
    ) -> None:
        """Nothing is asked or started yet.

        Args:
            folder: holds docker-compose.yml and, optionally, .env.
            project: the Compose project; "" for the project that COMPOSE_PROJECT_NAME names, else the folder's.
            extra_files: compose files on top of those that COMPOSE_FILE names.
            services: start these and what they depend on; all when empty.
            is_temporary: stopping it removes its data.
        """
        self._folder = Path(folder).absolute()
        self._settings = _read_env(self._folder / ".env") | dict(os.environ)
        self.project = project or self._settings.get("COMPOSE_PROJECT_NAME", "") or _default_project(self._folder)
        files = [self._settings.get("COMPOSE_FILE", "docker-compose.yml"), *map(str, extra_files)]
        self.environment = dict(os.environ) | {"COMPOSE_PROJECT_NAME": self.project, "COMPOSE_FILE": ":".join(files)}
        self._services = tuple(services)
        self._is_temporary = is_temporary
        self._is_mine = False
        self._token = ""

    def up(
        self,
        *,
        replicas: int = 1,
        trainers: int = 1,
        port_offset: int | None = 0,
        detached: bool = False,
        identity: bool = True,
        tls: bool = False,
    ) -> None:
        """Starts the platform and returns when its containers are started; wait_until_ready() does the rest.

        Args:
            port_offset: added to every port of the proxy; None takes a random one at which all are free.
            detached: the platform outlives this launcher; otherwise close() stops it.
            identity: it has that in any case, unless ACCESS_FILE is empty and ALLOW_ANONYMOUS is yes in .env.
            tls: of a local platform only.

        Raises:
            Conflict: the project runs already, or a port is taken. NotFound: there is no engine or no Compose.
            InvalidInput: there is no docker-compose.yml, or the number of replicas cannot be. Unavailable: it did not
            start; says why.
        """
        if tls:
            raise InvalidInput("--tls is for a platform on this machine; containers take docker-compose.tls.yml")
        if not (self._folder / "docker-compose.yml").is_file():
            raise InvalidInput(f"there is no docker-compose.yml in {self._folder}; run this in the project's folder")
        _check_count("serving replicas", replicas)
        _check_count("trainers", trainers)
        with contextlib.suppress(NotFound):
            if any(process.pid for process in self.state().processes):
                raise Conflict(f"compose project {self.project} runs already; stop it with `… --platform compose down`")
        self._is_mine = not detached
        start = partial(self._start, replicas, trainers)
        if port_offset is not None:
            start(port_offset)
        else:
            start_at_free_offset(start, lambda: find_free_offset(1, also=(6006, 8404)))

    def _start(self, replicas: int, trainers: int, offset: int) -> None:
        wanted = {name: int(self._settings.get(name, port)) + offset for name, port in _PORT_VARIABLES.items()}
        check_free({port: name for name, port in wanted.items()})
        self.environment |= {name: str(port) for name, port in wanted.items()}
        scales = ("--scale", f"serving={replicas}", "--scale", f"trainer={trainers}")
        self.compose("up", "--detach", *scales, *self._services)

    def compose(self, *arguments: str) -> None:
        """Any command of Compose on this project. Raises NotFound without Compose, Unavailable when it fails."""
        run_compose(self._folder, self.environment, *arguments)

    def wait_until_ready(
        self,
        *,
        timeout_seconds: float = LIMIT_SECONDS,
        names: Collection[str] = (),
        on_change: Callable[[PlatformState], None] | None = None,
    ) -> PlatformState:
        """Returns once every container that should run is healthy, or those of `names`.

        Args:
            timeout_seconds: in which none of them has changed; what they compute is not seen from here.

        Raises:
            Unavailable: the time is over; says which container lacks what.
        """

        def waiting_of(state: ComposeState, processes: Sequence[ProcessState]) -> list[ProcessState]:
            waiting = [process for process in processes if process.phase != "stopped" and not _is_ready(process)]
            behind = [service for service in SERVICES if any(one.name.startswith(service) for one in processes)]
            if waiting or all(probe(f"{state.door_of(service)}/readyz").is_ready for service in behind):
                return waiting
            return [process for process in state.processes if process.name == "proxy"]

        def fault(state: ComposeState, waiting: Sequence[ProcessState]) -> str:
            faults = "; ".join(_lack(process, state.ids[process.name]) for process in waiting)
            return f"{state.place} is not ready, and nothing has changed for {timeout_seconds:g} s: {faults}"

        patience = Patience(timeout_seconds, usage=lambda pid: Usage(0.0, wants=False))
        return wait_until_ready(
            self.state, waiting_of, patience, names=names, on_change=on_change, poll_seconds=_POLL_SECONDS, fault=fault
        )

    def state(self) -> ComposeState:
        """What the engine says now.

        Raises:
            NotFound: there is no such project. Unavailable: no engine answers.
        """
        return state_of(self.project)

    def client(self, *, timeout_seconds: float = 30.0, by: str = "", token: str | None = None) -> Client:
        state = self.state()
        if token is None:
            token = token_for(state.addresses.registry) or self._operators_token(state)
        return Client(state.addresses, timeout_seconds=timeout_seconds, by=by, token=token)

    def _operators_token(self, state: ComposeState) -> str:
        """The token that the platform's first start has made; "" where it has none."""
        if not self._token and state.access_id:
            with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Unavailable):
                run_docker("cp", f"{state.access_id}:/tokens/operator/token", f"{folder}/token")
                self._token = read_token(Path(folder) / "token")
        return self._token

    def down(self) -> None:
        """Stops and removes the containers; the data stays unless this is a temporary platform.

        Raises:
            NotFound: there is no such project. Unavailable: it failed; says why.
        """
        end = ("--timeout", _FORGET_SECONDS, "--volumes") if self._is_temporary else ("--timeout", _STOP_SECONDS)
        with self._without_leftovers():
            self.compose("down", *end)

    def close(self) -> None:
        """Stops what this launcher has started, if it is still there."""
        if self._is_mine:
            self._is_mine = False
            with contextlib.suppress(NotFound):
                self.down()

    def scale(self, replicas: int, *, service: str = "serving") -> None:
        """Changes how many containers a service has; returns when surplus containers are gone and new containers are
        started."""
        _check_count(f"containers of {service}", replicas)
        with self._without_leftovers():
            self.compose("up", "--detach", "--no-deps", "--no-recreate", "--scale", f"{service}={replicas}", service)

    @contextlib.contextmanager
    def _without_leftovers(self) -> Iterator[None]:
        """Removes the volumes that only containers removed meanwhile had: a trainer's, a replica's. Nothing can come
        upon them again, and Compose leaves them where they are."""
        before = _own_volumes(self.state())
        yield
        try:
            after = _own_volumes(self.state())
        except NotFound:
            after = frozenset()
        for volume in before - after:
            run_docker("volume", "rm", "--force", volume)


def _own_volumes(state: ComposeState) -> frozenset[str]:
    """Those without their own name."""
    return frozenset(volume for volume in state.volumes if _ANONYMOUS.fullmatch(volume))


def _lack(process: ProcessState, identity: str) -> str:
    """What is wrong with it, and the end of its log."""
    with read_logs(identity, lines=1, follow=False) as reader:
        log = reader.communicate(timeout=_LOG_SECONDS)[0].strip()
    return lacks(process) + (f", its log ends: {log}" if log else "")


def _is_ready(process: ProcessState) -> bool:
    """By its own door if it has any: the engine looks only every few seconds."""
    return process.phase == "ready" or (
        process.phase == "starting" and process.http_port > 0 and probe(f"{url_of(process.http_port)}/readyz").is_ready
    )


def _check_count(services: str, count: int) -> None:
    if not 1 <= count <= MAX_CONTAINERS:
        raise InvalidInput(f"a platform in containers has 1 to {MAX_CONTAINERS} {services}, not {count}")


def _read_env(path: Path) -> dict[str, str]:
    """The NAME=VALUE lines of Compose's .env; empty when there is none."""
    if not path.is_file():
        return {}
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}


def _default_project(folder: Path) -> str:
    """As both Compose releases name it: the folder's name, lower case, without what is neither letter nor digit."""
    return re.sub(r"[^-_a-z0-9]", "", folder.name.lower())
