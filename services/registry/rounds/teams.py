"""Which trainers compute a round together. In memory: after a restart members and chiefs fill it again.

A team lives as long as the lease under which it was formed, and as its members keep reporting. It never
changes: after each end the round goes on from its resume point with another team. Only the team of an asynchronous
round, whose steps wait for no worker, goes on without members that are lost.
"""

import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from common.errors import InvalidInput, Overloaded
from common.registry.catalog import Lease
from common.registry.teams import AGAIN_SECONDS, ALONE_SECONDS, OFFER_SECONDS, Membership, Offer, Orders, TeamState

MAX_OFFERS = 1000
MAX_ADDRESSES = 64
_MAX_TEXT = 256
_ADOPT_SECONDS = 20.0
"""For this long after a start, members of unknown teams go on: their chiefs will report the teams."""
_LATELY_SECONDS = 60.0
"""Others may compute with a trainer that was heard of since."""
IsHeld = Callable[[Lease], bool]


@dataclass
class _Team:
    state: TeamState
    lease: Lease
    ranks: dict[str, int]
    """By member: the rank of its first process."""
    since: float
    confirmed: set[str] = field(default_factory=set)
    """Members that have confirmed that they compute for it."""
    lost: str = ""

    def lose(self, holder: str, reason: str) -> None:
        if dict(self.lease.round.plan.configuration.get("training", {})).get("asynchronous"):
            del self.ranks[holder]
            return
        self.lost = f"trainer {holder}: {reason}"


@dataclass(frozen=True)
class _Heard:
    offer: Offer
    at: float


class Teams:
    """Thread-safe. `is_held`: whether the lease still holds; called while nothing is locked here."""

    def __init__(self, clock: Callable[[], float], is_held: IsHeld) -> None:
        self._clock, self._is_held = clock, is_held
        self._started_at = clock()
        self._lock = threading.Lock()
        self._offers: dict[str, _Heard] = {}
        self._newest: tuple[tuple[str, float], ...] = ()
        """The two trainers heard of last, computing or free, and when."""
        self._teams: dict[str, _Team] = {}  # by round
        self._ended = deque[str](maxlen=MAX_OFFERS)

    def offer(self, offer: Offer, *, left: str = "") -> Orders:
        """A trainer is there, computing or free.

        Args:
            left: why it does not compute for `offer.team_id` any more; "" where it does, or has none.

        Raises:
            InvalidInput.
            Overloaded: too many trainers.
        """
        _check(offer)
        self._end_stale()
        now = self._clock()
        with self._lock:
            if offer.holder not in self._offers and len(self._offers) >= MAX_OFFERS:
                raise Overloaded(f"{MAX_OFFERS} trainers offer themselves already")
            self._offers[offer.holder] = _Heard(offer, now)
            self._note(offer.holder, now)
            is_alone = all(name == offer.holder or now - at > _LATELY_SECONDS for name, at in self._newest)
            return replace(self._orders(offer, left, now), next_seconds=ALONE_SECONDS if is_alone else AGAIN_SECONDS)

    def _orders(self, offer: Offer, left: str, now: float) -> Orders:
        team = self._team_of(offer.holder)
        if team is None:
            may_be_known = offer.team_id not in ("", *self._ended) and not left
            return Orders(goes_on=may_be_known and now - self._started_at < _ADOPT_SECONDS)
        if left or (offer.holder in team.confirmed and offer.team_id != team.state.team_id):
            team.lose(offer.holder, left or "it was started again")
            return Orders()
        if offer.team_id == team.state.team_id:
            team.confirmed.add(offer.holder)
            return Orders(goes_on=True)
        return Orders(membership=_membership(team, offer.holder))

    def _note(self, holder: str, now: float) -> None:
        self._newest = ((holder, now), *[newest for newest in self._newest if newest[0] != holder][:1])

    def form(self, lease: Lease, chief: Offer, *, most: int) -> TeamState:
        """A team of the chief and of those that are free, of at most this number of processes; without any, no team."""
        _check(chief)
        with self._lock:
            self._end(lease.round.round_id)
            self._offers.pop(chief.holder, None)
            self._note(chief.holder, self._clock())
            addresses, ranks = list(chief.addresses), dict[str, int]()
            for offer in self._free(chief):
                if len(addresses) < most:
                    ranks[offer.holder] = len(addresses)
                    addresses += offer.addresses[: most - len(addresses)]
            if not ranks:
                return self._situation(chief)
            state = TeamState(uuid.uuid4().hex, tuple(addresses), (chief.holder, *ranks))
            team = _Team(state, lease, ranks, self._clock())
            self._teams[lease.round.round_id] = team
            return self._situation(chief, team)

    def keep(self, lease: Lease, chief: Offer, known: TeamState) -> TeamState:
        """How the chief's team stands. `known`, as it was formed, is taken up where it is unknown here; a team that
        the chief no longer names has ended."""
        _check(chief)
        with self._lock:
            self._note(chief.holder, self._clock())
            if not known.team_id:
                self._end(lease.round.round_id)
            team = self._teams.get(lease.round.round_id)
            if known.team_id and (team is None or team.state.team_id != known.team_id):
                ranks = dict.fromkeys(known.members[1:], 0)
                since = max(self._clock(), self._started_at + _ADOPT_SECONDS - OFFER_SECONDS)
                team = _Team(known, lease, ranks, since, set(ranks))
                self._teams[lease.round.round_id] = team
            return self._situation(chief, team if known.team_id else None)

    def is_member(self, holder: str) -> bool:
        """A member leases no round."""
        self._end_stale()
        with self._lock:
            return self._team_of(holder) is not None

    def _end_stale(self) -> None:
        with self._lock:
            teams = list(self._teams.items())
        for round_id, team in teams:
            if not self._is_held(team.lease):
                with self._lock:
                    if self._teams.get(round_id) is team:
                        self._end(round_id)

    def _end(self, round_id: str) -> None:
        team = self._teams.pop(round_id, None)
        if team is not None:
            self._ended.append(team.state.team_id)

    def _team_of(self, holder: str) -> _Team | None:
        return next((team for team in self._teams.values() if holder in team.ranks and not team.lost), None)

    def _situation(self, chief: Offer, team: _Team | None = None) -> TeamState:
        others = self._others(chief)
        free = sum(len(offer.addresses) for offer in self._free(chief))
        known = sum(len(offer.addresses) for offer in others if not offer.is_leaving)
        if team is None:
            return TeamState(free=free, known=known)
        leaving = [offer.holder for offer in others if offer.is_leaving and offer.holder in team.ranks]
        return TeamState(
            team.state.team_id, team.state.addresses, team.state.members,
            free, known, lost=team.lost or self._silent(team), is_leaving=", ".join(leaving),
        )  # fmt: skip

    def _silent(self, team: _Team) -> str:
        now = self._clock()
        for holder in [*team.ranks]:
            heard = max(team.since, self._offers[holder].at if holder in self._offers else 0.0)
            if now - heard > OFFER_SECONDS:
                team.lose(holder, f"it has not been heard of for {now - heard:.0f} s")
        return team.lost

    def _free(self, chief: Offer) -> list[Offer]:
        others = self._others(chief)
        staying = (offer for offer in others if not offer.team_id and not offer.is_leaving)
        return [offer for offer in staying if not self._team_of(offer.holder)]

    def _others(self, chief: Offer) -> list[Offer]:
        """That the chief could compute with, in the group's order."""
        now = self._clock()
        self._offers = {name: heard for name, heard in self._offers.items() if now - heard.at <= OFFER_SECONDS}
        found = [heard.offer for heard in self._offers.values() if heard.offer.holder != chief.holder]
        alike = [offer for offer in found if (offer.group, offer.code_digest) == (chief.group, chief.code_digest)]
        return sorted(alike, key=lambda offer: (offer.index, offer.holder))


def _membership(team: _Team, holder: str) -> Membership:
    return Membership(team.state.team_id, team.lease, team.state.addresses, team.ranks[holder])


def _check(offer: Offer) -> None:
    for name, text in (("holder", offer.holder), ("group", offer.group), ("team_id", offer.team_id)):
        if len(text) > _MAX_TEXT or (name == "holder" and not text):
            raise InvalidInput(f"{name} must be a text of at most {_MAX_TEXT} characters, got {text[:50]!r}")
    if not 1 <= len(offer.addresses) <= MAX_ADDRESSES:
        raise InvalidInput(f"an offer has 1 to {MAX_ADDRESSES} addresses, got {len(offer.addresses)}")
    for address in offer.addresses:
        if not address or len(address) > _MAX_TEXT:
            raise InvalidInput(f"an address is host:port, got {address[:50]!r}")
