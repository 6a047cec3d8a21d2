"""Trainers that compute a round together, as the registry keeps them."""

from dataclasses import replace

import pytest

from common.errors import InvalidInput, Overloaded
from common.registry.catalog import Lease, Round, RoundPlan, RoundState
from common.registry.teams import AGAIN_SECONDS, ALONE_SECONDS, OFFER_SECONDS, Offer, Orders, TeamState
from services.registry.rounds import teams as rules
from services.registry.rounds.teams import Teams

_PLAN = RoundPlan(
    model="m", sequence=1, parent_version=0, stream="s", schema_version=1, ranges=(), definition_digest="d",
    configuration={}, code_digest="c", configuration_digest="e", seed=1,
    example_count=10, trigger="manual", last_event_at=0.0,
)  # fmt: skip
_LEASE = Lease(Round(round_id="r", plan=_PLAN, state=RoundState.RUNNING, planned_at=0.0), token=5, expires_at=1e9)


class _World:
    """Leases hold until `held` says otherwise."""

    def __init__(self) -> None:
        self.now, self.held = 1000.0, {5}
        self.teams = Teams(lambda: self.now, lambda lease: lease.token in self.held)


@pytest.fixture
def world() -> _World:
    return _World()


def _offer(name: str, *, processes: int = 1, **more: object) -> Offer:
    offer = Offer(name, "", 0, tuple(f"{name}:{1 + port}" for port in range(processes)), "code")
    return replace(offer, **more)  # type: ignore[arg-type]


def _formed(world: _World, *members: str) -> TeamState:
    for name in members:
        assert world.teams.offer(_offer(name)) == Orders()
    return world.teams.form(_LEASE, _offer("chief"), most=8)


def test_a_team_is_the_chief_and_those_that_are_free_up_to_the_shards(world: _World) -> None:
    for offer in (_offer("b", processes=2), _offer("a", processes=2), _offer("c"), _offer("chief")):
        world.teams.offer(offer)
    team = world.teams.form(_LEASE, _offer("chief", processes=2), most=5)
    assert team.members == ("chief", "a", "b")
    assert team.addresses == ("chief:1", "chief:2", "a:1", "a:2", "b:1"), "b has a process more than there are shards"
    told = world.teams.offer(_offer("b", processes=2)).membership
    assert told
    assert (told.rank, told.addresses, told.lease.round.round_id) == (4, team.addresses, "r")
    assert world.teams.offer(_offer("c")) == Orders()
    assert [world.teams.is_member(name) for name in ("a", "c", "chief")] == [True, False, False]


def test_only_trainers_of_the_same_group_and_code_come_together_in_the_groups_order(world: _World) -> None:
    for offer in (_offer("x"), _offer("y", group="g", index=2), _offer("z", group="g", index=1)):
        world.teams.offer(offer)
    world.teams.offer(_offer("old", group="g", code_digest="before"))
    team = world.teams.form(_LEASE, _offer("chief", group="g"), most=8)
    assert team.members == ("chief", "z", "y")


def test_a_team_ends_with_its_lease(world: _World) -> None:
    team = _formed(world, "a")
    at_work = _offer("a", team_id=team.team_id)
    assert world.teams.offer(at_work) == Orders(goes_on=True)
    world.now += 60  # beyond what a registry that has just started believes
    assert world.teams.offer(at_work) == Orders(goes_on=True)
    world.held.clear()
    assert world.teams.offer(at_work) == Orders()
    assert not world.teams.is_member("a")


@pytest.mark.parametrize(
    ("what", "lost"),
    [
        ("leaves", "trainer a: its process died"),
        ("restarts", "trainer a: it was started again"),
        ("is silent", "trainer a: it has not been heard of for 7 s"),
    ],
)
def test_a_chief_hears_who_was_lost(world: _World, what: str, lost: str) -> None:
    team = _formed(world, "a", "b")
    for name in ("a", "b"):
        assert world.teams.offer(_offer(name)).membership
        world.teams.offer(_offer(name, team_id=team.team_id))
    assert world.teams.keep(_LEASE, _offer("chief"), team).lost == ""
    if what == "leaves":
        world.teams.offer(_offer("a", team_id=team.team_id), left="its process died")
    elif what == "restarts":
        world.teams.offer(_offer("a"))
    else:
        world.now += OFFER_SECONDS + 1
        world.teams.offer(_offer("b", team_id=team.team_id))
    assert world.teams.keep(_LEASE, _offer("chief"), team).lost == lost
    assert not world.teams.is_member("b"), "a team that has lost one is none"
    assert not world.teams.offer(_offer("b", team_id=team.team_id)).membership


@pytest.mark.covers("dist-ps-async")
def test_an_asynchronous_rounds_team_goes_on_without_those_that_are_lost(world: _World) -> None:
    plan = replace(_PLAN, configuration={"training": {"asynchronous": {"workers": 4}}})
    lease = replace(_LEASE, round=replace(_LEASE.round, plan=plan))
    for name in ("a", "b", "c"):
        world.teams.offer(_offer(name))
    team = world.teams.form(lease, _offer("chief"), most=8)
    for name in ("a", "b", "c"):
        assert world.teams.offer(_offer(name)).membership
        world.teams.offer(_offer(name, team_id=team.team_id))
    world.teams.offer(_offer("a", team_id=team.team_id), left="its process died")
    world.now += OFFER_SECONDS + 1  # b is silent
    at_work = _offer("c", team_id=team.team_id)
    assert world.teams.offer(at_work) == Orders(goes_on=True)
    assert world.teams.keep(lease, _offer("chief"), team).lost == ""
    assert [world.teams.is_member(name) for name in ("a", "b", "c")] == [False, False, True]
    assert world.teams.offer(at_work) == Orders(goes_on=True)


def test_a_chief_hears_who_wants_to_leave_and_who_could_join(world: _World) -> None:
    team = _formed(world, "a")
    world.teams.offer(_offer("a", team_id=team.team_id, is_leaving=True))
    world.teams.offer(_offer("new", processes=3))
    found = world.teams.keep(_LEASE, _offer("chief"), team)
    assert (found.is_leaving, found.free, found.known) == ("a", 3, 3)
    assert world.teams.form(_LEASE, _offer("chief"), most=8).members == ("chief", "new"), "who leaves is not asked"


def test_a_restarted_registry_takes_up_what_chief_and_members_say(world: _World) -> None:
    team = _formed(world, "a")
    at_work = _offer("a", team_id=team.team_id)
    world.teams.offer(at_work)
    world.teams = Teams(lambda: world.now, lambda lease: lease.token in world.held)
    assert world.teams.offer(at_work) == Orders(goes_on=True), "until its chief has told of it"
    kept = world.teams.keep(_LEASE, _offer("chief"), team)
    assert (kept.team_id, kept.lost) == (team.team_id, "")
    world.now += OFFER_SECONDS + 1
    assert world.teams.keep(_LEASE, _offer("chief"), team).lost == "", "a member may take longer to come back"
    world.held.clear()
    assert world.teams.offer(at_work) == Orders(), "that one has ended"
    assert world.teams.offer(_offer("b", team_id="unknown")) == Orders(goes_on=True)
    world.now += 60
    assert world.teams.offer(_offer("b", team_id="unknown")) == Orders(), "nobody has told of it"


def test_a_trainer_alone_says_seldom_that_it_is_free(world: _World) -> None:
    assert world.teams.offer(_offer("a")).next_seconds == ALONE_SECONDS
    world.teams.form(_LEASE, _offer("chief"), most=1)
    assert world.teams.offer(_offer("a")).next_seconds == AGAIN_SECONDS, "it may be needed for the chief's round"
    world.now += 50
    world.teams.keep(_LEASE, _offer("chief"), TeamState())
    world.now += 50
    assert world.teams.offer(_offer("a")).next_seconds == AGAIN_SECONDS
    world.now += 11
    assert world.teams.offer(_offer("a")).next_seconds == ALONE_SECONDS
    assert world.teams.offer(_offer("b")).next_seconds == AGAIN_SECONDS


def test_offers_are_bounded_and_checked(world: _World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_OFFERS", 1)
    world.teams.offer(_offer("a"))
    with pytest.raises(Overloaded, match="1 trainers offer themselves already"):
        world.teams.offer(_offer("b"))
    with pytest.raises(InvalidInput, match="an offer has 1 to 64 addresses, got 0"):
        world.teams.offer(_offer("a", addresses=()))
    with pytest.raises(InvalidInput, match="holder must be a text"):
        world.teams.offer(_offer(""))
