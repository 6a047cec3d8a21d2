"""Trainers that compute one round together: what they and the registry say to each other about it.

The trainer that has the round's lease is the chief, the others are its members. A trainer without a round offers its
processes; the chief asks for a team out of the offered processes, and keeps it by asking again. An offer or a team that
is not repeated for OFFER_SECONDS has ended.
"""

from dataclasses import dataclass, field

from common.registry.catalog import Lease

OFFER_SECONDS = 6.0
"""A trainer that is silent for this long is lost to its team."""
AGAIN_SECONDS, ALONE_SECONDS = OFFER_SECONDS / 3, 15.0
"""How often a free trainer says that it is there; where no other has been heard of, which a round makes it say too."""
PRESENCE_SECONDS = 0.5
"""How often chiefs and members report that they are alive."""


@dataclass(frozen=True)
class Offer:
    """Attributes:
    holder: the trainer's name, as in leases.
    group: teams are formed within a group; a digest of the cluster that TF_CONFIG describes, "" without it.
    index: the place in the group's order.
    addresses: host:port of each process that it would bring.
    code_digest: of the code that it would run.
    team_id: of the team that it computes for; "" while it is free.
    is_leaving: it would like to be released at the next block's end.
    """

    holder: str
    group: str
    index: int
    addresses: tuple[str, ...]
    code_digest: str
    team_id: str = ""
    is_leaving: bool = False


@dataclass(frozen=True)
class Membership:
    """What a member computes.

    Attributes:
        lease: the round and the resume point that all begin with; its token is 0.
        addresses: of all processes, in order of rank.
        rank: of the member's first process.
    """

    team_id: str
    lease: Lease
    addresses: tuple[str, ...]
    rank: int


@dataclass(frozen=True)
class Orders:
    """The answer to a trainer that offers itself.

    Attributes:
        goes_on: the team that it computes for still stands.
        membership: what it shall compute; None while there is nothing, and where it has it already.
        next_seconds: when it says again that it is there, while it is free.
    """

    goes_on: bool = False
    membership: Membership | None = None
    next_seconds: float = field(default=AGAIN_SECONDS, compare=False)


@dataclass(frozen=True)
class TeamState:
    """The answer to a chief.

    Attributes:
        team_id: "" while there is none.
        addresses, members: of the team; the chief's own come first.
        free: processes that other trainers offer at this moment.
        known: processes that the other trainers of the group have in all.
        lost: why the team cannot go on; "" while it can.
        is_leaving: who asks to be released.
    """

    team_id: str = ""
    addresses: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    free: int = 0
    known: int = 0
    lost: str = ""
    is_leaving: str = ""
