"""Jobs for trainers: asked for once, taken by whoever is free, taken again from who is silent, never lost."""

from collections.abc import Callable
from typing import Any

import pytest

from common.errors import Conflict, HeadraceError, InvalidInput, NotFound, Overloaded
from common.registry.client import RegistryClient
from common.registry.jobs import JobKind, JobState
from services.registry.catalog import Catalog
from services.registry.rounds.jobs import MAX_ATTEMPTS, MAX_ENDED_BYTES, MAX_OPEN
from services.registry.tests import over_the_wire
from services.registry.tests.building import Clock, definition, publish
from testing.registry_server import RegistryServer

PROFILE = {"first_step": 2, "steps": 3}
FILE = {"path": "saved_model/saved_model.pb", "size_bytes": 1, "digest": "0" * 64}


def test_a_job_is_taken_by_one_kept_and_ended_and_stands_in_the_history(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    job = catalog.jobs.request("rebuild", model="m", version=1, by="ada", reason="audit")
    assert catalog.jobs.request("rebuild", model="m", version=1, by="bob", reason="too").job_id == job.job_id
    held = catalog.jobs.take("a", "rebuild", ttl_seconds=10.0)
    assert held is not None
    assert (held.job_id, held.holder, held.state) == (job.job_id, "a", JobState.RUNNING)
    assert catalog.jobs.take("b", "rebuild", ttl_seconds=10.0) is None
    clock.pass_seconds(8.0)
    catalog.jobs.report(job.job_id, "a", 1, state="running", progress={"stage": "train"}, ttl_seconds=10.0)
    clock.pass_seconds(8.0)
    assert catalog.jobs.take("b", "rebuild", ttl_seconds=10.0) is None, "it was kept"
    clock.pass_seconds(3.0)
    again = catalog.jobs.take("b", "rebuild", ttl_seconds=10.0)
    assert again is not None
    assert (again.job_id, again.attempts) == (job.job_id, 2)
    with pytest.raises(Conflict, match="no longer a's"):
        catalog.jobs.report(job.job_id, "a", 1, state="done", progress={}, ttl_seconds=10.0)
    told = {"equal": True, "sentence": "m@1 is equal"}
    catalog.jobs.report(job.job_id, "b", 2, state="done", progress=told, ttl_seconds=10.0)
    assert catalog.jobs.take("b", "rebuild", ttl_seconds=10.0) is None
    entries = [(entry.action, entry.by, entry.version, entry.reason) for entry in catalog.history(model="m", limit=2)]
    assert entries == [("rebuild_ended", "b", 1, "m@1 is equal"), ("rebuild", "ada", 1, "audit")]


def test_a_holder_gets_its_own_back_one_that_gives_it_back_loses_nothing_and_five_are_enough(catalog: Catalog) -> None:
    job = catalog.jobs.request("profile", model="m", options=PROFILE, by="ada", reason="")
    with pytest.raises(Conflict, match="to be traced already"):
        catalog.jobs.request("profile", model="m", options=PROFILE, by="ada", reason="")
    assert catalog.jobs.take("a", "profile", model="another", ttl_seconds=10.0) is None
    for attempt in range(1, MAX_ATTEMPTS):
        taken = catalog.jobs.take("a", "profile", model="m", ttl_seconds=10.0)
        assert taken is not None
        assert (taken.attempts, taken.options) == (attempt, PROFILE)
    catalog.jobs.report(job.job_id, "a", MAX_ATTEMPTS - 1, state="waiting", progress={}, ttl_seconds=10.0)
    assert catalog.jobs.take("b", "profile", model="m", ttl_seconds=10.0) is not None
    assert catalog.jobs.take("b", "profile", model="m", ttl_seconds=10.0) is None
    (failed,) = catalog.jobs.listed(model="m")
    assert (failed.state, "never ended" in failed.told["reason"]) == (JobState.FAILED, True)


def test_what_cannot_be_done_is_refused_and_jobs_are_bounded(catalog: Catalog) -> None:
    publish(catalog)
    catalog.register_model("young", stream="s", files=definition("young"), by="test")
    refused: dict[str, tuple[type[HeadraceError], dict[str, Any]]] = {
        "another kind": (InvalidInput, {"kind": "bake"}),
        "an unknown option": (InvalidInput, {"kind": "profile", "options": {**PROFILE, "colour": 1}}),
        "too many steps": (InvalidInput, {"kind": "profile", "options": {**PROFILE, "steps": 101}}),
        "nobody asks": (InvalidInput, {"kind": "rebuild", "version": 1, "by": " "}),
        "no such version": (NotFound, {"kind": "rebuild", "version": 9}),
        "no version": (NotFound, {"kind": "rebuild"}),
        "nothing to measure": (InvalidInput, {"kind": "measure"}),
        "nothing to measure by": (Conflict, {"kind": "measure", "model": "young", "options": {"files": [FILE]}}),
        "no files": (InvalidInput, {"kind": "measure", "options": {"files": "abc"}}),
        "half a file": (InvalidInput, {"kind": "measure", "options": {"files": [{"path": "a"}]}}),
        "a file that is a number": (InvalidInput, {"kind": "measure", "options": {"files": [FILE | {"path": 1}]}}),
        "a file elsewhere": (InvalidInput, {"kind": "measure", "options": {"files": [FILE | {"path": "../a"}]}}),
        "no such model": (NotFound, {"kind": "rebuild", "version": 1, "model": "nobody"}),
    }
    raised = {}
    for told, (_, fields) in refused.items():
        try:
            catalog.jobs.request(**{"model": "m", "by": "ada", "reason": "", **fields})
        except HeadraceError as error:
            raised[told] = type(error)
    assert raised == {told: kind for told, (kind, _) in refused.items()}
    with pytest.raises(NotFound, match="no job"):
        catalog.jobs.listed(job_id="nothing")
    for number in range(MAX_OPEN):
        catalog.register_model(f"m{number}", stream="s", files=definition(f"m{number}"), by="test")
        catalog.jobs.request("profile", model=f"m{number}", options=PROFILE, by="ada", reason="")
    with pytest.raises(Overloaded, match="wait for trainers already"):
        catalog.jobs.request("rebuild", model="m", version=1, by="ada", reason="")


def test_what_a_stranger_tells_of_a_job_is_refused_or_forgotten(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    for ttl_seconds in (float("nan"), float("inf"), 0.0, 1e300):
        with pytest.raises(InvalidInput, match="up to 86400 s"):
            catalog.jobs.report("j", "a", 1, state="running", progress={}, ttl_seconds=ttl_seconds)
    with pytest.raises(InvalidInput, match="job_id"):
        catalog.jobs.report("", "a", 1, state="done", progress={}, ttl_seconds=5.0)
    told = {"version": 1e300, "sentence": "x" * 1_000_000}
    for _ in range(MAX_ENDED_BYTES // 1_000_000 + 3):
        clock.pass_seconds(1.0)
        job = catalog.jobs.request("rebuild", model="m", version=1, by="ada", reason="")
        catalog.jobs.take("a", "rebuild", ttl_seconds=5.0)
        catalog.jobs.report(job.job_id, "a", 1, state="done", progress=told, ttl_seconds=5.0)
    kept = catalog.jobs.listed()
    assert sum(len(one.told["sentence"]) for one in kept) <= MAX_ENDED_BYTES
    assert job.job_id in {one.job_id for one in kept}
    traced = catalog.jobs.request("profile", model="m", options=PROFILE, by="ada", reason="")
    catalog.jobs.take("a", "profile", ttl_seconds=5.0)
    catalog.jobs.report(traced.job_id, "a", 1, state="done", progress={"version": 2**63}, ttl_seconds=5.0)
    assert catalog.history(model="m", limit=1)[0].version == 0, "a number that no version has"


def test_jobs_outlive_the_registry(registry: RegistryServer, connect: Callable[[], RegistryClient]) -> None:
    client = connect()
    over_the_wire.register_all(client)
    job = client.request_job(JobKind.PROFILE, "m", options=PROFILE, by="ada", reason="slow")
    registry.kill()
    registry.start()
    client = connect()
    assert client.jobs(job_id=job.job_id) == [job]
    assert client.take_job("a", JobKind.REBUILD, ttl_seconds=5.0) is None
    held = client.take_job("a", JobKind.PROFILE, model="m", ttl_seconds=5.0)
    assert held is not None
    ended = client.report_job(held, state=JobState.DONE, progress={"version": 3}, ttl_seconds=5.0)
    assert (ended.state, ended.told, ended.is_open) == (JobState.DONE, {"version": 3}, False)
