"""Garbage collection takes what nothing needs, and never what a version or a lease needs."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from common.errors import Conflict, HeadraceError, NotFound
from common.registry.catalog import FileEntry, VersionStatus
from services.registry.catalog import Catalog
from services.registry.store.folder import InFolder
from services.registry.tests.building import (
    LIMITS,
    NEWEST_ONLY,
    SCHEMA,
    Clock,
    definition,
    draft,
    lease,
    leased,
    new_catalog,
    next_plan,
    report_log,
    store,
)
from testing.saved_models import saved_model
from testing.waiting import DEADLINE_SECONDS

GRACE_SECONDS = 100.0


def _bytes_of(catalog: Catalog, file: FileEntry) -> bytes:
    return b"".join(catalog.blobs.read(file.digest))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    """Beginning at the file system's time, since grace is counted from when a file was stored."""
    probe = tmp_path / "probe"
    probe.touch()
    return Clock(probe.stat().st_mtime)


def test_a_file_that_nothing_needs_goes_after_the_grace_period(catalog: Catalog, clock: Clock) -> None:
    orphan = store(catalog, b"orphan")
    assert catalog.collect().removed_files == 0
    clock.pass_seconds(GRACE_SECONDS + 60)
    collected = catalog.collect()
    assert (collected.removed_files, collected.freed_bytes) == (1, 6)
    with pytest.raises(NotFound):
        _bytes_of(catalog, orphan)


class _SlowFolder(InFolder):
    """Its bytes go only when somebody has written to the catalog meanwhile."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.entered, self.leave = threading.Event(), threading.Event()

    def sweep(self, seconds: float) -> bool:
        self.entered.set()
        assert self.leave.wait(DEADLINE_SECONDS)
        return super().sweep(seconds)


def test_while_bytes_are_deleted_the_catalog_can_be_written_to(tmp_path: Path, clock: Clock) -> None:
    shelf = _SlowFolder(tmp_path)
    catalog = Catalog(tmp_path, LIMITS, clock=clock, shelf=shelf)
    orphan = store(catalog, b"orphan")
    clock.pass_seconds(GRACE_SECONDS + 60)
    collecting = threading.Thread(target=catalog.collect)
    collecting.start()
    assert shelf.entered.wait(DEADLINE_SECONDS)
    catalog.register_stream("s", json.dumps(SCHEMA))
    with pytest.raises(NotFound):
        _bytes_of(catalog, orphan)
    shelf.leave.set()
    collecting.join(DEADLINE_SECONDS)
    assert list((tmp_path / "blobs").rglob("*.gone")) == []
    catalog.close()


def test_asking_for_a_file_keeps_it_for_another_grace_period(catalog: Catalog, tmp_path: Path) -> None:
    orphan = store(catalog, b"orphan")
    path = tmp_path / "blobs" / orphan.digest[:2] / orphan.digest
    os.utime(path, (0, 0))
    assert catalog.blobs.missing([orphan.digest]) == []
    assert catalog.collect().removed_files == 0, "its uploader was told a moment ago that it need not send it"


def test_an_abandoned_upload_goes_too(catalog: Catalog, clock: Clock) -> None:
    with pytest.raises(HeadraceError):
        catalog.blobs.receive("0" * 64, 10, 0, [b"half"])
    assert catalog.collect().removed_uploads == 0
    clock.pass_seconds(GRACE_SECONDS + 60)
    assert catalog.collect().removed_uploads == 1
    assert catalog.blobs.received_bytes("0" * 64) == (0, False)


def test_a_resume_point_stays_as_long_as_its_round_is_open(catalog: Catalog, clock: Clock) -> None:
    held = leased(catalog)
    entry = store(catalog, b"half the weights")
    catalog.put_resume_point(held.round.round_id, held.token, state={}, files=[entry])
    catalog.release_round(held.round.round_id, held.token, reason="stopping")
    clock.pass_seconds(GRACE_SECONDS + 60)
    assert catalog.collect().removed_files == 0
    held = lease(catalog)
    catalog.fail_round(held.round.round_id, held.token, reason="broken")
    assert catalog.collect().removed_files == 1


class NothingNeededIsCollected(RuleBasedStateMachine):
    """Whatever happens in whatever order: every file of a kept version and of a resume point can be read."""

    contents = Bundle("contents")

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory(prefix="headrace-gc-")
        probe = Path(self.directory.name) / "probe"
        probe.touch()
        self.clock = Clock(probe.stat().st_mtime)
        self.catalog = new_catalog(Path(self.directory.name), self.clock)
        self.catalog.register_model("m", stream="s", files=definition(retention=NEWEST_ONLY), by="test")
        self.token = 0
        self.round_id = ""

    @rule(target=contents, content=st.binary(min_size=1, max_size=3))
    def upload(self, content: bytes) -> bytes:
        store(self.catalog, content)
        return content

    @initialize(target=contents)
    def begin(self) -> bytes:
        self.plan_and_lease()
        return b"first"

    @rule()
    def plan_and_lease(self) -> None:
        try:
            self.round_id = self.catalog.plan_round(next_plan(self.catalog)).round_id
        except Conflict:
            self.clock.pass_seconds(60.0)
        held = self.catalog.lease_round("a", ttl_seconds=10.0)
        self.token = held.token if held else 0

    @rule(content=contents)
    def save_resume_point(self, content: bytes) -> None:
        if self.token:
            entry = replace(store(self.catalog, content), path="state")
            self.catalog.put_resume_point(self.round_id, self.token, state={}, files=[entry])

    @rule(content=contents, auc=st.sampled_from([0.1, 0.7]))
    def register(self, content: bytes, auc: float) -> None:
        if self.token:
            files = {"checkpoint/a": content, "saved_model/saved_model.pb": saved_model()}
            made = draft(self.catalog, auc=auc, parent_auc=auc, contents=files)
            self.catalog.register_version(self.round_id, self.token, made)
            self.token = 0

    @rule()
    def fail(self) -> None:
        if self.token:
            self.catalog.fail_round(self.round_id, self.token, reason="broken")
            self.token = 0

    @rule(alias=st.sampled_from(["production", "shadow"]), version=st.integers(1, 4))
    def move(self, alias: str, version: int) -> None:
        try:
            self.catalog.set_alias("m", alias, version, by="ada", reason="")
        except (Conflict, NotFound):
            return

    @rule()
    def collect_much_later(self) -> None:
        self.clock.pass_seconds(24 * 3600.0)
        report_log(self.catalog)
        self.catalog.collect()

    @invariant()
    def every_needed_file_can_be_read(self) -> None:
        for listed in self.catalog.list_versions("m"):
            if listed.status is not VersionStatus.ARCHIVED:
                for file in self.catalog.get_version("m", listed.version).files:
                    assert len(_bytes_of(self.catalog, file)) == file.size_bytes
        for alias, version in self.catalog.get_model("m").aliases.items():
            assert self.catalog.get_version("m", version).status is not VersionStatus.ARCHIVED, alias

    @invariant()
    def the_resume_point_can_be_read(self) -> None:
        if self.token:
            held = self.catalog.renew_lease(self.round_id, self.token, ttl_seconds=10.0, progress={})
            for file in held.resume_point.files if held.resume_point else ():
                assert len(_bytes_of(self.catalog, file)) == file.size_bytes

    def teardown(self) -> None:
        self.catalog.close()
        self.directory.cleanup()


TestNothingNeededIsCollected = NothingNeededIsCollected.TestCase
TestNothingNeededIsCollected.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)
