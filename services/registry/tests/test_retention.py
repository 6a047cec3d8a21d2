"""Retention: of older versions one an hour keeps its files, then one a day; never thinned is what something needs."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from common.definition.retention import Retention, parse_retention
from common.errors import Conflict, InvalidInput
from common.registry.catalog import ThinnedVersions, VersionStatus
from services.registry.catalog import Catalog
from services.registry.metrics import CatalogMetrics
from services.registry.settings import RegistrySettings
from services.registry.tests.building import (
    NEWEST_ONLY,
    Clock,
    definition,
    lease,
    new_catalog,
    next_plan,
    publish,
    report_log,
)
from services.registry.versions.retention import Row, due

DAY = 24 * 3600.0


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """At the beginning of a day of the file system's time, since a file's grace is counted from when it was stored."""
    probe = tmp_path / "probe"
    probe.touch()
    return Clock((probe.stat().st_mtime // DAY + 1) * DAY)


@pytest.fixture
def catalog(tmp_path: Path, clock: Clock) -> Catalog:
    return new_catalog(tmp_path, clock)


def thinned_in(catalog: Catalog, *, log_start: int = 0) -> list[int]:
    report_log(catalog, log_start=log_start)
    return [version for _, version in catalog.collect().archived_versions]


def newest_only(catalog: Catalog) -> None:
    catalog.register_model("m", stream="s", files=definition(retention=NEWEST_ONLY), by="test")


@pytest.mark.covers("ckpt-save")
def test_an_hour_and_then_a_day_is_thinned_to_its_newest_accepted_version() -> None:
    rows = [Row(1, True, 0.0), Row(2, True, 1800.0), Row(3, False, 3599.0), Row(4, True, 3600.0), Row(5, True, 9000.0)]

    def gone(now: float) -> dict[int, str]:
        return {one.version: one.rule for one in due(rows, Retention(), now)}

    assert gone(7199.0) == {}, "not all of the first hour is an hour old"
    assert gone(7200.0) == {1: "hourly", 3: "hourly"}
    assert gone(8 * DAY - 1) == {1: "hourly", 3: "hourly"}
    assert gone(8 * DAY) == {1: "daily", 2: "daily", 3: "daily", 4: "daily"}
    assert list(due(rows, Retention(keep_all_hours=None), 8 * DAY)) == []
    ended = list(due(rows, Retention(keep_daily_days=9.0), 10 * DAY))
    assert [(one.version, one.rule) for one in ended] == [(number, "none") for number in range(1, 6)]


@pytest.mark.covers("est-run-config")
def test_a_thinned_version_says_so_and_its_files_are_collected(catalog: Catalog, clock: Clock) -> None:
    for _ in range(5):
        publish(catalog)
    assert catalog.collect().archived_versions == (), "no trainer has said where the log begins"
    clock.pass_seconds(2 * 3600.0)
    files = catalog.get_version("m", 1).files
    assert thinned_in(catalog) == [1, 2, 3]
    found = catalog.get_version("m", 2)
    assert (found.status, found.thinned_at, found.thinned_by) == (VersionStatus.ARCHIVED, clock.now, "hourly")
    assert (found.files, found.weights_digest) == ((), "digest-of-weights")
    assert set(catalog.blobs.missing([file.digest for file in files])) == {file.digest for file in files}
    assert all(not catalog.blobs.missing([file.digest]) for file in catalog.get_version("m", 4).files)
    assert catalog.thinned("m") == [ThinnedVersions("hourly", 3, 1, 3, clock.now)]
    (entry,) = catalog.history(model="m", action="thin")
    assert (entry.by, entry.detail, entry.reason) == (
        "registry", "3 versions, 1 to 3", "retention: one version an hour stays",
    )  # fmt: skip
    metrics = CollectorRegistry()
    metrics.register(CatalogMetrics(catalog))
    assert b'headrace_model_thinned_versions_total{model="m",rule="hourly"} 3.0' in generate_latest(metrics)
    assert thinned_in(catalog) == []
    with pytest.raises(Conflict, match="version 3 of m is archived"):
        catalog.set_alias("m", "shadow", 3, by="ada", reason="")
    assert catalog.observed.account("m")["examples"]["trained"] == 4500, "the account knows them yet"


def test_rejected_rounds_do_not_thin_the_version_of_a_rollback(catalog: Catalog, clock: Clock) -> None:
    newest_only(catalog)
    for auc in (0.7, 0.7, 0.7, 0.1, 0.1, 0.1):
        publish(catalog, auc=auc)
    clock.pass_seconds(2 * DAY)
    assert thinned_in(catalog) == [1, 4, 5], "production is 3, a rollback leads to 2, 6 is the newest"
    assert catalog.rollback("m", by="ada", reason="3 is bad").aliases["production"] == 2


def test_a_version_with_an_alias_or_an_open_round_stays(catalog: Catalog, clock: Clock) -> None:
    newest_only(catalog)
    for _ in range(5):
        publish(catalog)
    catalog.set_alias("m", "shadow", 1, by="ada", reason="compare")
    catalog.plan_round(next_plan(catalog))
    catalog.set_alias("m", "production", 3, by="ada", reason="trial")
    clock.pass_seconds(2 * DAY)
    assert thinned_in(catalog) == [2, 4]
    assert lease(catalog).round.plan.parent_version == 5


def test_the_version_behind_which_the_log_begins_stays(catalog: Catalog, clock: Clock) -> None:
    newest_only(catalog)
    for _ in range(6):
        publish(catalog)
    clock.pass_seconds(2 * DAY)
    assert thinned_in(catalog, log_start=25) == [1, 2, 4], "3 ends at 30: 4 and what follows can be trained from it"
    assert thinned_in(catalog, log_start=35) == [3], "the events that 3 would need are gone, and 5 begins at 40"


def test_a_retention_that_contradicts_itself_or_has_unknown_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_retention({}) == Retention(1.0, 7.0, None, 1)
    for section, said in (
        ({"keep_hourly": 1}, "unknown keys"),
        ({"keep_newest": 0}, "keep_newest must be an integer from 1"),
        ({"keep_daily_days": 3}, "keep_daily_days 3 ends before"),
    ):
        with pytest.raises(InvalidInput, match=said):
            parse_retention(section)
    monkeypatch.setenv("REGISTRY_KEEP_VERSIONS", "3")
    with pytest.raises(InvalidInput, match=r"is `retention: \{keep_newest\}` of model.yaml now"):
        RegistrySettings.from_environment()
