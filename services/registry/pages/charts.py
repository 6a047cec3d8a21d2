"""Where the lines and bars of small SVG pictures lie; the templates draw them."""

from collections.abc import Mapping, Sequence
from typing import Any

Points = Sequence[float | None]
WIDTH, HEIGHT = 120.0, 28.0
_COLOURS = 6


def spark(points: Points) -> str:
    """`d` of a path in a box of WIDTH x HEIGHT from 0 to the largest value, from where something is known; "" for less
    than two points."""
    first = next((place for place, value in enumerate(points) if value is not None), len(points))
    points = points[first:]
    known = [value for value in points if value is not None]
    if len(known) < 2:
        return ""
    top = max(max(known), 1e-12)
    step = WIDTH / max(1, len(points) - 1)
    parts, is_down = [], False
    for place, value in enumerate(points):
        if value is None:
            is_down = False
            continue
        parts.append(f"{'L' if is_down else 'M'}{place * step:.1f} {HEIGHT - 2 - (HEIGHT - 4) * value / top:.1f}")
        is_down = True
    return "".join(parts)


def bars(shares: Sequence[float]) -> str:
    """`d` of a path of bars in the same box, the highest as high as the box; "" for none."""
    top = max(shares, default=0.0)
    if top <= 0:
        return ""
    width = WIDTH / len(shares)
    heights = [(HEIGHT - 2) * share / top for share in shares]
    return "".join(
        f"M{place * width:.1f} {HEIGHT:.0f}v{-height:.1f}h{max(0.5, width - 1):.1f}v{height:.1f}z"
        for place, height in enumerate(heights)
        if height > 0
    )


def overlaid(lines: Mapping[str, tuple[Sequence[float], Points]], *, label: str) -> dict[str, Any]:
    """Lines over one another in a box of WIDTH x HEIGHT, from the least to the greatest of all their values.

    Returns:
        {"label": of the values across, "x" and "y": (least, greatest), "lines": [{"name", "d" of its path, "last": its
        last value}]}; {} where less than two points are known of every line.
    """
    known = {
        name: [(at, value) for at, value in zip(across, up, strict=True) if value is not None]
        for name, (across, up) in lines.items()
    }
    known = {name: points for name, points in known.items() if len(points) > 1}
    if not known:
        return {}
    edges = [[point[side] for points in known.values() for point in points] for side in (0, 1)]
    x, y = ((min(values), max(values)) for values in edges)
    return {
        "label": label,
        "x": x,
        "y": y,
        "lines": [
            {"name": name, "d": _path(points, x, y), "last": points[-1][1]} for name, points in known.items()
        ],
    }  # fmt: skip


def _path(points: Sequence[tuple[float, float]], x: tuple[float, float], y: tuple[float, float]) -> str:
    """Within a margin of 2 above and below, so that a flat line is not at the edge."""
    wide, high = (WIDTH / ((x[1] - x[0]) or 1.0), (HEIGHT - 4) / ((y[1] - y[0]) or 1.0))
    places = [f"{(at - x[0]) * wide:.2f} {HEIGHT - 2 - (value - y[0]) * high:.2f}" for at, value in points]
    return f"M{'L'.join(places)}"


def added(rows: Sequence[Points], *, largest: bool = False) -> list[float | None]:
    """One series of several: their sum, or the largest, point by point."""
    found: list[float | None] = []
    for values in zip(*rows, strict=True):
        known = [value for value in values if value is not None]
        found.append((max(known) if largest else sum(known)) if known else None)
    return found


def shares(values: Mapping[str, float]) -> list[dict[str, Any]]:
    """Parts of one bar of width 100: [{"name", "value", "x", "width", "colour"}], without those that are nothing."""
    total = sum(value for value in values.values() if value > 0)
    found, x = [], 0.0
    for place, (name, value) in enumerate(values.items()):
        if value <= 0:
            continue
        width = 100.0 * value / total
        found.append({
            "name": name, "value": value, "x": round(x, 3), "width": round(width, 3), "colour": place % _COLOURS,
        })  # fmt: skip
        x += width
    return found


def spans(rows: Sequence[Mapping[str, Any]], start: float, end: float) -> list[dict[str, Any]]:
    """Rows of a Gantt chart with `pieces` as {"x", "width"} in hundredths of [start, end]."""
    length = max(end - start, 1e-9)
    found = []
    for row in rows:
        pieces = []
        for piece in row["pieces"]:
            first, last = max(piece["from"], start), min(piece["to"], end)
            if last < first:
                continue
            width = max(100.0 * (last - first) / length, 0.3)
            x = min(100.0 * (first - start) / length, 100.0 - width)
            pieces.append({**piece, "x": round(x, 3), "width": round(width, 3)})
        found.append({**row, "pieces": pieces})
    return found
