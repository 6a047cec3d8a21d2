"""Versions that were made elsewhere: a SavedModel that a person brings, beside those that rounds make.

Such a version has a round of its own that is done when it begins: it has no events, and its trigger is `pushed`. Nobody
has judged it, so no alias moves; a person promotes it. No round starts from it, as it has no checkpoint: the head of
the model's line stays where it was, and what the line makes next is judged as before.
"""

import hashlib
from collections.abc import Sequence

from common.definition.gate import Gate
from common.errors import Conflict, InvalidInput
from common.registry.catalog import (
    PRODUCTION,
    PUSHED,
    ChangeKind,
    Decision,
    FileEntry,
    JsonMap,
    Model,
    RoundPlan,
    Verdict,
    Version,
    VersionDraft,
)
from services.registry.definitions import models, streams
from services.registry.rounds.plans import add_done_round
from services.registry.store.database import Transaction
from services.registry.store.history import check_author, remember
from services.registry.store.manifest import check_manifest
from services.registry.versions import published
from services.registry.versions.contract import signature_changes

_FOLDER = "saved_model/"


def check_files(files: Sequence[FileEntry]) -> None:
    """Raises InvalidInput: the manifest is none, or has files outside of saved_model/."""
    check_manifest(files)
    other = next((file.path for file in files if not file.path.startswith(_FOLDER)), "")
    if other or not files:
        raise InvalidInput(f"a pushed version has files in {_FOLDER} and no others, got {other or 'none'}")


def push_version(
    transaction: Transaction, model_name: str, *, files: Sequence[FileEntry], contract: JsonMap, origin: str, by: str,
    reason: str,
) -> Version:  # fmt: skip
    """Registers the files as the model's next version; the caller has checked that they are there.

    Args:
        origin: where the files came from, in the pusher's words.

    Raises:
        NotFound: there is no such model. Conflict: it is archived.
    """
    check_author(by, reason)
    model = models.get_model(transaction.connection, model_name)
    if model.archived:
        raise Conflict(f"model {model.name} is archived")
    digest = _digest_of(files)
    pushed = {"by": by, "reason": reason, "origin": origin, "digest": digest}
    plan = RoundPlan(
        model=model.name, sequence=model.round_sequence + 1, parent_version=model.head_version, stream=model.stream,
        schema_version=streams.get_stream(transaction.connection, model.stream, 0).schema_version, ranges=(),
        definition_digest=model.definition_digest, configuration={PUSHED: pushed}, configuration_digest="",
        code_digest="", seed=0, example_count=0, trigger=PUSHED, last_event_at=0.0,
    )  # fmt: skip
    draft = VersionDraft(
        weights_digest=digest, metrics={}, gate=Gate(), events_trained=0, events_held_out=0, events_unusable=0,
        files=tuple(files), step=0, timings={}, environment={PUSHED: pushed},
    )  # fmt: skip
    version = model.newest_version + 1
    row = add_done_round(transaction, plan, version)
    published.insert_version(transaction, version, row, draft, _verdict(transaction, model, contract, by), contract)
    models.change(transaction, model.name, newest_version=version)
    transaction.record(ChangeKind.ROUND, model.name, detail=str(row.round_id))
    remember(transaction, "push", by=by, reason=reason, model=model.name, version=version, detail=origin)
    return published.get_version(transaction.connection, model.name, version)


def _verdict(transaction: Transaction, model: Model, contract: JsonMap, by: str) -> Verdict:
    live = model.aliases.get(PRODUCTION, 0)
    before = published.contract_of_version(transaction.connection, model.name, live)
    changes = signature_changes(before, contract)
    reasons = [f"pushed by {by}: no round made it and nobody judged it; `headrace promote` takes it"]
    if changes:
        reasons.append(f"its signatures are not those of version {live}: {'; '.join(changes)}")
    return Verdict(Decision.HOLD, tuple(reasons), Gate())


def _digest_of(files: Sequence[FileEntry]) -> str:
    """SHA-256 over paths and digests, in order of path."""
    lines = sorted(f"{file.path} {file.digest}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
