"""The steps of a command that works for a while, each told when it is over."""

import time
from dataclasses import dataclass, field
from typing import Any

import typer


@dataclass
class Steps:
    """Says each step when it is over; the time is the step's."""

    quiet: bool
    finished: list[dict[str, Any]] = field(default_factory=list)
    _name: str = ""
    _began: float = 0.0

    def begin(self, name: str) -> None:
        self.end()
        self._name, self._began = name, time.monotonic()

    def end(self, *, word: str = "ok") -> None:
        if not self._name:
            return
        seconds = time.monotonic() - self._began
        self.finished.append({"step": self._name, "ok": word == "ok", "seconds": round(seconds, 2)})
        if not self.quiet:
            typer.secho(f"{word:>6}", fg="green" if word == "ok" else "red", nl=False)
            typer.echo(f"  {self._name}  ({seconds:.1f} s)")
        self._name = ""

    def fail(self) -> None:
        self.end(word="FAILED")
