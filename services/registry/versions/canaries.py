"""A judge's decision moves a canary to the next stage, to production, or back. Each is taken once, by the stage."""

import contextlib
import logging
import math
from typing import Any

from common.errors import Conflict, InvalidInput
from common.registry.catalog import CANARY, PRODUCTION, JsonMap, Model, VersionStatus
from common.registry.live import ADVANCE, BACK, HOLD, PASSED, PROMOTE
from common.registry.reporting import Report
from services.registry.definitions import models
from services.registry.store.database import Transaction
from services.registry.versions import aliases, stages

logger = logging.getLogger(__name__)
_MOST_REASON = 1000
_VERDICTS = {PROMOTE: PASSED, HOLD: "inconclusive"}


def decide(transaction: Transaction, name: str, decided: JsonMap) -> dict[str, Any]:
    """The outcome, for the version's document: {"moved": a sentence} or {"stays": why}.

    Args:
        decided: {"version", "stage", "decision", "reason"}.

    Raises:
        InvalidInput: it is no decision.
    """
    model = models.get_model(transaction.connection, name)
    canary = model.canary
    if decided.get("decision") not in (ADVANCE, PROMOTE, BACK, HOLD):
        raise InvalidInput(f"decision must be advance, promote, back or hold, got {str(decided.get('decision'))[:100]}")
    stage = decided.get("version"), decided.get("stage")
    if (canary.get("version"), canary.get("stage")) != stage or canary["verdict"]:
        return {"stays": f"the canary is {_stands(canary)} by now"}
    if decided["decision"] == ADVANCE:
        further = stages.at_stage(transaction, model, dict(canary), canary["stage"] + 1)
        stages.store(transaction, model, further)
        return {"moved": f"stage {further['stage'] + 1} of {further['stages']}: {further['share']:g} % of the requests"}
    if decided["decision"] == BACK:
        return _take_back(transaction, model, str(decided["reason"]))
    stages.store(transaction, model, {**canary, "verdict": _VERDICTS[decided["decision"]]})
    if decided["decision"] == HOLD:
        return {"stays": "a person promotes it or takes it away"}
    return promote(transaction, model, str(decided["reason"]))


def unfit(canary: JsonMap, model: str, report: Report) -> str:
    """Why a replica cannot serve the canary, by its report; "" where it can."""
    version, replica = canary["version"], report.instance_id
    for served in report.serves:
        if (served.model, served.version, served.given_up) == (model, version, True):
            return f"replica {replica} cannot load canary version {version}: {served.reason}"[:_MOST_REASON]
    for part in report.parts:
        held = part.numbers.get("runner_private_bytes", 0.0) if (part.model, part.version) == (model, version) else 0.0
        if held > canary.get("memory_bytes", math.inf):
            return (
                f"canary version {version} does not keep to the guard memory_bytes: {held:,.0f} bytes of replica "
                f"{replica}, {canary['memory_bytes']:,} are allowed"
            )
    return ""


def _stands(canary: JsonMap) -> str:
    if not canary:
        return "none"
    return f"version {canary['version']} at stage {canary['stage'] + 1}{canary['verdict'] and ', ' + canary['verdict']}"


def _take_back(transaction: Transaction, model: Model, reason: str) -> dict[str, Any]:
    version = model.canary["version"]
    aliases.set_alias(transaction, model.name, CANARY, 0, by=aliases.JUDGE, reason=reason)
    aliases.set_status(transaction, model.name, version, VersionStatus.REJECTED)
    logger.error("the canary went back", extra={"model": model.name, "version": version, "reason": reason})
    return {"moved": "it is no canary any more"}


def promote(transaction: Transaction, model: Model, reason: str) -> dict[str, Any]:
    """It becomes production, and the newest version that was held while it was judged becomes the next canary."""
    version, by = model.canary["version"], aliases.JUDGE
    try:
        after = aliases.set_alias(transaction, model.name, PRODUCTION, version, by=by, reason=reason)
    except Conflict as error:
        return {"stays": error.message}
    waiting = after.head_version if after.head_version != version else 0
    if waiting:
        with contextlib.suppress(Conflict):  # its files are gone: the next version that passes the gate has its events
            why = f"it waited for the verdict on version {version}"
            aliases.set_alias(transaction, model.name, CANARY, waiting, by=by, reason=why)
            return {"moved": f"it is production, and version {waiting} is canary"}
    aliases.set_alias(transaction, model.name, CANARY, 0, by=by, reason=f"version {version} is production")
    return {"moved": "it is production"}
