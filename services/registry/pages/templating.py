"""Templates: autoescaped without exception, with filters that write numbers and times as a person reads them."""

import datetime
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import ChainableUndefined, Environment, FileSystemLoader
from markupsafe import Markup, escape

from common.counted import counted
from common.registry.round_words import stage_of
from services.registry.pages import actions

_FOLDER = Path(__file__).parent / "templates"
_LIVE = "live_"
"""A block of this prefix is sent again when its content has changed."""
_DASH = "–"
_LONG = 1e15
"""From here on a power of ten reads better than digits."""
_THOUSANDS, _BYTES = ("k", "M", "G", "T"), ("kB", "MB", "GB", "TB")
VERDICTS: Mapping[str, tuple[str, str]] = {
    "promote": ("passed", "good"), "canary": ("canary", "note"),
    "reject": ("rejected", "bad"), "hold": ("held", "warn"),
}  # fmt: skip
"""By decision of the gate: its word, and the colour of the word and of its reasons."""
Context = Mapping[str, Any]


@functools.cache
def make_environment() -> Environment:
    """An undefined name renders as nothing: progress and reports come from trainers and older plans, which may leave
    keys out. A process has one environment, since compiling its templates takes 0.1 s."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number, "count": count, "duration": duration, "size": size, "moment": moment, "plain": plain,
        "change": change, "latency": latency, "counted": counted, "stage": stage_of,
    }  # fmt: skip
    environment.globals |= {"verdicts": VERDICTS, "may": actions.may, "may_try": actions.may_try}
    # Macros of a template's top are out of reach when one of its blocks is rendered alone.
    environment.globals["ui"] = environment.get_template("parts.html").module
    return environment


def live_parts(environment: Environment, template: str, context: Context) -> dict[str, str]:
    """{name: HTML} of every block of the template that stays live."""
    found = environment.get_template(template)
    return {
        name.removeprefix(_LIVE): "".join(block(found.new_context(dict(context))))
        for name, block in found.blocks.items()
        if name.startswith(_LIVE)
    }


def number(value: object) -> str:
    """Four significant digits; a dash for None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return _DASH if value is None or isinstance(value, float) else str(value)
    if 1000 <= abs(value) < _LONG or (isinstance(value, int) and abs(value) < _LONG):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def change(value: object) -> str:
    """A difference with its sign; never +0.0000 for a small difference."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return _DASH
    if value == 0 or 0.0001 <= abs(value) < 1000:
        return f"{value:+.4f}"
    return f"{'+' if value > 0 else ''}{number(value)}"


def count(value: object) -> str:
    """1,234 or 1.2 M: short enough for a picture."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return _DASH
    if round(abs(value)) < 10_000:
        return f"{value:,.0f}" if abs(value) >= 99.5 or value == int(value) else f"{value:.2g}"
    return _in_units(value, _THOUSANDS)


def duration(seconds: object) -> str:
    """0.4 ms, 12 s, 3 min, 5 h, 2 d."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return _DASH
    if seconds < 0:
        return f"-{duration(-seconds)}"  # Of an event whose sender's clock is ahead.
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    for bound, divisor, word in ((100, 1, "s"), (6000, 60, "min"), (172_800, 3600, "h")):
        if seconds < bound:
            return (
                f"{seconds / divisor:.3g} {word}"
                if divisor == 1 and seconds < 10
                else f"{seconds / divisor:.0f} {word}"
            )
    return f"{seconds / 86_400:,.0f} d"


def latency(seconds: object) -> str:
    """In milliseconds, however many: 0.412 ms, 4.2 ms, 1,250 ms."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return _DASH
    milliseconds = seconds * 1000
    return f"{milliseconds:,.0f} ms" if abs(milliseconds) >= 999.5 else f"{milliseconds:.3g} ms"


def size(value: object) -> str:
    if not isinstance(value, int | float):
        return _DASH
    return f"{value:.0f} B" if value < 1000 else _in_units(value, _BYTES)


def _in_units(value: float, words: tuple[str, ...]) -> str:
    """Three digits in the largest unit of a thousand each that leaves a digit before the point."""
    if abs(value) >= _LONG:
        return f"{value:.3g}{words[0][1:] and ' B'}"
    place = 0
    while place + 1 < len(words) and round(abs(value) / 1000 ** (place + 1)) >= 1000:
        place += 1
    return f"{value / 1000 ** (place + 1):.3g} {words[place]}"


def plain(value: object) -> str:
    """A value of a configuration as a person would write it."""
    if value is None or value == [] or value == {}:
        return _DASH
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain(item)}" for key, item in value.items())
    return number(value) if isinstance(value, float) else str(value)


def moment(at: object) -> Markup:
    """A <time> element that pages.js writes in the reader's own time; without a script it stays in UTC."""
    if not isinstance(at, int | float) or not 0 < at < 253_402_300_000:
        return Markup(_DASH)  # noqa: S704  # a constant
    when = datetime.datetime.fromtimestamp(at, tz=datetime.UTC)
    utc = when.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(  # format escapes
        when.strftime("%Y-%m-%dT%H:%M:%SZ"), escape(utc), escape(utc)
    )
