"""How a version was trained, for `headrace show`: its steps, what ended them, how fast, and its evaluations."""

from collections.abc import Mapping
from typing import Any

from common.counted import counted
from common.registry.catalog import Version
from headrace.commands.evaluation_tables import number_of
from headrace.commands.session import print_table

_SHOWN_EVALUATIONS = 20


def left_out(version: Version) -> str:
    """Of the version's own range, what its training ended before; empty where that is nothing."""
    found = version.environment.get("training", {}).get("left_out")
    return f", {found['examples']:,} left out ({found['reason']})" if found else ""


def duplicates(version: Version) -> str:
    """How many of the held-out events were trained on as well; empty where none was, or none was counted."""
    found = version.evaluation.get("duplicates", {}).get("same_features", 0)
    return f" ({found:,} with the features of a trained event)" if found else ""


def judged(version: Version) -> str:
    """On how many examples; "-" where nothing was measured, or the version is older than this figure."""
    window = version.evaluation.get("window")
    if not window:
        return "-"
    of = ", ".join(f"{part['partition']}: {part['from_offset']} to {part['to_offset']}" for part in window["ranges"])
    earlier = f", {window['earlier']:,} of them from earlier rounds (range {of})" if of else ""
    unusable = f"; {window['unusable']:,} others could not be used" if window["unusable"] else ""
    return f"{window['examples']:,} held-out examples{earlier}{unusable}"


def course(version: Version) -> str:
    training = version.environment.get("training")
    if not training:
        return "-"
    best = f", the best evaluation at step {training['best_step']:,}" if "best_step" in training else ""
    rates = f"{training['steps_per_second']:,.1f} steps and {training['examples_per_second']:,.0f} examples a second"
    ways = "".join(f"; {key}: {training[key]}" for key in ("execution", "input") if key in training)
    steps = counted(training["steps"], "step")
    return f"{steps}, ended by {training['ended_by']}{best}; {rates}{ways}{_asynchronous(training)}"


def _asynchronous(training: Mapping[str, Any]) -> str:
    found = training.get("asynchronous")
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
    names = list(dict.fromkeys(name for evaluation in found for name in evaluation["metrics"]))
    if found:
        rows = [
            [f"{evaluation['step']:,}", *(number_of(evaluation["metrics"].get(name)) for name in names)]
            for evaluation in found
        ]
        print_table("", (">step", *(f">{name}" for name in names)), rows)


def not_finite(failure: Mapping[str, Any]) -> list[str]:
    """The step, operation and layer of a failure that made a value that is not finite, and the events."""
    if not failure:
        return []
    operation = f"operation {failure['operation']}" if failure.get("operation") else ""
    known = [f"at step {failure.get('step', 0)}", operation, failure.get("layer", ""), failure.get("place", "")]
    lines = [f"  not finite: {', '.join(filter(None, known))}"]
    for event in failure.get("events", ()):
        values = ", ".join(f"{name} {value}" for name, value in event["event"].items())
        lines.append(f"  on the event at {event['at'] or 'an unknown place'}: {values}")
    return lines
