"""docs/internals/scaling.svg: what more processes would give a round, by the cost of an exchange.

    seconds of a step on P processes = computing on one / P + (P - 1) * latency + bytes received / bandwidth
    bytes received = 2 * (P - 1) / P * bytes of a shard's gradients, for P and K powers of two

Latency and bandwidth are a least-squares fit to the exchanges of two processes by TensorFlow's collectives, which stand
in the table of docs/internals/performance.md.
"""

import math
import re
from pathlib import Path

import numpy as np

_INTERNALS = Path(__file__).parents[1] / "internals"
PLOT = _INTERNALS / "scaling.svg"
_ROW = re.compile(
    r"^\| [^|]+ \| (?P<step>[\d.]+) \| [^|]+ \| [^|]+ \| [^|]+ \| (?P<exchange>[\d.]+) ms[^|]* \| (?P<mb>[\d.]+) \|$",
    re.MULTILINE,
)
_PROCESSES = (1, 2, 4, 8, 16, 32, 64)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 420, 60, 370, 40, 500
_MOST, _LEAST = 64.0, 1 / 16
_STYLE = "font: 13px sans-serif; fill: #333"


def document() -> str:
    """Raises ValueError: the table is not there any more."""
    rows = [
        (float(found["step"]), float(found["exchange"]), float(found["mb"]))
        for found in _ROW.finditer((_INTERNALS / "performance.md").read_text())
    ]
    if len(rows) < 2:
        raise ValueError("docs/internals/performance.md has no table of exchanges to fit")
    latency_ms, ms_per_mb = _fit(rows)
    step_ms, _, shard_mb = rows[0]
    curves = [
        ("as much as there are processes", "#999", "4 4", [float(count) for count in _PROCESSES]),
        ("100 times the computing", "#1b7837", "", _speeds(100 * step_ms, shard_mb, latency_ms, ms_per_mb)),
        ("10 times the computing", "#5aae61", "", _speeds(10 * step_ms, shard_mb, latency_ms, ms_per_mb)),
        ("ten times the bandwidth", "#2166ac", "", _speeds(step_ms, shard_mb, latency_ms, ms_per_mb / 10)),
        ("compress: bfloat16", "#762a83", "", _speeds(step_ms, shard_mb / 2, latency_ms, ms_per_mb)),
        (f"the dense model, {step_ms:g} ms a step", "#b2182b", "", _speeds(step_ms, shard_mb, latency_ms, ms_per_mb)),
    ]
    title = f"Times one process: latency {latency_ms:.2f} ms, {1000 / ms_per_mb:.0f} MB/s (fitted), extrapolated"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="22" style="{_STYLE}">{title}</text>',
        *_axes(),
        *(_curve(*curve) for curve in curves),
        *_labels([(name, color, values[-1]) for name, color, _, values in curves]),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _fit(rows: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Milliseconds of one hop, and of a megabyte; neither below what could be."""
    design = np.array([[1.0, mb] for _, _, mb in rows])
    latency, per_mb = np.linalg.lstsq(design, np.array([exchange for _, exchange, _ in rows]), rcond=None)[0]
    return max(0.01, float(latency)), max(0.001, float(per_mb))


def _speeds(step_ms: float, shard_mb: float, latency_ms: float, ms_per_mb: float) -> list[float]:
    exchanges = [(count - 1) * (latency_ms + 2 / count * shard_mb * ms_per_mb) for count in _PROCESSES]
    return [step_ms / (step_ms / count + exchange) for count, exchange in zip(_PROCESSES, exchanges, strict=True)]


def _x(count: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * math.log2(count) / 6


def _y(times: float) -> float:
    share = math.log2(max(_LEAST, times) / _LEAST) / math.log2(_MOST / _LEAST)
    return _BOTTOM - (_BOTTOM - _TOP) * share


def _axes() -> list[str]:
    lines = [f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="#333"/>']
    lines += [
        f'<text x="{_x(count):.1f}" y="{_BOTTOM + 18}" text-anchor="middle" style="{_STYLE}">{count}</text>'
        for count in _PROCESSES
    ]
    for power in range(-4, 7, 2):
        y, shown = _y(2.0**power), f"{2.0**power:g}"
        lines.append(f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" style="{_STYLE}">{shown}</text>')
    lines.append(f'<text x="{_RIGHT}" y="{_BOTTOM + 38}" text-anchor="end" style="{_STYLE}">processes</text>')
    return lines


def _curve(name: str, color: str, dashes: str, values: list[float]) -> str:
    points = " ".join(f"{_x(count):.1f},{_y(value):.1f}" for count, value in zip(_PROCESSES, values, strict=True))
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    line = f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dashed}>'
    return f"{line}<title>{name}</title></polyline>"


def _labels(ends: list[tuple[str, str, float]]) -> list[str]:
    """Beside the curves' ends, from the top; apart where these are close."""
    found, free = [], 0.0
    for name, color, value in sorted(ends, key=lambda end: -end[2]):
        y = max(_y(value) + 4, free)
        free = y + 15
        found.append(f'<text x="{_RIGHT + 8}" y="{y:.1f}" style="font: 12px sans-serif; fill: {color}">{name}</text>')
    return found
