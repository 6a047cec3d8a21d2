"""A model and its log as far as the planner has followed them, and their status."""

from dataclasses import dataclass, field
from typing import Any

from common.eventlog.base import Position
from common.registry.catalog import PRODUCTION, Model, Round
from services.trainer.plan.backlog import Backlog
from services.trainer.plan.chain import ModelState
from services.trainer.plan.triggers import Wait


@dataclass
class Tracked:
    """A model, as far as the planner has followed it."""

    state: ModelState
    backlog: Backlog = field(default_factory=Backlog)
    is_stale: bool = False
    waiting: Wait = field(default_factory=lambda: Wait("starting"))
    drift: str = ""
    """The drift of waiting events; "" where it is not measured."""
    shift: dict[str, Any] = field(default_factory=dict)
    """The shift of waiting events, as Shifts.of has it; {} where it is not measured or there is no version."""
    scores: dict[str, Any] = field(default_factory=dict)
    """Of production, as Scores.shown has it; {} for none."""
    quality: dict[str, Any] = field(default_factory=dict)
    """Of production, as Decline.shown has it; {} for none."""


@dataclass(frozen=True)
class LogBounds:
    """The stream's topic at this moment."""

    start: Position
    end: Position


def stopped(model: Model) -> str:
    return f"it is paused by {model.paused}" if model.paused else "it is archived"


def shown(found: Round) -> str:
    return f"round {found.round_id} ({f'stopped by {found.stopped_by}' if found.stopped_by else found.state})"


def status_of(tracked: Tracked) -> dict[str, Any]:
    model, open_round = tracked.state.model, tracked.state.open_round
    drift = tracked.state.definition.triggers.drift
    return {
        "model": model.name,
        "stream": model.stream,
        "production_version": model.aliases.get(PRODUCTION, 0),
        "newest_version": model.newest_version,
        "lag_examples": tracked.backlog.examples,
        "round": None if open_round is None else _round_status(open_round),
        "next_round": {"waiting_for": tracked.waiting.reason, "not_before": tracked.waiting.until},
        **({"quality": tracked.quality} if tracked.state.definition.triggers.quality else {}),
        **({"drift": tracked.shift | ({"scores": tracked.scores} if tracked.scores else {})} if drift else {}),
        "backoff": {
            "consecutive_failures": model.consecutive_failures,
            "retry_at": model.retry_at,
            "last_failure": model.last_failure,
        },
    }


def _round_status(found: Round) -> dict[str, Any]:
    return {
        "round_id": found.round_id,
        "state": str(found.state),
        "trigger": found.plan.trigger,
        "examples": found.plan.example_count,
        "holder": found.lease_holder,
        "attempts": found.attempts,
        "planned_at": found.planned_at,
        "reason": found.reason,
        "stopped_by": found.stopped_by,
        "progress": dict(found.progress),
    }
