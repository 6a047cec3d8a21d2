"""Follows the registry: which models there are and where their aliases point. A registry that is away changes nothing;
what was known stays true until it says otherwise."""

import logging
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from common.errors import HeadraceError, NotFound
from common.registry.catalog import Change, ChangeKind, Model
from services.serving.replica.versions_wanted import Models

logger = logging.getLogger(__name__)
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.1, 3.0
_BEYOND_ANY_REVISION = 2**62
"""The registry never came that far, so it answers with a RESET that names its newest revision."""


class Registry(Protocol):
    """What the watch asks of the registry."""

    def list_models(self) -> list[Model]: ...

    def get_model(self, name: str) -> Model: ...

    def watch(self, since_revision: int = 0) -> Iterator[Change]: ...


class RegistryWatch:
    """A thread that calls `on_models` with everything it knows after each change and when the registry is back, and
    `on_away` with the reason."""

    def __init__(
        self, registry: Registry, *, on_models: Callable[[Models], None], on_away: Callable[[str], None]
    ) -> None:
        self._registry = registry
        self._on_models = on_models
        self._on_away = on_away
        self._models: dict[str, Mapping[str, int]] = {}
        self._is_known = self._is_away = False
        self._revision = _BEYOND_ANY_REVISION
        self._stop = threading.Event()
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._thread = threading.Thread(target=self._run, name="registry-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the thread may be in a call of its own, and ends with the process."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for change in self._registry.watch(self._revision):
                    if self._stop.is_set():
                        return
                    self._follow(change)
                    self._revision = change.revision
                    self._retry_seconds = _FIRST_RETRY_SECONDS
                    if self._is_away and self._is_known:
                        self._is_away = False
                        self._on_models(dict(self._models))
            except HeadraceError as error:
                logger.warning("the registry is away", extra={"reason": error.message})
                self._is_away = True
                self._on_away(error.message)
            self._stop.wait(self._retry_seconds * random.uniform(0.5, 1.0))  # noqa: S311
            self._retry_seconds = min(self._retry_seconds * 2, _LONGEST_RETRY_SECONDS)

    def _follow(self, change: Change) -> None:
        if change.kind is ChangeKind.RESET:
            models = self._registry.list_models()
            self._models = {model.name: dict(model.aliases) for model in models if not model.archived}
            self._is_known = True
            self._on_models(dict(self._models))
        if change.kind in (ChangeKind.MODEL, ChangeKind.ALIAS):
            try:
                model = self._registry.get_model(change.name)
            except NotFound:
                model = None
            if model is None or model.archived:
                self._models.pop(change.name, None)
            else:
                self._models[change.name] = dict(model.aliases)
            self._on_models(dict(self._models))
