"""Follows the registry: which models there are and where their aliases point. A registry that is away changes nothing;
the last state stays true until the next."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from common.errors import NotFound
from common.process.lifecycle import Stop
from common.registry.catalog import Change, ChangeKind, Model
from common.registry.follow import follow
from services.serving.replica.versions_wanted import Models
from services.serving.wire.replica_state import Split


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
