"""Versions that were made elsewhere: a SavedModel that a person brings, beside those that rounds make.

Such a version has a round that is done when it begins: it has no events, and its trigger is `pushed`. Where
it was not judged, no alias moves and a person promotes it; where a trainer has measured it beside the live version,
the gate decides as it does about a round's candidate. No round starts from it, as it has no checkpoint: the head of the
model's line stays where it was, and the line's next version is judged as before.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.definition.gate import Gate
from common.errors import Conflict, InvalidInput
from common.registry.catalog import (
    PRODUCTION,
    ChangeKind,
    Decision,
    FileEntry,
    JsonMap,
    Model,
    RoundPlan,
    Verdict,
    Version,
    VersionDraft,
    VersionMetrics,
)
from common.registry.plan_notes import PUSHED
from services.registry.definitions import models, streams
from services.registry.definitions.shares import creator
from services.registry.rounds.plans import add_done_round
from services.registry.store.database import Transaction
from services.registry.store.documents import check_documents
from services.registry.store.history import check_author, remember
from services.registry.store.manifest import check_manifest
from services.registry.versions import published
from services.registry.versions.contract import refuse_changed, signature_changes
from services.registry.versions.gate import judge, refuse_large, refuse_skewed, refuse_slow

_FOLDER = "saved_model/"


@dataclass(frozen=True)
class Measured:
    """By a trainer, on the slice that the model's last round held out.

    Attributes:
        against: the version that `metrics` and `evaluation` call the parent; both as a draft has them.
        gate: the definition's, by which that trainer measured.
    """

    against: int
    gate: Gate
    metrics: VersionMetrics
    evaluation: JsonMap
    held_out: int


def check_files(files: Sequence[FileEntry]) -> None:
    """Raises InvalidInput: the manifest is none, or has files outside of saved_model/."""
    check_manifest(files)
    other = next((file.path for file in files if not file.path.startswith(_FOLDER)), "")
    if other or not files:
        raise InvalidInput(f"a pushed version has files in {_FOLDER} and no others, got {other or 'none'}")


def push_version(
    transaction: Transaction, model_name: str, *, files: Sequence[FileEntry], contract: JsonMap, origin: str, by: str,
    reason: str, measured: Measured | None = None, signature: str = "",
) -> Version:  # fmt: skip
    """Registers the files as the model's next version; the caller has checked that they are there.

    Args:
        origin: where the files came from, in the pusher's words.
        measured: None: it is not judged.

    Raises:
        NotFound: there is no such model. Conflict: it is archived, or the signature is of another version number.
    """
    check_author(by, reason)
    check_documents(evaluation=measured.evaluation if measured else {})
    model = models.get_model(transaction.connection, model_name)
    if model.archived:
        raise Conflict(f"model {model.name} is archived")
    digest = _digest_of(files)
    pushed: dict[str, Any] = {"by": by, "reason": reason, "origin": origin, "digest": digest}
    plan = RoundPlan(
        model=model.name, sequence=model.round_sequence + 1, parent_version=model.head_version, stream=model.stream,
        schema_version=streams.get_stream(transaction.connection, model.stream, 0).schema_version, ranges=(),
        definition_digest=model.definition_digest, configuration={PUSHED: pushed}, configuration_digest="",
        code_digest="", seed=0, example_count=0, trigger=PUSHED, last_event_at=0.0,
    )  # fmt: skip
    draft = VersionDraft(
        weights_digest=digest, metrics={}, gate=Gate(), events_trained=0, events_held_out=0, events_unusable=0,
        files=tuple(files), step=0, timings={}, environment={PUSHED: pushed}, signature=signature,
    )  # fmt: skip
    if measured:
        pushed["against"] = measured.against
        draft = replace(
            draft, metrics=measured.metrics, evaluation=measured.evaluation, gate=measured.gate,
            events_held_out=measured.held_out,
        )  # fmt: skip
    verdict = (
        _judged(transaction, model, contract, measured, files)
        if measured
        else _unjudged(transaction, model, contract, by)
    )
    version = model.newest_version + 1
    row = add_done_round(transaction, plan, version)
    published.insert_version(transaction, version, row, draft, verdict, contract, pushed_by=creator())
    models.change(transaction, model.name, newest_version=version)
    transaction.record(ChangeKind.ROUND, model.name, detail=str(row.round_id))
    published.move_alias(transaction, model, version, verdict, row.round_id)
    remember(transaction, "push", by=by, reason=reason, model=model.name, version=version, detail=origin)
    return published.get_version(transaction.connection, model.name, version)


def _judged(
    transaction: Transaction, model: Model, contract: JsonMap, measured: Measured, files: Sequence[FileEntry]
) -> Verdict:
    verdict = judge(
        measured.gate, metrics=measured.metrics, evaluation=measured.evaluation, has_parent=True,
        held_out_count=measured.held_out,
    )  # fmt: skip
    live = model.aliases.get(PRODUCTION, model.head_version)
    before = published.contract_of_version(transaction.connection, model.name, live)
    verdict = refuse_changed(verdict, before=before, after=contract, allowed=False)
    verdict = refuse_skewed(refuse_slow(refuse_large(verdict, files), {}), {})
    if verdict.decision is Decision.REJECT:
        return verdict
    if measured.against != live:
        moved = f"production was moved from version {measured.against} to {live} while this version was measured"
        return replace(verdict, decision=Decision.HOLD, reasons=(*verdict.reasons, moved))
    return published.hold_if_waiting(verdict, model)


def _unjudged(transaction: Transaction, model: Model, contract: JsonMap, by: str) -> Verdict:
    live = model.aliases.get(PRODUCTION, 0)
    before = published.contract_of_version(transaction.connection, model.name, live)
    changes = signature_changes(before, contract)
    reasons = [f"pushed by {by}: no round made it and no gate judged it; `headrace promote` takes it"]
    if changes:
        reasons.append(f"its signatures are not those of version {live}: {'; '.join(changes)}")
    return Verdict(Decision.HOLD, tuple(reasons), Gate())


def _digest_of(files: Sequence[FileEntry]) -> str:
    """SHA-256 over paths and digests, in order of path."""
    lines = sorted(f"{file.path} {file.digest}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
