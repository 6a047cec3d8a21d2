"""The catalog's values as protobuf messages, and back. Both ends of RegistryService use it, nobody else."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from common.definition.gate import read_gate
from common.errors import InvalidInput
from common.half_pairs import half_pair_in
from common.registry.catalog import (
    AliasChange,
    Change,
    ChangeKind,
    Decision,
    FileEntry,
    JsonMap,
    Lease,
    Model,
    OffsetRange,
    ResumePoint,
    Round,
    RoundPlan,
    RoundState,
    Stream,
    Verdict,
    Version,
    VersionDraft,
    VersionMetrics,
    VersionStatus,
)
from protos import registry_pb2 as pb

Sent = TypeVar("Sent", bound=Message)
Value = TypeVar("Value")


def json_text(value: JsonMap) -> str:
    """Canonical: equal mappings give equal text. NaN and infinities are written as Python writes them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def json_map(name: str, text: str) -> dict[str, Any]:
    """The mapping in a *_json field; {} for an empty one.

    Raises:
        InvalidInput: it is not a JSON object.
    """
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} must be a JSON object, got {text[:100]!r}")
    if place := half_pair_in(text.encode(), value):
        raise InvalidInput(f"{name}: {place} has half a surrogate pair, expected text that UTF-8 can write")
    return value


def _metrics(text: str) -> VersionMetrics:
    parts = json_map("metrics_json", text)
    for part, numbers in parts.items():
        whole = isinstance(numbers, dict) and all(type(value) in (int, float) for value in numbers.values())
        if not whole:
            raise InvalidInput(f"metrics_json: {part} must map names to numbers, got {str(numbers)[:100]}")
    return parts


# values and messages whose fields have the same names


@cache
def _shared(sent: type[Message], value: Any) -> tuple[frozenset[str], frozenset[str]]:
    """The fields that a message and a dataclass share by name, and those that the message has as `NAME_json`."""
    own, there = {field.name for field in fields(value)}, {field.name for field in sent.DESCRIPTOR.fields}
    return frozenset(own & there), frozenset(name for name in own if f"{name}_json" in there)


def sent_as(sent: type[Sent], value: Any, **others: Any) -> Sent:
    """The message of a dataclass's value: fields of one name are copied, a mapping `x` stands in `x_json`.

    Args:
        others: fields of the message that are made otherwise.
    """
    plain, mappings = _shared(cast(Any, sent), cast(Any, type(value)))
    found = {name: getattr(value, name) for name in plain - others.keys()}
    return sent(**found, **{f"{name}_json": json_text(getattr(value, name)) for name in mappings}, **others)


def read_from(message: Message, made: Callable[..., Value], **others: Any) -> Value:
    """The value that `sent_as` made this message of; `others` are fields of the value that are read otherwise.

    Raises:
        InvalidInput: a *_json field holds no JSON object.
    """
    plain, mappings = _shared(cast(Any, type(message)), made)
    found = {name: getattr(message, name) for name in plain - others.keys()}
    for name in mappings - others.keys():
        found[name] = json_map(f"{name}_json", getattr(message, f"{name}_json"))
    return made(**found, **others)


# streams and models


def stream_to_wire(stream: Stream) -> pb.Stream:
    return sent_as(pb.Stream, stream)


def stream_from_wire(message: pb.Stream) -> Stream:
    return read_from(message, Stream, log_number=max(message.log_number, 1))


def model_to_wire(model: Model) -> pb.Model:
    return sent_as(pb.Model, model)


def model_from_wire(message: pb.Model) -> Model:
    return read_from(message, Model, aliases=dict(message.aliases))


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


# ranges and files


def ranges_to_wire(ranges: Iterable[OffsetRange]) -> list[pb.OffsetRange]:
    return [sent_as(pb.OffsetRange, part) for part in ranges]


def ranges_from_wire(ranges: Iterable[pb.OffsetRange]) -> tuple[OffsetRange, ...]:
    return tuple(read_from(part, OffsetRange) for part in ranges)


def files_to_wire(files: Iterable[FileEntry]) -> list[pb.FileEntry]:
    return [sent_as(pb.FileEntry, file) for file in files]


def files_from_wire(files: Iterable[pb.FileEntry]) -> tuple[FileEntry, ...]:
    return tuple(read_from(file, FileEntry) for file in files)


# rounds and leases


def plan_to_wire(plan: RoundPlan) -> pb.Round:
    return sent_as(pb.Round, plan, ranges=ranges_to_wire(plan.ranges))


def plan_from_wire(message: pb.Round) -> RoundPlan:
    return read_from(message, RoundPlan, ranges=ranges_from_wire(message.ranges))


def round_to_wire(round_: Round) -> pb.Round:
    message = plan_to_wire(round_.plan)
    message.MergeFrom(sent_as(pb.Round, round_))
    return message


def round_from_wire(message: pb.Round) -> Round:
    return read_from(message, Round, plan=plan_from_wire(message), state=RoundState(message.state))


def lease_to_wire(lease: Lease) -> pb.Lease:
    point = lease.resume_point
    sent = None if point is None else sent_as(pb.ResumePoint, point, files=files_to_wire(point.files))
    return sent_as(pb.Lease, lease, round=round_to_wire(lease.round), resume_point=sent)


def lease_from_wire(message: pb.Lease) -> Lease:
    point: ResumePoint | None = None
    if message.HasField("resume_point"):
        point = read_from(message.resume_point, ResumePoint, files=files_from_wire(message.resume_point.files))
    return read_from(message, Lease, round=round_from_wire(message.round), resume_point=point)


# versions


def draft_to_wire(draft: VersionDraft) -> pb.Version:
    rule = pb.Verdict(rule_json=json_text(draft.gate.to_mapping()))
    return sent_as(pb.Version, draft, verdict=rule, files=files_to_wire(draft.files))


def draft_from_wire(message: pb.Version) -> VersionDraft:
    return read_from(
        message, VersionDraft,
        metrics=_metrics(message.metrics_json),
        gate=read_gate(json_map("verdict.rule_json", message.verdict.rule_json)),
        files=files_from_wire(message.files),
    )  # fmt: skip


def version_to_wire(version: Version) -> pb.Version:
    verdict = pb.Verdict(
        decision=str(version.verdict.decision),
        reasons=version.verdict.reasons,
        rule_json=json_text(version.verdict.rule.to_mapping()),
        outcomes_json=json_text({"outcomes": version.verdict.outcomes}),
    )
    ranges, files = ranges_to_wire(version.ranges), files_to_wire(version.files)
    return sent_as(pb.Version, version, verdict=verdict, ranges=ranges, files=files)


def version_from_wire(message: pb.Version) -> Version:
    verdict = Verdict(
        Decision(message.verdict.decision),
        tuple(message.verdict.reasons),
        read_gate(json_map("rule_json", message.verdict.rule_json)),
        tuple(json_map("outcomes_json", message.verdict.outcomes_json).get("outcomes", ())),
    )
    return read_from(
        message, Version,
        status=VersionStatus(message.status),
        verdict=verdict,
        metrics=_metrics(message.metrics_json),
        ranges=ranges_from_wire(message.ranges),
        files=files_from_wire(message.files),
        end_position=dict(message.end_position),
    )  # fmt: skip


# aliases and changes


def alias_change_to_wire(change: AliasChange) -> pb.AliasChange:
    return sent_as(pb.AliasChange, change)


def alias_change_from_wire(message: pb.AliasChange) -> AliasChange:
    return read_from(message, AliasChange)


def change_to_wire(change: Change) -> pb.Change:
    return sent_as(pb.Change, change, kind=change.kind.name)


def change_from_wire(message: pb.Change) -> Change:
    return read_from(message, Change, kind=ChangeKind[pb.Change.Kind.Name(message.kind)])
