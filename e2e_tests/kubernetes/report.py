"""What a run has seen, and which promises it saw broken."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """`figures`: what was seen, by step. `broken`: a sentence for each promise that was not kept."""

    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def expect(self, is_kept: bool, sentence: str) -> None:
        if not is_kept:
            self.broken.append(sentence)

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        began = time.monotonic()
        figures = self.figures.setdefault(name, {})
        yield figures
        figures["seconds"] = round(time.monotonic() - began, 1)
        print(f"{name}: {figures}", flush=True)
