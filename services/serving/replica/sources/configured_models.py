"""Models from folders that a ModelServerConfig names: the configuration, its changes, and its folders.

Everything runs in the manager's thread except `fetch` and the two watches, which post into it. A configuration that is
refused changes nothing; `config_state` shows why until another is taken.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from common.errors import Conflict, HeadraceError, InvalidInput, NotFound
from protos import tfserving_config_pb2 as config_pb2
from services.serving.options.model_server_config import (
    ConfiguredModel,
    check_platforms,
    config_json,
    logging_notes,
    models_of,
    read_config_file,
    single_model_config,
)
from services.serving.options.settings import ServingSettings
from services.serving.replica.sources.folder_watch import FolderWatch, Found
from services.serving.replica.sources.signed_versions import VerifySignature, verify_folder
from services.serving.replica.sources.source import ModelSource
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import VersionKey, Wanted
from services.serving.wire.codes import Code
from services.serving.wire.keys import alias_target
from services.serving.wire.replica_state import ConfigState, ReloadResult, ServingState

logger = logging.getLogger(__name__)
_RESULTS_KEPT = 16
Models = Mapping[str, ConfiguredModel]


def starting_config(
    settings: ServingSettings, *, platforms: Collection[str], may_be_empty: bool = True
) -> config_pb2.ModelServerConfig:
    """The models that the settings name.

    Args:
        may_be_empty: an empty file serves nothing until it is filled, as at the start.

    Raises:
        InvalidInput: it is no configuration that this server can serve.
    """
    if not settings.model_config_file:
        config = single_model_config(settings.model_name, settings.model_base_path)
    else:
        config = read_config_file(Path(settings.model_config_file))
    if may_be_empty and config.WhichOneof("config") is None:
        config.model_config_list.SetInParent()
    models_of(config, platforms=platforms)
    return config


def check_first_labels(config: config_pb2.ModelServerConfig, *, allow_unavailable: bool) -> None:
    """Nothing is available before the start, so labels need leave to point at unavailable versions. Raises
    InvalidInput: a label of a configuration at the start, without that leave."""
    for model in config.model_config_list.config:
        for label, version in model.version_labels.items():
            if not allow_unavailable:
                raise InvalidInput(
                    f"{_not_available(model.name, version)}; label {label} at the start needs "
                    "--allow_version_labels_for_unavailable_models"
                )


def _not_available(model: str, version: int) -> str:
    return (
        f"Request to assign label to version {version} of model {model}, which is not currently available for inference"
    )


@dataclass(frozen=True)
class _Waiting:
    """A reload that is answered when its new models are there and its labels answer."""

    reload_id: int
    models: frozenset[str]
    labels: Mapping[tuple[str, str], int]
    """{(model, target): version}."""


class ConfiguredModels(ModelSource):
    """`post` runs a function in the manager's thread, `on_wanted` is called there. Nothing in the user's folders
    is cleaned; their faults are in `config_state`."""

    name = "folders"

    def __init__(
        self,
        settings: ServingSettings,
        *,
        platforms: Collection[str],
        verify_signature: VerifySignature | None = None,
        post: Callable[[Callable[[], None]], None],
        on_wanted: Callable[[Wanted], None],
    ) -> None:
        self._settings = settings
        self._platforms = platforms
        self._verify_signature = verify_signature
        self._post = post
        self._on_wanted = on_wanted
        self._folders = FolderWatch(
            poll_seconds=settings.file_system_poll_wait_seconds,
            mirrors_dir=settings.data_dir.absolute() / (settings.replica or "replica") / "mirrors",
            on_found=lambda found: post(lambda: self._on_found(found)),
        )
        self._models: Models = {}
        self._found = Found({}, {})
        self._is_searched = settings.file_system_poll_wait_seconds < 0
        self._settled_by = 0.0
        self._error = ""
        self._applied_at = 0.0
        self._applied_text = ""
        self._is_from_request = False
        self._config_json: Mapping[str, Any] = {}
        self._notes: Mapping[str, str] = {}
        self._available: frozenset[VersionKey] = frozenset()
        self._cold: frozenset[VersionKey] = frozenset()
        """Those of them that a request has loaded."""
        self._waiting: list[_Waiting] = []
        self._results: tuple[ReloadResult, ...] = ()
        self._stop = threading.Event()

    # ModelSource

    def start(self) -> None:
        self._settled_by = time.monotonic() + self._settings.load_timeout_seconds
        self._read_file(is_first=True)
        self._folders.start()  # Not before it has folders: its first finding decides when the replica is ready.
        if self._settings.model_config_file_poll_wait_seconds:
            threading.Thread(target=self._watch_file, name="config-watch", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self._folders.stop()

    def reason(self) -> str:
        if not self._is_searched:
            return "the folders were not searched yet"
        if not self._found.is_settled and time.monotonic() < self._settled_by:
            return "; ".join(f"{model}: {problem}" for model, problem in sorted(self._found.problems.items()))
        return ""

    def fetch(self, model: str, version: int) -> Path:
        directory = self._found.directories.get((model, version))
        if directory is None or not directory.is_dir():
            raise NotFound(f"the folder of version {version} of {model} is gone")
        if self._verify_signature:
            verify_folder(self._verify_signature, model, version, directory)
        return directory

    def platform(self, model: str) -> str:
        return self._models[model].platform if model in self._models else ""

    def follow(self, slots: Collection[VersionSlot]) -> None:
        self._available = frozenset(
            (s.model, s.version) for s in slots if s.state is ServingState.AVAILABLE or s.is_cold
        )
        self._cold = frozenset((s.model, s.version) for s in slots if s.is_cold)
        failed = [slot for slot in slots if slot.state is ServingState.END and slot.error_code and not slot.is_dropped]
        self._folders.note_failed({(slot.model, slot.version) for slot in failed})
        if self._waiting:
            readers: dict[tuple[str, str], set[int]] = {}
            for slot in slots:
                for target in slot.targets_read():
                    readers.setdefault((slot.model, target), set()).add(slot.version)
            self._answer_waiting({slot.model: slot.error_message for slot in failed}, readers)

    def config_state(self) -> ConfigState:
        return ConfigState(
            config=self._config_json,
            error=self._error,
            problems=self._problems(),
            applied_at=self._applied_at,
            is_from_request=self._is_from_request,
            reloads=self._results,
        )

    def _problems(self) -> Mapping[str, str]:
        """Of folders and of the configuration, in a sentence per model."""
        both = (self._found.problems, self._notes)
        return {name: "; ".join(p[name] for p in both if name in p) for name in {**both[0], **both[1]}}

    # The configuration

    def reload(self, reload_id: int, config: bytes, *, is_restored: bool) -> None:
        """Takes a serialized ModelServerConfig in place of the present; `config_state` shows the result.

        Args:
            is_restored: it was served before this manager was started, so its labels need no available versions.
        """
        before = self._models
        try:
            self._apply(_parsed(config), check_labels=not is_restored)
        except HeadraceError as error:
            self._refuse("HandleReloadConfigRequest", error)
            code = Code.FAILED_PRECONDITION if isinstance(error, Conflict) else Code.INVALID_ARGUMENT
            self._finish(ReloadResult(reload_id, code, error.message, is_applied=False))
            return
        self._is_from_request = True
        labels = {
            (name, alias_target(label)): version
            for name, model in self._models.items()
            for label, version in model.labels.items()
        }
        self._waiting.append(_Waiting(reload_id, frozenset(self._models) - frozenset(before), labels))

    def _read_file(self, *, is_first: bool = False) -> None:
        text = self._file_text()
        if text == self._applied_text and not is_first:
            return
        try:
            config = starting_config(self._settings, platforms=self._platforms, may_be_empty=is_first)
            self._apply(config, check_labels=not is_first)
        except HeadraceError as error:
            self._refuse(self._settings.model_config_file or "model_base_path", error)
            return
        self._applied_text, self._is_from_request = text, False

    def _watch_file(self) -> None:
        while not self._stop.wait(self._settings.model_config_file_poll_wait_seconds):
            self._post(self._read_file)

    def _file_text(self) -> str:
        try:
            return Path(self._settings.model_config_file).read_text() if self._settings.model_config_file else ""
        except (OSError, UnicodeDecodeError):
            return "\0"  # Not the applied text; reading it again shows the fault.

    def _apply(self, config: config_pb2.ModelServerConfig, *, check_labels: bool) -> None:
        models = models_of(config, platforms=self._platforms)
        check_platforms(models, self._models)
        if check_labels:
            self._check_labels(models)
        self._config_json, self._models = config_json(config), models
        self._notes = {} if self._settings.request_log else logging_notes(config)
        for name, note in self._notes.items():
            logger.warning("a model's configuration", extra={"model": name, "problem": note})
        self._error, self._applied_at = "", time.time()
        logger.info("configured", extra={"models": ", ".join(sorted(models))})
        self._folders.watch(models)
        self._publish()

    def _check_labels(self, models: Models) -> None:
        """Raises Conflict for a label on a version that is not available, unless that is allowed."""
        for name, model in models.items():
            known = self._models[name].labels if name in self._models else {}
            for label, version in model.labels.items():
                is_free = known.get(label, version) == version
                if self._settings.allow_version_labels_for_unavailable_models and is_free:
                    continue
                if (name, version) not in self._available:
                    raise Conflict(_not_available(name, version))

    def _refuse(self, origin: str, error: HeadraceError) -> None:
        text = f"{origin}: {error.message}"
        if text != self._error:
            logger.error("a configuration was refused; the old configuration stays", extra={"reason": text})
        self._error = text

    # findings

    def _on_found(self, found: Found) -> None:
        self._found, self._is_searched = found, True
        self._publish()

    def _publish(self) -> None:
        self._on_wanted(
            Wanted(
                models={name: model.labels for name, model in self._models.items()},
                versions={name: self._found.versions.get(name, ()) for name in self._models},
            )
        )

    def _answer_waiting(self, failures: Mapping[str, str], readers: Mapping[tuple[str, str], set[int]]) -> None:
        """failures: {model: reason}; readers: which versions answer, by model and target."""
        available = {model for model, _ in self._available}
        for waiting in list(self._waiting):
            gone = dict.fromkeys(waiting.models - set(self._models), "it was taken out of the configuration")
            failed = gone | {model: failures[model] for model in waiting.models if model in failures}
            if not waiting.models <= available | set(failed) or not self._answers(waiting.labels, readers):
                continue
            self._waiting.remove(waiting)
            failed = {model: reason for model, reason in failed.items() if model not in available}
            if not failed:
                self._finish(ReloadResult(waiting.reload_id))
                continue
            listed = ", ".join(f"{model}: {reason}" for model, reason in sorted(failed.items()))
            message = f"{len(failed)} model(s) did not become available: {{{listed}}}"
            self._finish(ReloadResult(waiting.reload_id, Code.UNKNOWN, message))

    def _answers(self, labels: Mapping[tuple[str, str], int], readers: Mapping[tuple[str, str], set[int]]) -> bool:
        """Whether the labels of versions that are available answer, as far as they are still wanted."""
        return all(
            readers.get((model, target)) == {version}
            for (model, target), version in labels.items()
            if (model, version) in self._available - self._cold and self._labels_of(model).get(target) == version
        )

    def _labels_of(self, model: str) -> dict[str, int]:
        """{target: version}."""
        labels = self._models[model].labels if model in self._models else {}
        return {alias_target(label): version for label, version in labels.items()}

    def _finish(self, result: ReloadResult) -> None:
        self._results = (*self._results, result)[-_RESULTS_KEPT:]


def _parsed(config: bytes) -> config_pb2.ModelServerConfig:
    try:
        return config_pb2.ModelServerConfig.FromString(config)
    except DecodeError as error:
        raise InvalidInput(f"the request holds no ModelServerConfig: {error}") from error
