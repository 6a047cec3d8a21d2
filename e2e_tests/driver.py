"""What an end-to-end test may do to a platform, whatever the platform is made of."""

from pathlib import Path
from typing import Protocol

from headrace import Addresses, Client


class Platform(Protocol):
    """A running platform of a test's own. Names of its processes or containers: redis, registry, ingest, trainer,
    serving-0, ...; in containers kafka and proxy as well; trainer-1, ... where there are several.

    What does not happen in time raises headrace.Unavailable with the reason.
    """

    @property
    def data_dir(self) -> Path:
        """Everything that a local platform keeps."""

    @property
    def event_log_dir(self) -> Path:
        """The folder of the event log's segments, below data_dir; a local platform's only, else Conflict."""

    @property
    def addresses(self) -> Addresses:
        """The HTTP doors, as they are now."""

    @property
    def names(self) -> tuple[str, ...]:
        """The processes that there are, stopped ones too."""

    def client(self, *, timeout_seconds: float = 30.0) -> Client: ...

    def grpc_port(self, name: str) -> int: ...

    def pid(self, name: str) -> int:
        """0 while it does not run."""

    def log_text(self, name: str) -> str:
        """Everything that the process and those before it have logged."""

    def kill(self, name: str) -> None:
        """SIGKILL; the platform starts it again by itself. Returns when it is gone."""

    def pause(self, name: str) -> None:
        """Nothing in it runs until unpause(); its connections stay open."""

    def unpause(self, name: str) -> None: ...

    def disconnect(self, name: str) -> None:
        """Cuts it off the network; it goes on running. A local platform has none: Conflict."""

    def connect(self, name: str) -> None:
        """Undoes disconnect."""

    def stop(self, name: str) -> None:
        """Stops it as an operator would; it stays stopped. Returns when it has ended."""

    def start(self, name: str) -> None:
        """Undoes stop; returns when it is ready."""

    def scale(self, service: str, count: int) -> None:
        """Returns when so many of the service run and are ready. Local platforms scale serving and the trainer."""

    def upgrade(self, service: str) -> None:
        """Brings one service to its next release while the others go on; returns when it is ready."""

    def close(self) -> None:
        """Stops everything; a platform in containers takes its data along."""

    def kill_everything(self) -> None:
        """SIGKILL to every process at once, as a power cut would, and a start on the same data; returns when it is
        ready."""

    def wait_until_ready(self, *, timeout_seconds: float = 120.0) -> None:
        """Returns when every process that should run is ready."""
