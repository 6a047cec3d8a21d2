"""Where a replica's models come from: a registry, or folders that a configuration names. All that the manager knows."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import VersionKey


class ModelSource(Protocol):
    """Publishes the versions to serve (`Wanted`) through a callback, in the manager's thread."""

    name: str
    """As the readiness page calls it."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def reason(self) -> str:
        """Why it does not know the models yet; "" once it does."""
        ...

    def notice(self) -> str:
        """A remark on the source for the status that stops nothing; "" for none."""
        return ""

    def fetched(self) -> Mapping[str, int]:
        """Bytes that came so far, by kind, as ReplicaState has them."""
        return {}

    def fetch(self, model: str, version: int) -> Path:
        """The folder of a version's files on this machine; in any thread, may take long.

        Raises:
            NotFound: the version is gone.
            DataLoss: its files are damaged.
            Unavailable: they cannot be had now.
        """
        ...

    def platform(self, model: str) -> str:
        """The plugin that the model's configuration names; "" where it names none."""
        return ""

    def clean(self, used: Collection[VersionKey]) -> None:
        """Called in any thread when a version was unloaded: unused files may go."""
        return

    def follow(self, slots: Collection[VersionSlot]) -> None:
        """Called several times a second with the versions as they are now."""
        ...
