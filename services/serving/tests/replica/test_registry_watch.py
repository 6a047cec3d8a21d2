"""What a replica learns from the registry's watch: models as they come and go."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from common.errors import NotFound, Unavailable
from common.registry.catalog import Change, ChangeKind, Model
from services.serving.replica.sources.registry_source import RegistryWatch
from services.serving.replica.versions_wanted import Models
from services.serving.wire.replica_state import Split
from testing.waiting import wait_until


class _Registry:
    """Tells of one change of model m after the first look; what it is by then, the test has said before."""

    def __init__(self, before: Model | None, after: Model | None) -> None:
        self._before, self._after = before, after
        self._has_told = False

    def list_models(self) -> list[Model]:
        found = self._after if self._has_told else self._before
        return [] if found is None else [found]

    def get_model(self, name: str) -> Model:
        if self._after is None:
            raise NotFound(f"model {name} is not registered")
        return self._after

    def watch(self, since_revision: int = 0) -> Iterator[Change]:
        if self._has_told:
            raise Unavailable("the test is over")
        yield Change(1, ChangeKind.RESET, "", 0, "", 0.0)
        self._has_told = True
        yield Change(2, ChangeKind.MODEL, "m", 0, "", 0.0)


def _told(before: Model | None, after: Model | None) -> list[tuple[Models, Mapping[str, Split]]]:
    """What the replica was told, in order."""
    told: list[tuple[Models, Mapping[str, Split]]] = []
    watch = RegistryWatch(
        _Registry(before, after),
        on_models=lambda models, splits: told.append((models, splits)),
        on_away=lambda reason: None,
    )
    watch.start()
    wait_until(lambda: len(told) >= 2, "both looks")
    watch.stop()
    return told[:2]


def _seen(before: Model | None, after: Model | None) -> list[Models]:
    return [models for models, _ in _told(before, after)]


def test_an_archived_model_is_served_no_more_and_comes_back_when_it_is_restored() -> None:
    model = Model("m", "s", "d", 1.0, {"production": 3})
    archived = Model("m", "s", "d", 1.0, {"production": 3}, archived=True)
    assert _seen(model, archived) == [{"m": {"production": 3}}, {}]
    assert _seen(archived, model) == [{}, {"m": {"production": 3}}]


def test_a_model_that_is_measured_by_slices_has_its_inputs_logged_and_no_share() -> None:
    model = Model("m", "s", "d", 1.0, {"production": 3})
    assert [splits for _, splits in _told(model, replace(model, logs_inputs=True))] == [
        {}, {"m": Split(0, 0.0, "key", logs_inputs=True)},
    ]  # fmt: skip


def test_a_deleted_model_is_served_no_more() -> None:
    assert _seen(Model("m", "s", "d", 1.0, {"production": 3}), None) == [{"m": {"production": 3}}, {}]
