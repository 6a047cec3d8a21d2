"""The catalog's values as protobuf messages, and back. Both ends of RegistryService use it, nobody else."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

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


# streams and models


def stream_to_wire(stream: Stream) -> pb.Stream:
    return pb.Stream(
        name=stream.name,
        schema_version=stream.schema_version,
        schema_json=stream.schema_json,
        created_at=stream.created_at,
        archived=stream.archived,
        log_number=stream.log_number,
    )


def stream_from_wire(message: pb.Stream) -> Stream:
    return Stream(
        message.name, message.schema_version, message.schema_json, message.created_at, message.archived,
        max(message.log_number, 1),
    )  # fmt: skip


def model_to_wire(model: Model) -> pb.Model:
    return pb.Model(
        name=model.name,
        stream=model.stream,
        definition_digest=model.definition_digest,
        created_at=model.created_at,
        aliases=dict(model.aliases),
        newest_version=model.newest_version,
        round_sequence=model.round_sequence,
        consecutive_failures=model.consecutive_failures,
        retry_at=model.retry_at,
        last_failure=model.last_failure,
        failure_json=json_text(model.failure),
        paused=model.paused,
        pinned_version=model.pinned_version,
        archived=model.archived,
        head_version=model.head_version,
        rolled_back_json=json_text(model.rolled_back),
    )


def model_from_wire(message: pb.Model) -> Model:
    return Model(
        name=message.name,
        stream=message.stream,
        definition_digest=message.definition_digest,
        created_at=message.created_at,
        aliases=dict(message.aliases),
        newest_version=message.newest_version,
        round_sequence=message.round_sequence,
        consecutive_failures=message.consecutive_failures,
        retry_at=message.retry_at,
        last_failure=message.last_failure,
        failure=json_map("failure_json", message.failure_json),
        paused=message.paused,
        pinned_version=message.pinned_version,
        archived=message.archived,
        head_version=message.head_version,
        rolled_back=json_map("rolled_back_json", message.rolled_back_json),
    )


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
    return [
        pb.OffsetRange(partition=part.partition, from_offset=part.from_offset, to_offset=part.to_offset)
        for part in ranges
    ]


def ranges_from_wire(ranges: Iterable[pb.OffsetRange]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(part.partition, part.from_offset, part.to_offset) for part in ranges)


def files_to_wire(files: Iterable[FileEntry]) -> list[pb.FileEntry]:
    return [pb.FileEntry(path=file.path, size_bytes=file.size_bytes, digest=file.digest) for file in files]


def files_from_wire(files: Iterable[pb.FileEntry]) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(file.path, file.size_bytes, file.digest) for file in files)


# rounds and leases


def plan_to_wire(plan: RoundPlan) -> pb.Round:
    return pb.Round(
        model=plan.model,
        sequence=plan.sequence,
        parent_version=plan.parent_version,
        stream=plan.stream,
        schema_version=plan.schema_version,
        ranges=ranges_to_wire(plan.ranges),
        definition_digest=plan.definition_digest,
        configuration_json=json_text(plan.configuration),
        configuration_digest=plan.configuration_digest,
        code_digest=plan.code_digest,
        seed=plan.seed,
        example_count=plan.example_count,
        trigger=plan.trigger,
        last_event_at=plan.last_event_at,
    )


def plan_from_wire(message: pb.Round) -> RoundPlan:
    return RoundPlan(
        model=message.model,
        sequence=message.sequence,
        parent_version=message.parent_version,
        stream=message.stream,
        schema_version=message.schema_version,
        ranges=ranges_from_wire(message.ranges),
        definition_digest=message.definition_digest,
        configuration=json_map("configuration_json", message.configuration_json),
        configuration_digest=message.configuration_digest,
        code_digest=message.code_digest,
        seed=message.seed,
        example_count=message.example_count,
        trigger=message.trigger,
        last_event_at=message.last_event_at,
    )


def round_to_wire(round_: Round) -> pb.Round:
    message = plan_to_wire(round_.plan)
    message.round_id = round_.round_id
    message.planned_at = round_.planned_at
    message.state = str(round_.state)
    message.reason = round_.reason
    message.lease_holder = round_.lease_holder
    message.lease_expires_at = round_.lease_expires_at
    message.attempts = round_.attempts
    message.progress_json = json_text(round_.progress)
    message.version = round_.version
    message.failure_json = json_text(round_.failure)
    return message


def round_from_wire(message: pb.Round) -> Round:
    return Round(
        round_id=message.round_id,
        plan=plan_from_wire(message),
        planned_at=message.planned_at,
        state=RoundState(message.state),
        reason=message.reason,
        lease_holder=message.lease_holder,
        lease_expires_at=message.lease_expires_at,
        attempts=message.attempts,
        progress=json_map("progress_json", message.progress_json),
        version=message.version,
        failure=json_map("failure_json", message.failure_json),
    )


def lease_to_wire(lease: Lease) -> pb.Lease:
    message = pb.Lease(round=round_to_wire(lease.round), token=lease.token, expires_at=lease.expires_at)
    if lease.resume_point is not None:
        point = lease.resume_point
        message.resume_point.CopyFrom(
            pb.ResumePoint(state_json=json_text(point.state), files=files_to_wire(point.files), saved_at=point.saved_at)
        )
    return message


def lease_from_wire(message: pb.Lease) -> Lease:
    point: ResumePoint | None = None
    if message.HasField("resume_point"):
        sent = message.resume_point
        point = ResumePoint(json_map("state_json", sent.state_json), files_from_wire(sent.files), sent.saved_at)
    return Lease(round_from_wire(message.round), message.token, message.expires_at, point)


# versions


def draft_to_wire(draft: VersionDraft) -> pb.Version:
    return pb.Version(
        weights_digest=draft.weights_digest,
        metrics_json=json_text(draft.metrics),
        verdict=pb.Verdict(rule_json=json_text(draft.gate.to_mapping())),
        events_trained=draft.events_trained,
        events_held_out=draft.events_held_out,
        events_unusable=draft.events_unusable,
        files=files_to_wire(draft.files),
        step=draft.step,
        timings_json=json_text(draft.timings),
        environment_json=json_text(draft.environment),
        unusable_json=json_text(draft.unusable),
        evaluation_json=json_text(draft.evaluation),
        signature=draft.signature,
    )


def draft_from_wire(message: pb.Version) -> VersionDraft:
    return VersionDraft(
        weights_digest=message.weights_digest,
        metrics=_metrics(message.metrics_json),
        gate=read_gate(json_map("verdict.rule_json", message.verdict.rule_json)),
        events_trained=message.events_trained,
        events_held_out=message.events_held_out,
        events_unusable=message.events_unusable,
        files=files_from_wire(message.files),
        step=message.step,
        timings=json_map("timings_json", message.timings_json),
        environment=json_map("environment_json", message.environment_json),
        unusable=json_map("unusable_json", message.unusable_json),
        evaluation=json_map("evaluation_json", message.evaluation_json),
        signature=message.signature,
    )


def version_to_wire(version: Version) -> pb.Version:
    return pb.Version(
        model=version.model,
        version=version.version,
        status=str(version.status),
        round_id=version.round_id,
        parent_version=version.parent_version,
        stream=version.stream,
        schema_version=version.schema_version,
        ranges=ranges_to_wire(version.ranges),
        definition_digest=version.definition_digest,
        configuration_digest=version.configuration_digest,
        code_digest=version.code_digest,
        seed=version.seed,
        weights_digest=version.weights_digest,
        metrics_json=json_text(version.metrics),
        verdict=pb.Verdict(
            decision=str(version.verdict.decision),
            reasons=version.verdict.reasons,
            rule_json=json_text(version.verdict.rule.to_mapping()),
            outcomes_json=json_text({"outcomes": version.verdict.outcomes}),
        ),
        events_trained=version.events_trained,
        events_held_out=version.events_held_out,
        events_unusable=version.events_unusable,
        files=files_to_wire(version.files),
        created_at=version.created_at,
        last_event_at=version.last_event_at,
        timings_json=json_text(version.timings),
        environment_json=json_text(version.environment),
        unusable_json=json_text(version.unusable),
        evaluation_json=json_text(version.evaluation),
        step=version.step,
        end_position=dict(version.end_position),
        contract_json=json_text(version.contract),
        signature=version.signature,
        signed_by=version.signed_by,
        thinned_at=version.thinned_at,
        thinned_by=version.thinned_by,
    )


def version_from_wire(message: pb.Version) -> Version:
    return Version(
        model=message.model,
        version=message.version,
        status=VersionStatus(message.status),
        round_id=message.round_id,
        parent_version=message.parent_version,
        stream=message.stream,
        schema_version=message.schema_version,
        ranges=ranges_from_wire(message.ranges),
        definition_digest=message.definition_digest,
        configuration_digest=message.configuration_digest,
        code_digest=message.code_digest,
        seed=message.seed,
        weights_digest=message.weights_digest,
        metrics=_metrics(message.metrics_json),
        verdict=Verdict(
            Decision(message.verdict.decision),
            tuple(message.verdict.reasons),
            read_gate(json_map("rule_json", message.verdict.rule_json)),
            tuple(json_map("outcomes_json", message.verdict.outcomes_json).get("outcomes", ())),
        ),
        events_trained=message.events_trained,
        events_held_out=message.events_held_out,
        events_unusable=message.events_unusable,
        files=files_from_wire(message.files),
        created_at=message.created_at,
        last_event_at=message.last_event_at,
        timings=json_map("timings_json", message.timings_json),
        environment=json_map("environment_json", message.environment_json),
        unusable=json_map("unusable_json", message.unusable_json),
        evaluation=json_map("evaluation_json", message.evaluation_json),
        step=message.step,
        end_position=dict(message.end_position),
        contract=json_map("contract_json", message.contract_json),
        signature=message.signature,
        signed_by=message.signed_by,
        thinned_at=message.thinned_at,
        thinned_by=message.thinned_by,
    )


# aliases and changes


def alias_change_to_wire(change: AliasChange) -> pb.AliasChange:
    return pb.AliasChange(
        model=change.model,
        alias=change.alias,
        from_version=change.from_version,
        to_version=change.to_version,
        by=change.by,
        reason=change.reason,
        at=change.at,
    )


def alias_change_from_wire(message: pb.AliasChange) -> AliasChange:
    return AliasChange(
        model=message.model,
        alias=message.alias,
        from_version=message.from_version,
        to_version=message.to_version,
        by=message.by,
        reason=message.reason,
        at=message.at,
    )


def change_to_wire(change: Change) -> pb.Change:
    return pb.Change(
        revision=change.revision,
        kind=change.kind.name,
        name=change.name,
        version=change.version,
        detail=change.detail,
        at=change.at,
    )


def change_from_wire(message: pb.Change) -> Change:
    return Change(
        revision=message.revision,
        kind=ChangeKind[pb.Change.Kind.Name(message.kind)],
        name=message.name,
        version=message.version,
        detail=message.detail,
        at=message.at,
    )
