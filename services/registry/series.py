"""Short series of reported numbers: 24 h at 10 s, so that a day can be looked at without a Prometheus.

In memory, an hour at a time: the hour that has passed out of the day goes as a whole, and so does the oldest hour when
the room is full.
"""

import math
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from common.errors import InvalidInput
from common.registry.catalog import JsonMap
from common.registry.reporting import Report

STEP_SECONDS = 10
KEPT_SECONDS = 24 * 3600
MAX_SERIES_HOURS = 20_000
"""29 MB: 830 series through a whole day."""
_HOUR_SLOTS = 3600 // STEP_SECONDS
_MAX_POINTS = 400
_MAX_FOUND = 200


@dataclass(frozen=True, order=True)
class SeriesKey:
    """A number and its source."""

    name: str
    """As in the reports' numbers."""
    service: str
    instance_id: str
    stream: str = ""
    model: str = ""
    version: int = 0


@dataclass(frozen=True)
class Wanted:
    """Which series; "" and None stand for any. `version` 0 is the model as a whole."""

    name: str
    service: str = ""
    instance_id: str = ""
    stream: str | None = None
    model: str | None = None
    version: int | None = None

    def takes(self, key: SeriesKey) -> bool:
        return (
            key.name == self.name
            and self.service in ("", key.service)
            and self.instance_id in ("", key.instance_id)
            and self.stream in (None, key.stream)
            and self.model in (None, key.model)
            and self.version in (None, key.version)
        )


class Series:
    """Thread-safe.

    Args:
        max_series_hours: how many hours of a series are kept in all; each takes 1.4 kB.
    """

    def __init__(self, clock: Callable[[], float], *, max_series_hours: int = MAX_SERIES_HOURS) -> None:
        self._clock, self._max = clock, max_series_hours
        self._lock = threading.Lock()
        self._hours: dict[int, dict[SeriesKey, array[float]]] = {}
        self._slot = 0
        self._counts: dict[SeriesKey, int] = {}
        """How often each was reported in the slot of now."""

    def take(self, report: Report) -> None:
        """Notes every number of the report but the totals, whose rates stand beside them."""
        slot = int(self._clock() // STEP_SECONDS)
        hour, place = divmod(slot, _HOUR_SLOTS)
        with self._lock:
            if slot != self._slot:
                self._slot, self._counts = slot, {}
            series = self._hours.setdefault(hour, {})
            self._forget(hour)
            for key, value in _numbers_of(report):
                points = series.get(key)
                if points is None:
                    if not self._has_room(hour):
                        return
                    points = series[key] = array("f", [math.nan]) * _HOUR_SLOTS
                count = self._counts[key] = self._counts.get(key, 0) + 1
                points[place] = _together(key.name, points[place], value, count) if count > 1 else value

    def find(self, wanted: Wanted, *, seconds: int, step_seconds: int = 0) -> JsonMap:
        """As GET /v1/series shows it: points from `from` on, null where nothing was reported.

        A point of several slots is their mean; of a percentile (its name has _p99_ or the like) the largest of them.
        Raises InvalidInput: no number has the name; the sentence lists the names."""
        step = max(step_seconds or math.ceil(seconds / _MAX_POINTS), STEP_SECONDS)
        width = math.ceil(step / STEP_SECONDS)
        with self._lock:
            found = sorted({key for series in self._hours.values() for key in series if wanted.takes(key)})[:_MAX_FOUND]
            if not found:
                self._check_name(wanted.name)
            end = int(self._clock() // STEP_SECONDS) + 1
            start = (end - min(seconds, KEPT_SECONDS) // STEP_SECONDS) // width * width
            rows = [self._points(key, start, end) for key in found]
        return {
            "from": start * STEP_SECONDS,
            "step_seconds": width * STEP_SECONDS,
            "series": [
                {**asdict(key), "points": _thinned(points, width, largest=is_percentile(key.name))}
                for key, points in zip(found, rows, strict=True)
            ],
        }

    def names(self) -> list[str]:
        with self._lock:
            return self._names()

    def _names(self) -> list[str]:
        return sorted({key.name for series in self._hours.values() for key in series})

    def _points(self, key: SeriesKey, start: int, end: int) -> list[float]:
        found: list[float] = []
        for hour in range(start // _HOUR_SLOTS, (end - 1) // _HOUR_SLOTS + 1):
            points = self._hours.get(hour, {}).get(key)
            first, last = max(start - hour * _HOUR_SLOTS, 0), min(end - hour * _HOUR_SLOTS, _HOUR_SLOTS)
            found += points[first:last] if points is not None else [math.nan] * (last - first)
        return found

    def _check_name(self, name: str) -> None:
        names = self._names()
        if names and name not in names:
            raise InvalidInput(f"nothing reports {name!r}; known: {', '.join(names)}")

    def _forget(self, hour: int) -> None:
        for old in [known for known in self._hours if known < hour - KEPT_SECONDS // 3600]:
            del self._hours[old]

    def _has_room(self, hour: int) -> bool:
        """Makes room by giving up the oldest hour; the current hour is never given up for its own series."""
        while sum(map(len, self._hours.values())) >= self._max:
            oldest = min(self._hours)
            if oldest == hour:
                return False
            del self._hours[oldest]
        return True


def is_percentile(name: str) -> bool:
    return any(part[:1] == "p" and part[1:].isdigit() for part in name.split("_"))


def _together(name: str, before: float, value: float, count: int) -> float:
    """A slot's point after its `count`-th report. A rate is of the seconds since the report before, so a slot's rate
    is their mean: a burst of two seconds is seen. Of a percentile the largest; else the last value."""
    if is_percentile(name):
        return max(before, value)
    return before + (value - before) / count if name.endswith("_per_second") else value


def _numbers_of(report: Report) -> Iterator[tuple[SeriesKey, float]]:
    for name, value in report.numbers.items():
        if not name.endswith("_total"):
            yield SeriesKey(name, report.service, report.instance_id), value
    for part in report.parts:
        for name, value in part.numbers.items():
            if not name.endswith("_total"):
                place = part.stream, part.model, part.version
                yield SeriesKey(name, report.service, report.instance_id, *place), value


def _thinned(points: list[float], width: int, *, largest: bool) -> list[float | None]:
    found: list[float | None] = []
    for first in range(0, len(points), width):
        known = [value for value in points[first : first + width] if math.isfinite(value)]
        if not known:
            found.append(None)
            continue
        found.append(float(f"{max(known) if largest else sum(known) / len(known):.6g}"))
    return found
