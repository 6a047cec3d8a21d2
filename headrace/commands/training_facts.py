"""How a version was trained, for `headrace show`: its steps, what ended them, how fast, and its evaluations."""

from collections.abc import Mapping
from typing import Any

from common.counted import counted
from common.registry.catalog import Version
from headrace.commands.session import print_table

_SHOWN_EVALUATIONS = 20


def left_out(version: Version) -> str:
    """Of the version's own range, what its training ended before; empty where that is nothing."""
    found = version.environment.get("training", {}).get("left_out")
    return f", {found['examples']:,} left out ({found['reason']})" if found else ""


def duplicates(version: Version) -> str:
    """How many of the held-out events were trained on as well; empty where none was, or nobody has counted."""
    found = version.evaluation.get("duplicates", {}).get("same_features", 0)
    return f" ({found:,} with the features of a trained one)" if found else ""


def judged(version: Version) -> str:
    """On how many examples; "-" where nothing was measured, or before versions told it."""
    window = version.evaluation.get("window")
    if not window:
        return "-"
    of = ", ".join(f"{one['partition']}: {one['from_offset']} to {one['to_offset']}" for one in window["ranges"])
    earlier = f", {window['earlier']:,} of them from earlier rounds (range {of})" if of else ""
    unusable = f"; {window['unusable']:,} others could not be used" if window["unusable"] else ""
    return f"{window['examples']:,} held-out examples{earlier}{unusable}"


def course(version: Version) -> str:
    told = version.environment.get("training")
    if not told:
        return "-"
    best = f", the best evaluation at step {told['best_step']:,}" if "best_step" in told else ""
    rates = f"{told['steps_per_second']:,.1f} steps and {told['examples_per_second']:,.0f} examples a second"
    ways = "".join(f"; {key}: {told[key]}" for key in ("execution", "input") if key in told)
    return f"{counted(told['steps'], 'step')}, ended by {told['ended_by']}{best}; {rates}{ways}{_asynchronous(told)}"


def _asynchronous(told: Mapping[str, Any]) -> str:
    found = told.get("asynchronous")
    if not found:
        return ""
    staleness = found["staleness"]
    processes = f"{counted(found['workers'], 'worker')} and {counted(found['servers'], 'server')}"
    counts = f"{processes}, {counted(found['updates'], 'update')}"
    stale = f"staleness {staleness['mean']:g} in the mean and {staleness['max']} at most"
    dropped = f"{counted(found['dropped_gradients'], 'gradient')} dropped"
    again = f"{dropped}, {counted(found['computed_again'], 'batch')} computed again"
    held, served = max(found.get("held_bytes_by_worker", [0])), found.get("served_bytes", 0)
    shares = f", a worker held {held:,} of {served:,} bytes at most" if served else ""
    return f"; asynchronous: {counts}, {stale}, {again}{shares}"


def print_evaluations(version: Version) -> None:
    """Those on the way, the last of them."""
    found = version.evaluation.get("by_step", [])[-_SHOWN_EVALUATIONS:]
    names = list(dict.fromkeys(name for one in found for name in one["metrics"]))
    if found:
        rows = [[f"{one['step']:,}", *(_number(one["metrics"].get(name)) for name in names)] for one in found]
        print_table("", (">step", *(f">{name}" for name in names)), rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def not_finite(told: Mapping[str, Any]) -> list[str]:
    """Of a failure: the step, operation and layer that made a value that is not finite, and on which events."""
    if not told:
        return []
    operation = f"operation {told['operation']}" if told.get("operation") else ""
    known = [f"at step {told.get('step', 0)}", operation, told.get("layer", ""), told.get("place", "")]
    lines = [f"  not finite: {', '.join(filter(None, known))}"]
    for event in told.get("events", ()):
        values = ", ".join(f"{name} {value}" for name, value in event["event"].items())
        lines.append(f"  on the event at {event['at'] or 'an unknown place'}: {values}")
    return lines
