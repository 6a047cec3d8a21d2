"""Models from the registry: its watch names the versions, its files are kept on this replica's disk.

The registry's last state is kept there, too: a replica that starts while the registry is away serves the versions
that it has on disk, and shows since when the registry is silent (`notice`).
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from common.errors import NotFound, Unavailable
from common.process.lifecycle import Stop
from common.process.pace import Pace
from common.process.rpc_client import Authorization
from common.process.tls import Tls
from common.registry.catalog import Change, ChangeKind, Model
from common.registry.client import RegistryClient
from common.registry.follow import follow
from services.serving.replica.sources.signed_versions import VerifySignature
from services.serving.replica.sources.source import ModelSource
from services.serving.replica.sources.version_files import VersionFiles, read_signed, write_signed
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import Models, VersionKey, Wanted
from services.serving.wire.replica_state import Split

logger = logging.getLogger(__name__)
_LAST_HEARD = "last_said.json"
"""Below the data directory: {"models": {model: {alias: version}}, "splits": {model: fields of Split}, "heard_at": epoch
seconds}."""
_START_GRACE_SECONDS = 5.0
"""How long a replica that starts waits for a silent registry."""


class RegistrySource(ModelSource):
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
        verify_signature: VerifySignature | None,
        post: Callable[[Callable[[], None]], None],
        on_wanted: Callable[[Wanted], None],
        authorization: Authorization | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._client = RegistryClient(address, authorization=authorization, tls=tls)
        self._files = VersionFiles(data_dir, self._client, pace=pace, verify_signature=verify_signature)
        self._kept_versions = kept_versions
        self._served_models = served_models
        self._on_wanted = on_wanted
        self._watch = RegistryWatch(
            self._client,
            on_models=lambda models, splits: post(lambda: self._on_models(models, splits)),
            on_away=lambda reason: post(lambda: self._on_away(reason)),
        )
        self._reason = "the registry was not reached yet"
        self._notice = ""
        self._last_heard = data_dir / _LAST_HEARD
        self._known: tuple[Models, Mapping[str, Split]] | None = None
        self._heard_at = 0.0
        """Epoch seconds at which the served versions were the registry's, as far as is known."""
        self._waits_until = math.inf

    def start(self) -> None:
        self._waits_until = time.monotonic() + _START_GRACE_SECONDS
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()
        self._client.close()

    def reason(self) -> str:
        return self._reason

    def notice(self) -> str:
        return self._notice

    def fetched(self) -> Mapping[str, int]:
        return self._client.received()

    def fetch(self, model: str, version: int) -> Path:
        try:
            directory = self._files.fetch(model, version)
            self._files.touch(model, version)
        except OSError as error:
            raise Unavailable(f"cannot write version {version} of {model} to disk: {error}") from error
        return directory

    def clean(self, used: Collection[VersionKey]) -> None:
        try:
            self._files.clean(used=used, kept_versions=self._kept_versions)
        except OSError:
            logger.exception("cannot clean the versions on disk")

    def follow(self, slots: Collection[VersionSlot]) -> None:
        """A registry that neither answers nor refuses is away as well."""
        if self._known is None and not self._notice and time.monotonic() > self._waits_until:
            self._waits_until = math.inf
            self._on_away(f"the registry has not answered for {_START_GRACE_SECONDS:g} s")

    def _on_models(self, models: Models, splits: Mapping[str, Split]) -> None:
        self._reason, self._notice, self._heard_at = "", "", time.time()
        if (models, splits) != self._known:
            self._known = (models, splits)
            self._keep(models, splits)
        self._on_wanted(Wanted(models, served_models=tuple(self._served_models), splits=splits))

    def _on_away(self, reason: str) -> None:
        """Served versions stay. A replica that has just started takes the registry's last state and the versions on
        disk; only a replica that never heard of any model is not ready."""
        if self._known is None and not self._notice:
            self._reason = reason
            self._serve_last_heard()
        elif self._known is not None and not self._notice:
            self._heard_at = time.time()
        if self._heard_at:
            as_of = datetime.fromtimestamp(self._heard_at, UTC).isoformat(timespec="seconds")
            self._notice = f"registry away, as of {as_of}: {reason}"

    def _keep(self, models: Models, splits: Mapping[str, Split]) -> None:
        document = {"models": models, "splits": {model: asdict(split) for model, split in splits.items()}}
        try:
            write_signed(self._last_heard, {**document, "heard_at": self._heard_at})
        except OSError as error:
            logger.warning("cannot keep the registry's state", extra={"reason": str(error)})

    def _serve_last_heard(self) -> None:
        document = read_signed(self._last_heard)
        if document is None:
            return
        models = {
            model: {alias: version for alias, version in aliases.items() if self._files.holds(model, version)}
            for model, aliases in document["models"].items()
        }
        splits = {model: Split(**split) for model, split in document.get("splits", {}).items()}
        logger.warning("the registry is away; serving its last state", extra={"models": sorted(models)})
        self._reason, self._heard_at = "", float(document["heard_at"])
        self._on_wanted(Wanted(models, served_models=tuple(self._served_models), splits=splits))


class Registry(Protocol):
    """The watch's calls of the registry."""

    def list_models(self) -> list[Model]: ...

    def get_model(self, name: str) -> Model: ...

    def watch(self, since_revision: int = 0) -> Iterator[Change]: ...


class RegistryWatch:
    """A thread that calls `on_models` with everything it knows after each change and when the registry is back, and
    `on_away` with the reason."""

    def __init__(
        self,
        registry: Registry,
        *,
        on_models: Callable[[Models, Mapping[str, Split]], None],
        on_away: Callable[[str], None],
    ) -> None:
        self._registry = registry
        self._on_models = on_models
        self._on_away = on_away
        self._models: dict[str, Model] = {}
        self._stop = Stop()
        self._thread = threading.Thread(target=self._run, name="registry-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the thread may be in a call of its own, and ends with the process."""
        self._stop.request()

    def _run(self) -> None:
        follow(self._registry, self._follow, stop=self._stop, on_away=self._on_away)

    def _follow(self, change: Change) -> None:
        if change.kind is ChangeKind.RESET:
            self._models = {model.name: model for model in self._registry.list_models() if not model.archived}
            self._publish()
        if change.kind in (ChangeKind.MODEL, ChangeKind.ALIAS):
            try:
                model = self._registry.get_model(change.name)
            except NotFound:
                model = None
            if model is None or model.archived:
                self._models.pop(change.name, None)
            else:
                self._models[change.name] = model
            self._publish()

    def _publish(self) -> None:
        models = {name: dict(model.aliases) for name, model in self._models.items()}
        splits = {name: _split(model) for name, model in self._models.items() if model.canary or model.logs_inputs}
        self._on_models(models, splits)


def _split(model: Model) -> Split:
    canary = model.canary or {"version": 0, "share": 0.0, "by": "key"}
    logs_inputs = model.logs_inputs or bool(canary.get("slices"))
    return Split(canary["version"], canary["share"], canary["by"], logs_inputs)
