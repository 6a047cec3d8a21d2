"""The AUC over time of every policy, as an SVG."""

from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 760, 400, 50, 350, 40, 560
_LEAST, _MOST = 0.3, 0.9
_COLORS = ("#999", "#762a83", "#2166ac", "#1b7837", "#b2182b")
_TEXT = "font: 12px sans-serif"


def svg(title: str, curves: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """`curves`: by policy, the AUC of each day with labels when they are known (drawn through) and at once (dashed),
    where it is known."""
    days = max(len(lines[0]) for lines in curves.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="22" style="{_TEXT}">{title}</text>',
        f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="#333"/>',
    ]
    for tenth in range(round(_LEAST * 10), round(_MOST * 10) + 1):
        y = _y(tenth / 10)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" style="{_TEXT}">{tenth / 10:g}</text>')
    for day in range(0, days, 2):
        x = _x(day, days)
        parts.append(f'<text x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle" style="{_TEXT}">{day + 1}</text>')
    parts.append(f'<text x="{_RIGHT}" y="{_BOTTOM + 38}" text-anchor="end" style="{_TEXT}">day of flights</text>')
    for place, ((name, lines), color) in enumerate(zip(curves.items(), _COLORS, strict=True)):
        dashes = ("", ' stroke-dasharray="3 3"')
        parts += [_line(line, color, days, dash) for line, dash in zip(lines, dashes, strict=False)]
        parts.append(
            f'<text x="{_RIGHT + 12}" y="{_TOP + 16 * place + 12}" style="{_TEXT}" fill="{color}">{name}</text>'
        )
    parts.append(f'<text x="{_RIGHT + 12}" y="{_TOP + 110}" style="{_TEXT}">dashed: labels at once</text></svg>')
    return "\n".join(parts) + "\n"


def _x(day: int, days: int) -> float:
    return _LEFT + (_RIGHT - _LEFT) * day / max(1, days - 1)


def _y(auc: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * (min(_MOST, max(_LEAST, auc)) - _LEAST) / (_MOST - _LEAST)


def _line(values: Sequence[float], color: str, days: int, dashes: str = "") -> str:
    points = " ".join(f"{_x(day, days):.1f},{_y(auc):.1f}" for day, auc in enumerate(values))
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'
