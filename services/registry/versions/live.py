"""Live quality of versions, as trainers measure it, and the judge's verdict: stored, shown and acted on in one
transaction.

A trainer counts labels from the position of the stored state and hands the next state in by compare-and-set. So a label
counts once for any number of trainers, and another trainer reads the samples again that a dead trainer had not handed
in.
"""

import json
import logging
from typing import Any

from sqlalchemy import Connection, select

from common.errors import Conflict, InvalidInput
from common.registry.catalog import PRODUCTION, JsonMap, Model
from common.registry.live import PASSED, Evidence
from services.registry.definitions import models
from services.registry.store.database import Transaction
from services.registry.store.dialects import upsert
from services.registry.store.tables import live, live_versions
from services.registry.versions import aliases, canaries

logger = logging.getLogger(__name__)
MOST_STATE_BYTES = 3 * 1024 * 1024
_SHOWN = 10


def get_evidence(connection: Connection, model: str) -> Evidence:
    """The stored revision and state. Raises NotFound: there is no such model."""
    models.get_model(connection, model)
    row = connection.execute(select(live).where(live.c.model == model)).one_or_none()
    return Evidence(0) if row is None else Evidence(row.revision, json.loads(row.state_json))


def put_evidence(transaction: Transaction, model: str, evidence: Evidence) -> int:
    """Stores it, moves production back from a version that the judge found worse, if that is still in production, and
    moves the canary as decided.

    Returns:
        The new revision.

    Raises:
        Conflict: another trainer has handed in the next revision.
        InvalidInput: it is too large. NotFound.
    """
    stored = get_evidence(transaction.connection, model).revision
    if stored != evidence.revision:
        raise Conflict(f"live quality of {model} is at revision {stored}, not at {evidence.revision}")
    state = json.dumps(evidence.state)
    if len(state) > MOST_STATE_BYTES:
        raise InvalidInput(f"the live state of {model} has {len(state)} bytes, at most {MOST_STATE_BYTES} are taken")
    values = {"revision": stored + 1, "state_json": state, "counts_json": json.dumps(evidence.counts),
              "updated_at": transaction.now}  # fmt: skip
    upsert(transaction.connection, live, ["model"], {"model": model, **values}, values)
    for version, document in evidence.versions.items():
        shown = dict(document)
        if version == evidence.back_from:
            outcome = _go_back(transaction, model, version, evidence.reason)
            shown["judge"] = {**shown["judge"], "reason": evidence.reason, **outcome}
        if version == evidence.canary.get("version"):
            shown["canary"] = _decided(transaction, model, shown["canary"], evidence.canary)
        _put_version(transaction, model, version, shown)
    return stored + 1


def decide_canary(transaction: Transaction, model: str, decided: JsonMap) -> None:
    """A decision of the registry's own (canaries.unfit), beside the evidence that there is."""
    known = evidence_of(transaction.connection, model, decided["version"]).get("canary")
    known = known or _nothing_compared(models.get_model(transaction.connection, model), transaction.connection)
    document = _decided(transaction, model, {**known, "verdict": "unfit"}, decided)
    _put_version(transaction, model, decided["version"], {"canary": document})


def promote_passed(transaction: Transaction, name: str) -> None:
    """The canary whose promotion a pin stopped, if there is any, becomes production."""
    model = models.get_model(transaction.connection, name)
    if model.canary.get("verdict") != PASSED:
        return
    version = model.canary["version"]
    known = evidence_of(transaction.connection, name, version).get("canary", {})
    document = {part: value for part, value in known.items() if part != "stays"}
    reason = document.get("reason", f"version {version} had passed its stages")
    _put_version(transaction, name, version, {"canary": document | canaries.promote(transaction, model, reason)})


def _nothing_compared(model: Model, connection: Connection) -> JsonMap:
    rollout = models.rollout_of(connection, model.definition_digest)
    assert rollout is not None
    assert rollout.canary is not None
    judge, canary = rollout.judge, rollout.canary
    return {
        "against": model.aliases[PRODUCTION], "metric": judge.metric, "margin": judge.margin, "alpha": judge.alpha,
        "samples": 0, "difference": None, "e_value": 1.0, "no_worse_e_value": 1.0, "curve": [], "guards": [],
        "stage": model.canary["stage"], "shares": list(canary.shares), "by": canary.by, "stage_samples": 0,
    }  # fmt: skip


def _decided(transaction: Transaction, model: str, document: JsonMap, decided: JsonMap) -> JsonMap:
    return {**document, "reason": decided["reason"], **canaries.decide(transaction, model, decided)}


def _put_version(transaction: Transaction, model: str, version: int, document: JsonMap) -> None:
    values: dict[str, Any] = {"updated_at": transaction.now}
    values |= {f"{part}_json": json.dumps(document[part]) for part in ("tracks", "judge", "canary") if part in document}
    row = {"model": model, "version": version, **values}
    upsert(transaction.connection, live_versions, ["model", "version"], row, values)


def _go_back(transaction: Transaction, model: str, version: int, reason: str) -> dict[str, Any]:
    """{"moved_to": version}, or {"stays": why}."""
    before = models.get_model(transaction.connection, model)
    if before.aliases.get(PRODUCTION) != version:
        return {"stays": f"production is at {before.aliases.get(PRODUCTION, 0)} by now"}
    try:
        target = aliases.leave(transaction, before, by=aliases.JUDGE, reason=reason)
    except Conflict as error:
        return {"stays": error.message}
    logger.error("production went back", extra={"model": model, "version": target, "reason": reason})
    return {"moved_to": target}


def live_quality(connection: Connection, model: str) -> JsonMap:
    """As GET /v1/models/{model}/live shows it. Raises NotFound."""
    known = models.get_model(connection, model)
    empty = {"revision": 0, "updated_at": 0.0, "counts": {}, "versions": []}
    return {"model": model, "aliases": dict(known.aliases), **(measured(connection, model) or empty)}


def measured(connection: Connection, model: str) -> dict[str, Any]:
    """The newest versions of which labelled predictions are known, in one query; {} for none."""
    beside = live.outerjoin(live_versions, live.c.model == live_versions.c.model)
    columns = (live.c.revision, live.c.counts_json, live.c.updated_at.label("read_at"), live_versions)
    query = select(*columns).select_from(beside).where(live.c.model == model)
    rows = connection.execute(query.order_by(live_versions.c.version.desc()).limit(_SHOWN)).all()
    if not rows:
        return {}
    return {
        "revision": rows[0].revision,
        "updated_at": rows[0].read_at,
        "counts": json.loads(rows[0].counts_json),
        "versions": [_shown(row) for row in rows if row.version is not None],
    }


def evidence_of(connection: Connection, model: str, version: int) -> JsonMap:
    """A version's evidence; {} for none."""
    chosen = (live_versions.c.model == model) & (live_versions.c.version == version)
    row = connection.execute(select(live_versions).where(chosen)).one_or_none()
    return _shown(row) if row is not None else {}


def _shown(row: Any) -> dict[str, Any]:
    judged = {part: json.loads(text) for part, text in (("judge", row.judge_json), ("canary", row.canary_json))}
    return {
        "version": row.version,
        "updated_at": row.updated_at,
        "tracks": json.loads(row.tracks_json),
        **{part: found for part, found in judged.items() if found},
    }
