"""The stages in which a canary comes to production (rollout: canary of the definition).

Model.canary says which version is at which stage; replicas read there what share of the requests it answers. It is a
consequence of the aliases and the definition, so it is settled wherever either of them changes.
"""

import json
from typing import Any

from common.registry.catalog import CANARY, PRODUCTION, ChangeKind, JsonMap, Model
from services.registry.definitions import models
from services.registry.store.database import Transaction


def is_open(canary: JsonMap) -> bool:
    """Whether there is a canary that is still being judged."""
    return bool(canary) and not canary["verdict"]


def follow_stages(transaction: Transaction, name: str) -> None:
    """Begins with the first stage where the alias canary names another version, and ends where it names none beside
    production. A definition with other stages leaves the canary at its own, or at the last stage."""
    model = models.get_model(transaction.connection, name)
    store(transaction, model, _now(transaction, model))


def store(transaction: Transaction, model: Model, canary: JsonMap) -> None:
    """Replicas hear of it by the model's change."""
    if canary != model.canary:
        models.change(transaction, model.name, canary_json=json.dumps(canary, sort_keys=True))
        transaction.record(ChangeKind.MODEL, model.name)


def at_stage(transaction: Transaction, model: Model, canary: dict[str, Any], stage: int) -> dict[str, Any]:
    """{} where the definition has no stages."""
    rollout = models.rollout_of(transaction.connection, model.definition_digest)
    staged = rollout.canary if rollout else None
    if staged is None:
        return {}
    stage = min(stage, len(staged.shares) - 1)
    guards = {"slices": staged.slices, "memory_bytes": staged.memory_bytes}
    stage_facts = {"stage": stage, "stages": len(staged.shares), "share": staged.shares[stage], "by": staged.by}
    others = {name: value for name, value in canary.items() if name not in guards}
    return others | stage_facts | {name: limit for name, limit in guards.items() if limit is not None}


def _now(transaction: Transaction, model: Model) -> dict[str, Any]:
    version, production = model.aliases.get(CANARY, 0), model.aliases.get(PRODUCTION, 0)
    if not version or not production or version == production:
        return {}
    if model.canary.get("version") == version:
        return at_stage(transaction, model, dict(model.canary), model.canary["stage"])
    return at_stage(transaction, model, {"version": version, "since": transaction.now, "verdict": ""}, 0)
