"""Teams as protobuf messages, and back; beside wire.py, for both ends of RegistryService."""

from dataclasses import replace

from common.registry.teams import AGAIN_SECONDS, Membership, Offer, Orders, TeamState
from common.registry.wire import lease_from_wire, lease_to_wire, read_from, sent_as
from protos import registry_pb2 as pb


def offer_to_wire(offer: Offer) -> pb.HelpOffer:
    return sent_as(pb.HelpOffer, offer)


def offer_from_wire(message: pb.HelpOffer) -> Offer:
    return read_from(message, Offer, addresses=tuple(message.addresses))


def orders_to_wire(orders: Orders) -> pb.OfferHelpResponse:
    answer = pb.OfferHelpResponse(goes_on=orders.goes_on, next_seconds=orders.next_seconds)
    if orders.membership is not None:
        found = orders.membership
        lease = lease_to_wire(replace(found.lease, token=0))
        sent = pb.Membership(team_id=found.team_id, lease=lease, addresses=found.addresses, rank=found.rank)
        answer.membership.CopyFrom(sent)
    return answer


def orders_from_wire(message: pb.OfferHelpResponse) -> Orders:
    membership: Membership | None = None
    if message.HasField("membership"):
        sent = message.membership
        membership = Membership(sent.team_id, lease_from_wire(sent.lease), tuple(sent.addresses), sent.rank)
    return Orders(message.goes_on, membership, message.next_seconds or AGAIN_SECONDS)


def team_to_wire(team: TeamState) -> pb.Team:
    return sent_as(pb.Team, team)


def team_from_wire(message: pb.Team) -> TeamState:
    return read_from(message, TeamState, addresses=tuple(message.addresses), members=tuple(message.members))
