"""One holder per round; whoever lost a round is refused, whatever they try."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import Conflict, InvalidInput, NotFound
from common.registry.catalog import Lease, RoundState
from services.registry.catalog import Catalog
from services.registry.rounds.leases import lease_number
from services.registry.tests.building import Clock, definition, draft, lease, next_plan, secret_of, store
from testing.rows import each_row
from testing.waiting import at_once

TTL_SECONDS = 10.0


@pytest.fixture
def planned(catalog: Catalog) -> str:
    return catalog.plan_round(next_plan(catalog)).round_id


def test_a_lease_names_its_holder_and_end(catalog: Catalog, planned: str, clock: Clock) -> None:
    held = lease(catalog, "a")
    assert (held.round.round_id, lease_number(held.token), held.expires_at) == (planned, 1, clock.now + TTL_SECONDS)
    assert (held.round.state, held.round.lease_holder, held.round.attempts) == (RoundState.RUNNING, "a", 1)
    assert held.resume_point is None


def test_another_gets_the_round_only_when_the_lease_has_run_out(catalog: Catalog, planned: str, clock: Clock) -> None:
    lease(catalog, "a")
    clock.pass_seconds(TTL_SECONDS - 0.001)
    assert catalog.lease_round("b", ttl_seconds=TTL_SECONDS) is None
    clock.pass_seconds(0.001)
    taken = lease(catalog, "b")
    assert (taken.round.round_id, lease_number(taken.token), taken.round.attempts) == (planned, 2, 2)


def test_a_holder_that_asks_again_gets_its_own_round_at_once_and_its_old_token_is_void(
    catalog: Catalog, planned: str
) -> None:
    before = lease(catalog, "a")
    again = lease(catalog, "a")
    assert (again.round.round_id, lease_number(again.token)) == (planned, 2)
    with pytest.raises(Conflict, match="lease 1 is stale"):
        catalog.renew_lease(planned, before.token, ttl_seconds=1.0, progress={})


@pytest.mark.parametrize("shown", ["", "a guess of 17 char", secret_of("b")])
def test_whoever_only_knows_a_holders_name_waits_for_the_lease_to_run_out(
    catalog: Catalog, planned: str, clock: Clock, shown: str
) -> None:
    held = lease(catalog, "a")
    assert catalog.lease_round("a", ttl_seconds=TTL_SECONDS, secret=shown) is None
    catalog.renew_lease(planned, held.token, ttl_seconds=TTL_SECONDS, progress={})
    clock.pass_seconds(TTL_SECONDS)
    taken = catalog.lease_round("a", ttl_seconds=TTL_SECONDS, secret=shown)
    assert taken is not None
    assert lease_number(taken.token) == 2


def test_a_lease_taken_without_a_secret_is_never_taken_back(catalog: Catalog, planned: str) -> None:
    assert catalog.lease_round("a", ttl_seconds=TTL_SECONDS) is not None
    for shown in ("", secret_of("a")):
        assert catalog.lease_round("a", ttl_seconds=TTL_SECONDS, secret=shown) is None


def test_a_holders_secret_is_stored_and_shown_nowhere(catalog: Catalog, planned: str, tmp_path: Path) -> None:
    shown = repr((lease(catalog, "a"), catalog.list_rounds("m", 1)))
    assert secret_of("a") not in shown
    assert hashlib.sha256(secret_of("a").encode()).hexdigest() not in shown
    assert not any(secret_of("a").encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(InvalidInput, match="16 to 256 characters, got 5") as refused:
        catalog.lease_round("b", ttl_seconds=TTL_SECONDS, secret="short")
    assert "short" not in refused.value.message


def test_the_oldest_round_of_the_models_asked_for_goes_first(catalog: Catalog, clock: Clock) -> None:
    for name in ("m2", "m3"):
        catalog.register_model(name, stream="s", files=definition(name), by="test")
    for name in ("m3", "m", "m2"):
        catalog.plan_round(next_plan(catalog, model=name))
        clock.pass_seconds(1.0)
    assert lease(catalog, "a", models=["m", "m2"]).round.plan.model == "m"
    assert lease(catalog, "b").round.plan.model == "m3"
    assert lease(catalog, "c").round.plan.model == "m2"


def test_a_renewal_prolongs_the_lease_and_stores_progress(catalog: Catalog, planned: str, clock: Clock) -> None:
    held = lease(catalog, "a")
    clock.pass_seconds(8.0)
    renewed = catalog.renew_lease(planned, held.token, ttl_seconds=TTL_SECONDS, progress={"examples": 5})
    assert (renewed.token, renewed.expires_at) == (held.token, clock.now + TTL_SECONDS)
    assert catalog.list_rounds("m", 1)[0].progress == {"examples": 5}
    clock.pass_seconds(8.0)
    assert catalog.lease_round("b", ttl_seconds=TTL_SECONDS) is None


def test_an_expired_lease_that_nobody_took_may_still_be_renewed(catalog: Catalog, planned: str, clock: Clock) -> None:
    held = lease(catalog, "a")
    clock.pass_seconds(TTL_SECONDS * 5)
    catalog.renew_lease(planned, held.token, ttl_seconds=TTL_SECONDS, progress={})
    assert catalog.lease_round("b", ttl_seconds=TTL_SECONDS) is None


STALE_CALLS: dict[str, Callable[[Catalog, Lease], object]] = {
    "renew": lambda c, held: c.renew_lease(held.round.round_id, held.token, ttl_seconds=1.0, progress={}),
    "release": lambda c, held: c.release_round(held.round.round_id, held.token, reason="stopping"),
    "fail": lambda c, held: c.fail_round(held.round.round_id, held.token, reason="broken"),
    "resume point": lambda c, held: c.put_resume_point(held.round.round_id, held.token, state={}, files=[]),
    "register": lambda c, held: c.register_version(held.round.round_id, held.token, draft(c)),
}


@pytest.mark.parametrize("call", STALE_CALLS.values(), ids=STALE_CALLS.keys())
def test_a_stale_holder_is_refused_and_changes_nothing(
    catalog: Catalog, planned: str, clock: Clock, call: Callable[[Catalog, Lease], object]
) -> None:
    stale = lease(catalog, "a")
    clock.pass_seconds(TTL_SECONDS)
    lease(catalog, "b")
    before = catalog.list_rounds("m", 1)
    with pytest.raises(Conflict, match="held by b under lease 2; lease 1 is stale"):
        call(catalog, stale)
    assert catalog.list_rounds("m", 1) == before
    assert catalog.list_versions("m") == []


@pytest.mark.parametrize("call", STALE_CALLS.values(), ids=STALE_CALLS.keys())
def test_whoever_guesses_a_token_is_refused_and_is_not_told_the_true_one(
    catalog: Catalog, planned: str, call: Callable[[Catalog, Lease], object]
) -> None:
    held = lease(catalog, "a")
    for guess in (0, 1, 2, 3, held.token + 1, held.token - 1, held.token >> 44 << 44, -1):
        with pytest.raises(Conflict, match="is not that of its lease") as refused:
            call(catalog, Lease(held.round, guess, held.expires_at))
        assert str(held.token) not in refused.value.message
    assert catalog.list_versions("m") == []


def test_tokens_grow_and_differ_from_round_to_round(catalog: Catalog, planned: str) -> None:
    tokens = [lease(catalog, "a").token for _ in range(3)]
    assert tokens == sorted(set(tokens))
    assert len({token % 2**44 for token in tokens}) == 3


@pytest.mark.parametrize("call", STALE_CALLS.values(), ids=STALE_CALLS.keys())
def test_nobody_holds_a_round_that_failed(
    catalog: Catalog, planned: str, call: Callable[[Catalog, Lease], object]
) -> None:
    stale = lease(catalog, "a")
    held = lease(catalog, "a")
    catalog.fail_round(planned, held.token, reason="broken")
    before = catalog.get_model("m")
    with pytest.raises(Conflict, match="is failed"):
        call(catalog, stale)
    assert catalog.get_model("m") == before


def test_a_released_round_may_be_leased_at_once_and_says_why(catalog: Catalog, planned: str) -> None:
    held = lease(catalog, "a")
    released = catalog.release_round(planned, held.token, reason="stopping")
    assert (released.state, released.reason, released.lease_holder) == (RoundState.PLANNED, "stopping", "")
    assert catalog.release_round(planned, held.token, reason="stopping") == released, "said again"
    assert lease_number(lease(catalog, "b").token) == 2
    with pytest.raises(Conflict, match="stale"):
        catalog.release_round(planned, held.token, reason="stopping")


def test_a_failure_reported_twice_counts_once(catalog: Catalog, planned: str) -> None:
    held = lease(catalog, "a")
    catalog.fail_round(planned, held.token, reason="broken")
    catalog.fail_round(planned, held.token, reason="broken")
    assert catalog.get_model("m").consecutive_failures == 1
    with pytest.raises(InvalidInput, match="without a reason"):
        catalog.fail_round(planned, held.token, reason="")


@pytest.mark.parametrize("holders", [["a", "b", "c", "d"], ["a", "a", "a", "a"]], ids=["taken over", "restarted"])
def test_a_round_that_is_lost_too_often_fails_with_the_reason(
    catalog: Catalog, planned: str, clock: Clock, holders: list[str]
) -> None:
    for holder in holders:
        lease(catalog, holder)
        clock.pass_seconds(TTL_SECONDS)
    assert catalog.lease_round("e", ttl_seconds=TTL_SECONDS) is None
    (failed,) = catalog.list_rounds("m", 1)
    assert failed.state is RoundState.FAILED
    assert failed.reason == f"given up after 4 lost leases, the last one held by {holders[-1]}"
    assert catalog.get_model("m").last_failure == failed.reason
    assert catalog.plan_round(next_plan(catalog)).plan.sequence == 2


def test_the_next_holder_gets_the_resume_point(catalog: Catalog, planned: str, clock: Clock) -> None:
    held = lease(catalog, "a")
    files = [store(catalog, b"half the weights")]
    catalog.put_resume_point(planned, held.token, state={"step": 3}, files=files)
    clock.pass_seconds(TTL_SECONDS)
    point = lease(catalog, "b").resume_point
    assert point is not None
    assert (point.state, list(point.files), point.saved_at) == ({"step": 3}, files, clock.now - TTL_SECONDS)


def test_a_resume_point_names_files_that_are_there(catalog: Catalog, planned: str) -> None:
    held = lease(catalog, "a")
    entry = store(catalog, b"bytes")
    with pytest.raises(InvalidInput, match="has not been uploaded"):
        catalog.put_resume_point(planned, held.token, state={}, files=[type(entry)("a", 5, "0" * 64)])
    with pytest.raises(InvalidInput, match="should have 6 bytes"):
        catalog.put_resume_point(planned, held.token, state={}, files=[type(entry)("a", 6, entry.digest)])


@each_row("ttl_seconds", [0.0, -1.0, 1e9, float("nan")])
def test_a_lease_needs_a_sensible_time_and_holder(catalog: Catalog, planned: str, ttl_seconds: float) -> None:
    with pytest.raises(InvalidInput, match="ttl_seconds"):
        catalog.lease_round("a", ttl_seconds=ttl_seconds)
    with pytest.raises(InvalidInput, match="holder"):
        catalog.lease_round("", ttl_seconds=1.0)
    with pytest.raises(NotFound, match="no round m-000009"):
        catalog.renew_lease("m-000009", 1, ttl_seconds=1.0, progress={})


def test_of_many_trainers_each_round_goes_to_one(catalog: Catalog) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in names:
        catalog.register_model(name, stream="s", files=definition(name), by="test")
        catalog.plan_round(next_plan(catalog, model=name))
    leased = at_once(10, lambda number: catalog.lease_round(f"trainer-{number}", ttl_seconds=TTL_SECONDS))
    assert sorted(held.round.plan.model for held in leased if held) == names
    assert leased.count(None) == 5
