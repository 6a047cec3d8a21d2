"""Models from the registry: its watch says which versions, its files are kept on this replica's disk."""

import logging
from collections.abc import Callable, Collection
from pathlib import Path

from common.errors import Unavailable
from common.process.pace import Pace
from common.registry.client import RegistryClient
from services.serving.replica.sources.registry_watch import RegistryWatch
from services.serving.replica.sources.version_files import VersionFiles
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import Models, VersionKey, Wanted

logger = logging.getLogger(__name__)


class RegistrySource:
    """`post` runs a function in the manager's thread; `on_wanted` is called there."""

    name = "registry"

    def __init__(
        self,
        address: str,
        data_dir: Path,
        *,
        kept_versions: int,
        served_models: Collection[str],
        pace: Pace,
        post: Callable[[Callable[[], None]], None],
        on_wanted: Callable[[Wanted], None],
    ) -> None:
        self._client = RegistryClient(address)
        self._files = VersionFiles(data_dir, self._client, pace=pace)
        self._kept_versions = kept_versions
        self._served_models = served_models
        self._on_wanted = on_wanted
        self._watch = RegistryWatch(
            self._client,
            on_models=lambda models: post(lambda: self._on_models(models)),
            on_away=lambda reason: post(lambda: self._on_away(reason)),
        )
        self._reason = "the registry was not reached yet"
        self._is_known = False

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()
        self._client.close()

    def reason(self) -> str:
        return self._reason

    def fetch(self, model: str, version: int) -> Path:
        try:
            directory = self._files.fetch(model, version)
            self._files.touch(model, version)
        except OSError as error:
            raise Unavailable(f"cannot write version {version} of {model} to disk: {error}") from error
        return directory

    def platform(self, model: str) -> str:
        return ""

    def clean(self, used: Collection[VersionKey]) -> None:
        try:
            self._files.clean(used=used, kept_versions=self._kept_versions)
        except OSError:
            logger.exception("cannot clean the versions on disk")

    def follow(self, slots: Collection[VersionSlot]) -> None:
        """Nothing of it depends on what is loaded."""

    def _on_models(self, models: Models) -> None:
        self._reason, self._is_known = "", True
        self._on_wanted(Wanted(models, served_models=tuple(self._served_models)))

    def _on_away(self, reason: str) -> None:
        """What runs goes on; only a replica that never heard of any model is not ready."""
        if not self._is_known:
            self._reason = reason
