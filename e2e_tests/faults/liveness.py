"""When a version may answer: which one production named, and how long a fault was about."""

import math
from collections.abc import Callable, Sequence

from e2e_tests.faults.history import AliasMove, Entry, Fault, Recovery, Stall, of_kind

SWITCH_SECONDS = 15.0
"""How long a version that was replaced may still answer while no fault is about: the next one is loaded first."""
_LONGEST_RECOVERY_SECONDS = 180.0
"""Assumed for a fault whose recovery is not on record."""


class Liveness:
    """Which versions were behind production when."""

    def __init__(self, history: Sequence[Entry]) -> None:
        moves = sorted(of_kind(history, AliasMove), key=lambda move: move.at)
        ends = [move.at for move in moves[1:]] + [math.inf]
        self._windows = [(move.to_version, move.at, end) for move, end in zip(moves, ends, strict=False)]
        self._disturbances = disturbances(history, lambda fault: True)

    def was_live(self, version: int, asked_at: float, answered_at: float) -> bool:
        """Whether it may answer a question put and answered then. One that was replaced may for SWITCH_SECONDS, in
        which time under a fault does not count: a replica that is cut off or stopped cannot know."""
        return self.seconds_after(version, asked_at, answered_at) <= SWITCH_SECONDS

    def seconds_after(self, version: int, asked_at: float, answered_at: float) -> float:
        """Undisturbed seconds between the version's replacement and the question; inf if it was not live before."""
        found = math.inf
        for live_version, start, end in self._windows:
            if live_version == version and start <= answered_at:
                found = min(found, max(0.0, asked_at - end - self._disturbed_seconds(end, asked_at)))
        return found

    def is_disturbed(self, start: float, end: float) -> bool:
        """Whether a fault was about, or being recovered from, at any time of the span."""
        return any(at <= end and start <= until for at, until in self._disturbances)

    def _disturbed_seconds(self, start: float, end: float) -> float:
        return sum(max(0.0, min(end, until) - max(start, at)) for at, until in self._disturbances)


def disturbances(history: Sequence[Entry], counts: Callable[[Fault], bool]) -> list[tuple[float, float]]:
    """(from, to) of the faults that count, recoveries included, and of stalls; merged where they overlap."""
    recovered = {
        item.number: item.seconds if item.seconds is not None else _LONGEST_RECOVERY_SECONDS
        for item in of_kind(history, Recovery)
    }
    struck = [
        (fault.at, fault.until + recovered.get(fault.number, _LONGEST_RECOVERY_SECONDS))
        for fault in of_kind(history, Fault)
        if counts(fault)
    ]
    spans = sorted(struck + [(stall.at, stall.until) for stall in of_kind(history, Stall)])
    merged: list[tuple[float, float]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
