"""The catalog's values as protobuf messages, and back. Only both ends of RegistryService use it."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from pydantic_core import from_json

from common.definition.gate import read_gate
from common.errors import InvalidInput
from common.half_pairs import half_pair_in
from common.registry.catalog import (
    Change,
    ChangeKind,
    Decision,
    JsonMap,
    Lease,
    Round,
    RoundPlan,
    Stream,
    Verdict,
    Version,
    VersionDraft,
    VersionMetrics,
)
from common.registry.teams import AGAIN_SECONDS, Membership, Orders
from protos import registry_pb2 as pb

Sent = TypeVar("Sent", bound=Message)
Value = TypeVar("Value")


def json_text(value: JsonMap) -> str:
    """Canonical: equal mappings give equal text. NaN and infinities are written as Python writes them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def json_map(name: str, text: str) -> dict[str, Any]:
    """The mapping in a *_json field; {} for an empty field. Raises InvalidInput: it is not a JSON object, or
    its values lie some 200 levels deep: authors' code hands in facts, and what shows them goes down level by level."""
    if not text:
        return {}
    try:
        value = from_json(text)
    except ValueError as error:
        raise InvalidInput(f"{name} {_fault_of(text) or f'is not JSON: {error}'}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} must be a JSON object, got {text[:100]!r}")
    return value


def _fault_of(text: str) -> str:
    with suppress(ValueError, RecursionError):
        if place := half_pair_in(text.encode(), json.loads(text)):
            return f"has half a surrogate pair at {place}, expected text that UTF-8 can write"
    return ""


def _metrics(text: str) -> VersionMetrics:
    parts = json_map("metrics_json", text)
    for part, numbers in parts.items():
        whole = isinstance(numbers, dict) and all(type(value) in (int, float) for value in numbers.values())
        if not whole:
            raise InvalidInput(f"metrics_json: {part} must map names to numbers, got {str(numbers)[:100]}")
    return parts


# values and messages whose fields have the same names


@cache
def _shared(sent: type[Message], value: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The fields that a message and a dataclass share by name, with the message's descriptors, and the names of those
    that the message has as `NAME_json`."""
    own, there = {field.name for field in fields(value)}, sent.DESCRIPTOR.fields_by_name
    return {name: there[name] for name in own if name in there}, frozenset(n for n in own if f"{n}_json" in there)


def sent_as(sent: type[Sent], value: Any, **others: Any) -> Sent:
    """The message of a dataclass's value: fields of the same name are copied, nested values as nested messages, a
    mapping `x` stands in `x_json`.

    Args:
        others: fields of the message that are made otherwise.
    """
    plain, mappings = _shared(cast(Any, sent), cast(Any, type(value)))
    found = {name: _sent(field, getattr(value, name)) for name, field in plain.items() if name not in others}
    texts = {f"{name}_json": json_text(getattr(value, name)) for name in mappings if f"{name}_json" not in others}
    return sent(**found, **texts, **others)


def _sent(field: Any, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_sent(field, item) for item in value]
    return sent_as(field.message_type._concrete_class, value) if is_dataclass(value) else value


def read_from(message: Message, made: Callable[..., Value], **others: Any) -> Value:
    """The value that `sent_as` made this message of; `others` are fields of the value that are read otherwise. Raises
    InvalidInput: a *_json field holds no JSON object."""
    plain, mappings = _shared(cast(Any, type(message)), made)
    hints = _hints(made)
    found = {name: _read(message, name, hints[name]) for name in plain if name not in others}
    for name in mappings - others.keys():
        found[name] = json_map(f"{name}_json", getattr(message, f"{name}_json"))
    return made(**found, **others)


_hints = cache(get_type_hints)


def _read(message: Message, name: str, hint: Any) -> Any:
    value, form, parts = getattr(message, name), get_origin(hint), get_args(hint)
    if form is tuple:
        return tuple(_value(item, parts[0]) for item in value)
    if form is UnionType:  # with None
        return _value(value, parts[0]) if message.HasField(name) else None
    return dict(value) if form is not None else _value(value, hint)


def _value(value: Any, hint: Any) -> Any:
    if is_dataclass(hint):
        return read_from(value, cast(Any, hint))
    return hint(value) if issubclass(hint, Enum) else value


# streams and models


def stream_to_wire(stream: Stream) -> pb.Stream:
    return sent_as(pb.Stream, stream)


def stream_from_wire(message: pb.Stream) -> Stream:
    return read_from(message, Stream, log_number=max(message.log_number, 1))


def definition_to_wire(files: Mapping[str, bytes]) -> list[pb.DefinitionFile]:
    return [pb.DefinitionFile(path=path, content=content) for path, content in sorted(files.items())]


def definition_from_wire(files: Iterable[pb.DefinitionFile]) -> dict[str, bytes]:
    """Raises InvalidInput when a path is named twice."""
    definition: dict[str, bytes] = {}
    for file in files:
        if file.path in definition:
            raise InvalidInput(f"the definition holds {file.path} twice")
        definition[file.path] = file.content
    return definition


# rounds, leases and teams


def round_to_wire(round_: Round) -> pb.Round:
    message = sent_as(pb.Round, round_.plan)
    message.MergeFrom(sent_as(pb.Round, round_))
    return message


def round_from_wire(message: pb.Round) -> Round:
    return read_from(message, Round, plan=read_from(message, RoundPlan))


def lease_to_wire(lease: Lease) -> pb.Lease:
    return sent_as(pb.Lease, lease, round=round_to_wire(lease.round))


def lease_from_wire(message: pb.Lease) -> Lease:
    return read_from(message, Lease, round=round_from_wire(message.round))


def orders_to_wire(orders: Orders) -> pb.OfferHelpResponse:
    found = orders.membership
    lease = lease_to_wire(replace(found.lease, token=0)) if found else None
    return sent_as(pb.OfferHelpResponse, orders, membership=found and sent_as(pb.Membership, found, lease=lease))


def orders_from_wire(message: pb.OfferHelpResponse) -> Orders:
    found: Membership | None = None
    if message.HasField("membership"):
        found = read_from(message.membership, Membership, lease=lease_from_wire(message.membership.lease))
    return Orders(message.goes_on, found, message.next_seconds or AGAIN_SECONDS)


# versions


def draft_to_wire(draft: VersionDraft) -> pb.Version:
    return sent_as(pb.Version, draft, verdict=pb.Verdict(rule_json=json_text(draft.gate.to_mapping())))


def draft_from_wire(message: pb.Version) -> VersionDraft:
    gate = read_gate(json_map("verdict.rule_json", message.verdict.rule_json))
    return read_from(message, VersionDraft, metrics=_metrics(message.metrics_json), gate=gate)


def version_to_wire(version: Version) -> pb.Version:
    verdict = pb.Verdict(
        decision=str(version.verdict.decision),
        reasons=version.verdict.reasons,
        rule_json=json_text(version.verdict.rule.to_mapping()),
        outcomes_json=json_text({"outcomes": version.verdict.outcomes}),
    )
    return sent_as(pb.Version, version, verdict=verdict)


def version_from_wire(message: pb.Version) -> Version:
    verdict = Verdict(
        Decision(message.verdict.decision),
        tuple(message.verdict.reasons),
        read_gate(json_map("rule_json", message.verdict.rule_json)),
        tuple(json_map("outcomes_json", message.verdict.outcomes_json).get("outcomes", ())),
    )
    return read_from(message, Version, verdict=verdict, metrics=_metrics(message.metrics_json))


# changes


def change_to_wire(change: Change) -> pb.Change:
    return sent_as(pb.Change, change, kind=change.kind.name)


def change_from_wire(message: pb.Change) -> Change:
    return read_from(message, Change, kind=ChangeKind[pb.Change.Kind.Name(message.kind)])
