"""The configuration of a server with folders, and its changes. No runner: the test says what is available."""

import queue
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.errors import InvalidInput
from protos import tfserving_config_pb2 as config_pb2
from services.serving.options.model_server_config import single_model_config
from services.serving.options.platform_names import platform_names
from services.serving.options.settings import ServingSettings
from services.serving.replica.runner_handle import RunnerHandle
from services.serving.replica.sources.configured_models import ConfiguredModels, check_first_labels
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import Wanted
from services.serving.tests.replica.test_folder_watch import write_version
from services.serving.wire.channel import JsonChannel
from services.serving.wire.replica_state import ReloadResult, ServingState

_DEADLINE_SECONDS = 60.0


class Source:
    def __init__(self, **settings: object) -> None:
        self.events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.wanted = Wanted({})
        made = ServingSettings.model_validate({"file_system_poll_wait_seconds": 0.1, **settings})
        self.models = ConfiguredModels(
            made, platforms=platform_names(), post=self.events.put, on_wanted=self._on_wanted
        )
        self.models.start()

    def _on_wanted(self, wanted: Wanted) -> None:
        self.wanted = wanted

    def turn_until(self, holds: Callable[[], bool]) -> None:
        """Runs what is posted until it holds."""
        while not holds():
            self.events.get(timeout=_DEADLINE_SECONDS)()

    def follow(self, **available: int) -> None:
        self.models.follow(
            [VersionSlot(model, version, state=ServingState.AVAILABLE) for model, version in available.items()]
        )

    def reload(self, config: config_pb2.ModelServerConfig, reload_id: int = 1) -> None:
        self.models.reload(reload_id, config.SerializeToString(), is_restored=False)

    def result(self) -> ReloadResult:
        return self.models.config_state().reloads[-1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Source]]:
    started: list[Source] = []
    for model in "ab":
        write_version(tmp_path / model, "1")

    def begin(**settings: object) -> Source:
        started.append(Source(**({"model_name": "a", "model_base_path": str(tmp_path / "a")} | settings)))
        return started[-1]

    yield begin
    for source in started:
        source.models.stop()


def two(tmp_path: Path, **labels: int) -> config_pb2.ModelServerConfig:
    """Models a and b; the labels are a's."""
    config = single_model_config("a", str(tmp_path / "a"))
    config.model_config_list.config.extend(single_model_config("b", str(tmp_path / "b")).model_config_list.config)
    for label, version in labels.items():
        config.model_config_list.config[0].version_labels[label] = version
    return config


def test_a_model_is_wanted_when_it_was_found_and_only_then_is_the_source_known(start: Callable[..., Source]) -> None:
    source = start()
    assert source.models.reason() == "the folders were not searched yet"
    source.turn_until(lambda: source.wanted.versions == {"a": (1,)})
    assert source.models.reason() == ""
    assert source.models.fetch("a", 1).name == "1"
    assert source.models.platform("a") == "tensorflow"


def test_a_reload_is_answered_when_its_new_models_are_available(start: Callable[..., Source], tmp_path: Path) -> None:
    source = start()
    source.reload(two(tmp_path))
    assert source.models.config_state().reloads == ()
    source.turn_until(lambda: source.wanted.versions == {"a": (1,), "b": (1,)})
    source.follow(a=1)
    assert source.models.config_state().reloads == ()
    source.follow(a=1, b=1)
    assert source.result() == ReloadResult(1)
    assert source.models.config_state().is_from_request
    source.reload(single_model_config("a", str(tmp_path / "a")), reload_id=2)
    source.follow(a=1)
    assert source.result() == ReloadResult(2)
    assert source.wanted.versions == {"a": (1,)}


def test_a_reload_is_answered_when_its_labels_answer(start: Callable[..., Source], tmp_path: Path) -> None:
    source = start()
    source.follow(a=1)
    config = single_model_config("a", str(tmp_path / "a"))
    config.model_config_list.config[0].version_labels["stable"] = 1
    source.reload(config)
    source.follow(a=1)
    assert source.models.config_state().reloads == ()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = RunnerHandle(JsonChannel(ours), reading={"alias/stable": 1, "version/1": 1})
        source.models.follow([VersionSlot("a", 1, state=ServingState.AVAILABLE, runner=reader, is_ready=True)])
    assert source.result() == ReloadResult(1)


def test_a_reload_whose_model_cannot_be_loaded_says_so_and_holds(start: Callable[..., Source], tmp_path: Path) -> None:
    source = start()
    source.reload(two(tmp_path))
    failed = VersionSlot("b", 1, state=ServingState.END, error_code=3, error_message="it is broken")
    source.models.follow([VersionSlot("a", 1, state=ServingState.AVAILABLE), failed])
    assert source.result() == ReloadResult(1, 2, "1 model(s) did not become available: {b: it is broken}")
    assert set(source.wanted.models) == {"a", "b"}


def test_a_reload_that_another_one_undoes_is_answered(start: Callable[..., Source], tmp_path: Path) -> None:
    source = start()
    source.reload(two(tmp_path))
    source.reload(single_model_config("a", str(tmp_path / "a")), reload_id=2)
    source.follow(a=1)
    first = next(result for result in source.models.config_state().reloads if result.reload_id == 1)
    assert "b: it was taken out of the configuration" in first.message


@pytest.mark.covers("srv-version-policy")
def test_a_label_points_at_what_is_available_unless_new_labels_may_point_anywhere(
    start: Callable[..., Source], tmp_path: Path
) -> None:
    strict, free = start(), start(allow_version_labels_for_unavailable_models=True)
    for source in (strict, free):
        source.reload(two(tmp_path, stable=5))
    refused = strict.result()
    assert (refused.code, refused.is_applied) == (9, False)
    assert refused.message.startswith("Request to assign label to version 5 of model a, which is not currently")
    assert set(strict.wanted.models) == {"a"}
    assert free.wanted.models["a"] == {"stable": 5}
    free.reload(two(tmp_path, stable=6), reload_id=2)
    assert free.result().code == 9
    free.follow(a=6)
    free.reload(two(tmp_path, stable=6), reload_id=3)
    assert free.wanted.models["a"] == {"stable": 6}


@pytest.mark.covers("srv-version-policy")
def test_labels_at_the_start_need_leave(tmp_path: Path) -> None:
    config = two(tmp_path, stable=1)
    check_first_labels(config, allow_unavailable=True)
    with pytest.raises(InvalidInput, match="needs --allow_version_labels_for_unavailable_models"):
        check_first_labels(config, allow_unavailable=False)


@pytest.mark.covers("srv-multi-model")
def test_the_file_wins_again_when_it_changes_and_a_broken_one_is_shown(
    start: Callable[..., Source], tmp_path: Path
) -> None:
    file = tmp_path / "models.config"
    file.write_text(str(single_model_config("a", str(tmp_path / "a"))))
    source = start(model_config_file=str(file), model_config_file_poll_wait_seconds=0.1)
    source.reload(two(tmp_path))
    assert source.models.config_state().is_from_request
    file.write_text("nonsense")
    source.turn_until(lambda: "is not a ModelServerConfig" in source.models.config_state().error)
    assert set(source.wanted.models) == {"a", "b"}
    file.write_text("# being written\n")
    source.turn_until(lambda: "Only ModelConfigList" in source.models.config_state().error)
    assert set(source.wanted.models) == {"a", "b"}
    file.write_text(str(single_model_config("b", str(tmp_path / "b"))))
    source.turn_until(lambda: set(source.wanted.models) == {"b"})
    state = source.models.config_state()
    assert (state.error, state.is_from_request) == ("", False)
