"""Adds a demonstration up, checks its promises, and writes report.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.registry.catalog import Version
from examples.demo.asker import Answered, percentile
from examples.demo.watcher import Load, Seen

AFTER_FIRST_ANSWER_SECONDS = 1.0
"""An answer counts as "during a reload" from the moment a version begins to load until this long after it serves."""
MANUAL = "manual"


@dataclass(frozen=True)
class Expectation:
    """What an example promises beside what every run does.

    Attributes:
        metric: the gate's metric.
        events: how many are replayed where the user names no number.
        events_per_second: the replay's rate.
        published: versions promoted by triggers, at least, in a run with all `events`.
        final_value: what the last promoted version's metric must pass; None for nothing.
    """

    metric: str
    events: int
    events_per_second: int
    published: int
    final_value: float | None = None


def reload_latencies(answers: Sequence[Answered], loads: Sequence[Load]) -> list[float]:
    """Ascending latencies, ms, of the answers due while a version was loading or had just begun to serve.

    The first version is left out: before it there was nothing to reload.
    """
    first = min((load.version for load in loads), default=0)
    windows = [
        (load.began_at, load.available_at + AFTER_FIRST_ANSWER_SECONDS) for load in loads if load.version != first
    ]
    return sorted(
        answer.latency_ms
        for answer in answers
        if answer.status == 200 and any(start <= answer.at <= end for start, end in windows)
    )


def version_row(seen: Seen, version: Version, metric: str, replica_count: int) -> dict[str, Any]:
    """One entry of `versions`. `freshness_seconds` counts from the ingest of the last event of the range until every
    replica served the version; None for a version that was not promoted."""
    served_at = seen.served_at(version, replica_count) if seen.is_promoted(version) else None
    fresh = None if served_at is None else round(served_at - version.last_event_at, 3)
    return {
        "version": version.version,
        "from": {str(item.partition): item.from_offset for item in version.ranges},
        "to": {str(item.partition): item.to_offset for item in version.ranges},
        "examples": version.events_trained + version.events_held_out,
        f"{metric}_parent": _metric(version, "parent", metric),
        f"{metric}_candidate": _metric(version, "candidate", metric),
        "verdict": str(version.verdict.decision),
        "freshness_seconds": fresh,
    }


def make_report(
    seen: Seen,
    *,
    accepted: int,
    answers: Sequence[Answered],
    stretches: Sequence[Mapping[str, Any]],
    metric: str,
    replica_count: int,
) -> dict[str, Any]:
    """What report.json holds. `stretches` are foresight's (foresight.py)."""
    chain = seen.chain()
    latencies = sorted(answer.latency_ms for answer in answers if answer.status == 200)
    rows = [version_row(seen, version, metric, replica_count) for version in seen.versions]
    fresh = sorted(row["freshness_seconds"] for row in rows if row["freshness_seconds"] is not None)
    return {
        "events_accepted": accepted,
        "events_trained": sum(version.events_trained for version in chain),
        "events_held_out": sum(version.events_held_out for version in chain),
        "versions": rows,
        "freshness": {
            "versions": len(fresh),
            "p50_seconds": percentile(fresh, 0.50),
            "p95_seconds": percentile(fresh, 0.95),
        },
        "foresight": list(stretches),
        "predictions": {
            "sent": len(answers),
            "failed": sum(answer.status != 200 for answer in answers),
            "p50_ms": percentile(latencies, 0.50),
            "p99_ms": percentile(latencies, 0.99),
            "p99_during_reload_ms": percentile(reload_latencies(answers, list(seen.loads.values())), 0.99),
        },
    }


def broken_promises(report: Mapping[str, Any], seen: Seen, expected: Expectation) -> list[str]:
    """One sentence for each; none when the run is what it should be."""
    broken: list[str] = []
    predictions = report["predictions"]
    if predictions["failed"] or not predictions["sent"]:
        broken.append(f"{predictions['failed']} of {predictions['sent']} predictions failed")
    used = report["events_trained"] + report["events_held_out"]
    if used != report["events_accepted"]:
        broken.append(f"{report['events_accepted']} events were accepted, but {used} trained on or held out")
    for version in seen.versions:
        found = seen.round_of(version)
        used = version.events_trained + version.events_held_out
        if found is not None and used != found.plan.example_count:
            broken.append(
                f"version {version.version} used {used} of the {found.plan.example_count} events in its range"
            )
    if report["events_accepted"] >= expected.events:
        broken += _as_expected(seen, expected)
    return broken


def _as_expected(seen: Seen, expected: Expectation) -> list[str]:
    broken: list[str] = []
    promoted = [version for version in seen.versions if seen.is_promoted(version)]
    by_trigger = [v for v in promoted if (found := seen.round_of(v)) is not None and found.plan.trigger != MANUAL]
    if len(by_trigger) < expected.published:
        broken.append(f"triggers published {len(by_trigger)} versions, not {expected.published}")
    last = _metric(promoted[-1], "candidate", expected.metric) if promoted else None
    if expected.final_value is not None and (last is None or last <= expected.final_value):
        broken.append(f"the last version's held-out {expected.metric} is {last}, not above {expected.final_value}")
    return broken


def _metric(version: Version, side: str, metric: str) -> float | None:
    value = version.metrics.get(side, {}).get(metric)
    return round(float(value), 4) if isinstance(value, int | float) else None
