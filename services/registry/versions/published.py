"""Versions: the results of rounds, visible whole or not at all, and never changed afterwards."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, tuple_

from common.definition.gate import Gate, read_gate
from common.errors import Conflict, InvalidInput, NotFound
from common.registry.catalog import (
    CANARY,
    MOST_LISTED,
    PRODUCTION,
    ChangeKind,
    Decision,
    FileEntry,
    JsonMap,
    Model,
    RoundPlan,
    RoundState,
    Verdict,
    Version,
    VersionDraft,
    VersionStatus,
)
from common.registry.plan_notes import HEAD_BEFORE
from common.registry.statements import digests_of, read_envelope
from common.registry.wire import json_text
from services.registry.definitions import models
from services.registry.rounds.leases import held_row
from services.registry.rounds.line import add_to_line
from services.registry.rounds.plans import RoundRow, end_done, parent_end_of, plan_of, row_of
from services.registry.rounds.ranges import end_position
from services.registry.store.database import Transaction
from services.registry.store.documents import check_documents
from services.registry.store.manifest import check_manifest
from services.registry.store.tables import read_row, rounds, signatures, version_files, versions
from services.registry.versions import aliases, stages
from services.registry.versions.contract import is_change_allowed, refuse_changed
from services.registry.versions.gate import (
    judge,
    refuse_large,
    refuse_skewed,
    refuse_slow,
    refuse_unscored,
    refuse_unusable,
)

_REQUIRED_FOLDERS = ("checkpoint/", "saved_model/")
_MAX_DRAFT_CHARACTERS = 4 * 1024 * 1024


def check_draft(draft: VersionDraft) -> None:
    """Raises InvalidInput when the draft cannot become a version in any state of its round."""
    check_manifest(draft.files)
    check_documents(
        evaluation=draft.evaluation, environment=draft.environment, unusable=draft.unusable, timings=draft.timings
    )
    for folder in _REQUIRED_FOLDERS:
        if not any(file.path.startswith(folder) for file in draft.files):
            raise InvalidInput(f"a version needs files in {folder}, the draft has none")
    counts = (draft.events_trained, draft.events_held_out, draft.events_unusable, draft.step)
    if min(counts) < 0:
        raise InvalidInput(f"event counts and step must not be negative, got {counts}")
    if len(_draft_json(draft)) > _MAX_DRAFT_CHARACTERS:
        raise InvalidInput(f"the draft's metrics and environment pass {_MAX_DRAFT_CHARACTERS} characters")


def register_version(
    transaction: Transaction, *, round_id: str, token: int, draft: VersionDraft, contract: JsonMap
) -> Version:
    """Ends the round with a version: token, gate and aliases in one transaction. The caller has checked the files.

    Args:
        contract: the contract of the draft's SavedModel (contract.py).

    The same token and draft again give the same version, since the first answer may have been lost.

    Raises:
        Conflict: the lease is no longer the caller's, or the round ended otherwise.
        NotFound: there is no such round.
    """
    connection = transaction.connection
    row = row_of(connection, round_id)
    if row.state == RoundState.DONE and row.token == token:
        return _registered_before(connection, row, draft)
    row = held_row(transaction.connection, round_id, token)
    plan = plan_of(row)
    model = models.get_model(connection, plan.model)
    verdict = judge(
        draft.gate,
        metrics=draft.metrics,
        evaluation=draft.evaluation,
        has_parent=plan.parent_version > 0,
        held_out_count=draft.events_held_out,
    )
    verdict = refuse_unusable(
        verdict,
        unusable_count=draft.events_unusable,
        example_count=draft.events_trained + draft.events_held_out + draft.events_unusable,
        max_share=_max_unusable(plan),
        reasons=draft.unusable.get("reasons", {}),
    )
    verdict = refuse_large(verdict, draft.files)
    verdict = refuse_skewed(refuse_slow(verdict, draft.environment), draft.environment)
    verdict = refuse_unscored(verdict, draft.environment)
    verdict = refuse_changed(
        verdict,
        before=contract_of_version(connection, plan.model, _start_of(plan)),
        after=contract,
        allowed=is_change_allowed(plan, models.names_of_files(connection, plan.definition_digest)),
    )
    verdict = _first_is_production(transaction, _hold_if_moved(verdict, model, plan), model)
    version = model.newest_version + 1
    insert_version(transaction, version, row, draft, verdict, contract)
    models.change(transaction, model.name, newest_version=version, **models.NO_FAILURES)
    end_done(transaction, row, version)
    if verdict.decision in (Decision.PROMOTE, Decision.CANARY) or _is_held_in_line(verdict, model, plan):
        models.change(transaction, model.name, head_version=version)
    move_alias(transaction, model, version, verdict, round_id)
    return get_version(connection, model.name, version)


def insert_version(
    transaction: Transaction, version: int, row: RoundRow, draft: VersionDraft, verdict: Verdict, contract: JsonMap,
    *, pushed_by: str = "",
) -> None:  # fmt: skip
    connection, plan = transaction.connection, plan_of(row)
    parent_end = parent_end_of(connection, plan)
    ends = end_position(plan, parent_end)
    status = VersionStatus.REJECTED if verdict.decision is Decision.REJECT else VersionStatus.ACCEPTED
    connection.execute(
        insert(versions).values(
            model=plan.model,
            version=version,
            status=str(status),
            round_id=row.round_id,
            draft_json=_draft_json(draft),
            verdict_json=json_text(asdict(verdict) | {"rule": verdict.rule.to_mapping()}),
            end_position_json=json_text({str(partition): offset for partition, offset in ends.items()}),
            created_at=transaction.now,
            contract_json=json_text(contract),
            signed_by=add_signature(connection, plan.model, version, draft),
            pushed_by=pushed_by,
        )
    )
    add_to_line(connection, version, plan, vars(draft), parent_end)
    files = [{"model": plan.model, "version": version, **asdict(file)} for file in draft.files]
    connection.execute(insert(version_files), files)
    transaction.record(ChangeKind.VERSION, plan.model, version=version)


def contract_of_version(connection: Connection, model: str, version: int) -> JsonMap:
    """{} where there is no such version, or no contract of it."""
    query = select(versions.c.contract_json).where(versions.c.model == model, versions.c.version == version)
    found: JsonMap = json.loads(connection.execute(query).scalar_one_or_none() or "{}")
    return found


def _max_unusable(plan: RoundPlan) -> float:
    """From the definition at the round's planning; an older plan has no limit."""
    evaluation = plan.configuration.get("evaluation")
    share = evaluation.get("max_unusable", 1.0) if isinstance(evaluation, Mapping) else 1.0
    return float(share) if isinstance(share, int | float) else 1.0


def _hold_if_moved(verdict: Verdict, model: Model, plan: RoundPlan) -> Verdict:
    if verdict.decision is Decision.REJECT:
        return verdict
    if not _is_from_head(model, plan):
        start, head = _start_of(plan), model.head_version
        moved = f"production was moved from version {start} to {head} while this version was made"
        return replace(verdict, decision=Decision.HOLD, reasons=(*verdict.reasons, moved))
    return hold_if_waiting(verdict, model)


def hold_if_waiting(verdict: Verdict, model: Model) -> Verdict:
    """HOLD where production is pinned, or while a canary is being judged that the version would replace."""
    if verdict.decision is Decision.CANARY and stages.is_open(model.canary):
        judged = f"version {model.canary['version']} is canary and being judged"
        return replace(verdict, decision=Decision.HOLD, reasons=(*verdict.reasons, judged))
    if model.pinned_version and verdict.decision is Decision.PROMOTE:
        pinned = f"production is pinned to version {model.pinned_version}"
        return replace(verdict, decision=Decision.HOLD, reasons=(*verdict.reasons, pinned))
    return verdict


def _is_held_in_line(verdict: Verdict, model: Model, plan: RoundPlan) -> bool:
    """Whether the next round goes on from it though it waits."""
    waits = bool(model.pinned_version) or stages.is_open(model.canary)
    return verdict.decision is Decision.HOLD and waits and _is_from_head(model, plan)


def _first_is_production(transaction: Transaction, verdict: Verdict, model: Model) -> Verdict:
    """Where a canary comes to production in stages, the first version has nothing to be compared with."""
    if verdict.decision is not Decision.CANARY or model.aliases.get(PRODUCTION):
        return verdict
    if not stages.at_stage(transaction, model, {}, 0):
        return verdict
    return replace(verdict, decision=Decision.PROMOTE, reasons=(*verdict.reasons, "it is the first in production"))


def _is_from_head(model: Model, plan: RoundPlan) -> bool:
    return _start_of(plan) == model.head_version


def _start_of(plan: RoundPlan) -> int:
    """The head when the round was planned: its parent, or the head before it when it began from scratch."""
    return int(plan.configuration.get(HEAD_BEFORE, plan.parent_version))


def move_alias(transaction: Transaction, model: Model, version: int, verdict: Verdict, round_id: str) -> None:
    alias = {Decision.PROMOTE: PRODUCTION, Decision.CANARY: CANARY}.get(verdict.decision)
    if alias is None:
        return
    current = model.aliases.get(alias, 0)
    reason = f"{round_id} passed the gate: {'; '.join(verdict.reasons)}"
    aliases.move(transaction, model.name, alias, current, version, how=aliases.SET, by="gate", reason=reason)


def _registered_before(connection: Connection, row: RoundRow, draft: VersionDraft) -> Version:
    stored = connection.execute(select(versions.c.draft_json).where(versions.c.round_id == row.round_id)).scalar_one()
    version = get_version(connection, str(row.model), int(row.version))
    if version.status is VersionStatus.ARCHIVED and version.weights_digest == draft.weights_digest:
        return version
    if stored != _draft_json(draft) or version.files != tuple(sorted(draft.files, key=lambda file: file.path)):
        raise Conflict(f"round {row.round_id} is done with version {row.version}, from another draft")
    return version


def get_version(connection: Connection, model: str, version: int) -> Version:
    """With its files and signature. Raises NotFound."""
    query = _joined().where(versions.c.model == model, versions.c.version == version)
    row = connection.execute(query).one_or_none()
    if row is None:
        models.get_model(connection, model)
        raise NotFound(f"model {model} has no version {version}")
    files = connection.execute(
        select(version_files)
        .where(version_files.c.model == model, version_files.c.version == version)
        .order_by(version_files.c.path)
    )
    found = _version_of(row, [FileEntry(file.path, file.size_bytes, file.digest) for file in files])
    return replace(found, signature=signature_of(connection, model, version))


def list_versions(connection: Connection, model: str, *, limit: int = MOST_LISTED, before: int = 0) -> list[Version]:
    """The newest `limit` (before a version, where it is not 0), oldest first, without their files and evaluation.
    Raises NotFound."""
    models.get_model(connection, model)
    query = _joined().where(versions.c.model == model, *([versions.c.version < before] if before else []))
    rows = connection.execute(query.order_by(versions.c.version.desc()).limit(limit)).all()
    return [replace(_version_of(row, []), evaluation={}) for row in reversed(rows)]


def count_versions(connection: Connection, model: str) -> int:
    """Of every status, thinned versions among them."""
    query = select(func.count()).select_from(versions).where(versions.c.model == model)
    return int(connection.execute(query).scalar_one())


def find_versions(connection: Connection, condition: ColumnElement[bool]) -> list[Version]:
    """Without their files; `condition` may name further tables that it joins."""
    return [_version_of(row, ()) for row in connection.execute(_joined().where(condition))]


def versions_of(connection: Connection, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Version]:
    """{(model, version): Version} of those that there are, without their files."""
    chosen = tuple_(versions.c.model, versions.c.version).in_(list(keys))
    return {(found.model, found.version): found for found in find_versions(connection, chosen)} if keys else {}


def configurations_of(connection: Connection, model: str, first: int, last: int) -> dict[int, JsonMap]:
    """{version: configuration of its round} of the versions from `first` to `last`, in one query."""
    chosen = versions.c.version.between(first, last)
    query = select(versions.c.version, rounds.c.plan_json).where(versions.c.model == model, chosen)
    rows = connection.execute(query.join(rounds, rounds.c.round_id == versions.c.round_id))
    return {row.version: json.loads(row.plan_json)["configuration"] for row in rows}


def _joined() -> Any:
    """Versions with the plan of their round; the columns of a row carry the tables' names."""
    return select(versions, rounds.c.plan_json).join(rounds, rounds.c.round_id == versions.c.round_id)


def _version_of(row: Row[Any], files: Sequence[FileEntry]) -> Version:
    verdict = json.loads(row.verdict_json)
    return read_row(
        {**json.loads(row.draft_json), **vars(plan_of(row)), **row._mapping}, Version,
        status=VersionStatus(row.status),
        verdict=Verdict(
            Decision(verdict["decision"]),
            tuple(verdict["reasons"]),
            _stored_rule(verdict["rule"]),
            tuple(verdict.get("outcomes", ())),
        ),
        files=tuple(files),
        end_position={int(partition): offset for partition, offset in json.loads(row.end_position_json).items()},
        signature="",
    )  # fmt: skip


def _stored_rule(stored: Mapping[str, Any]) -> Gate:
    """The rule of a verdict; an older verdict has `lower_is_better` instead of `direction`."""
    rule = dict(stored)
    if "lower_is_better" in rule:
        rule["direction"] = "lower" if rule.pop("lower_is_better") else "higher"
    return read_gate(rule)


def _draft_json(draft: VersionDraft) -> str:
    apart = ("files", "signature")
    return json_text(
        {name: value for name, value in vars(draft).items() if name not in apart} | {"gate": asdict(draft.gate)}
    )


def add_signature(connection: Connection, model: str, version: int, draft: VersionDraft) -> str:
    """Stores the draft's signature, if it has one; the ids of its keys, separated by commas.

    Raises:
        Conflict: it is of another version number; the caller signs again.
        InvalidInput: it is of another model or other files, or no signature.
    """
    if not draft.signature:
        return ""
    envelope = read_envelope(draft.signature)
    statement = envelope.statement()
    if statement.model == model and statement.version != version:
        raise Conflict(f"the signature is of version {statement.version} of {model}, and this one becomes {version}")
    if difference := statement.difference(model, version, digests_of(draft.files)):
        raise InvalidInput(difference)
    connection.execute(insert(signatures).values(model=model, version=version, envelope=draft.signature))
    return ",".join(envelope.signatures)


def signature_of(connection: Connection, model: str, version: int) -> str:
    """ "" where there is none."""
    chosen = (signatures.c.model == model) & (signatures.c.version == version)
    return connection.execute(select(signatures.c.envelope).where(chosen)).scalar_one_or_none() or ""
