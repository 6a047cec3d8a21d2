"""Made tones as events of stream.yaml: pitch, loudness, beginning and noise differ, drawn from a seed."""

import array
import base64
import itertools
import math
import random
import sys
from collections.abc import Iterator
from typing import Any

SIGNS = ("rises", "falls", "stays", "twice")
_SEED, _RATE, _SAMPLES = 7, 4000, 1000


def events(limit: int | None = None) -> Iterator[dict[str, Any]]:
    """`limit` events, without end when None; `pcm` are 1,000 int16, little-endian, as base64."""
    draw = random.Random(_SEED)  # noqa: S311  # sounds, no secrets
    for _ in itertools.count() if limit is None else range(limit):
        sign = draw.choice(SIGNS)
        samples = array.array("h", _samples(sign, draw))
        if sys.byteorder == "big":
            samples.byteswap()
        yield {"pcm": {"b64": base64.b64encode(samples.tobytes()).decode()}, "sign": sign}


def _samples(sign: str, draw: random.Random) -> Iterator[int]:
    pitch, loudness, phase = draw.uniform(500, 900), draw.uniform(4000, 12000), draw.uniform(0, 6)
    slope = {"rises": 1.0, "falls": -1.0}.get(sign, 0.0) * draw.uniform(0.4, 0.8)
    pause = draw.uniform(0.3, 0.4)
    for sample in range(_SAMPLES):
        part = sample / _SAMPLES
        phase += 2 * math.pi * pitch * (1 + slope * (part - 0.5)) / _RATE
        is_silent = sign == "twice" and pause < part < pause + 0.3
        yield int((0 if is_silent else loudness * math.sin(phase)) + draw.gauss(0, 1500))
