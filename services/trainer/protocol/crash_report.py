"""What a round's process leaves in its folder to explain its death: its log, and where Python was when a signal
ended it. Signal 9 leaves no time for a place.
"""

import faulthandler
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path

from services.trainer.families.package_name import PACKAGE_PREFIX

_LOG, _FAULT = "round.log", "fault.txt"
_LOG_BYTES, _TAIL_BYTES = 256 * 1024, 16 * 1024
_LINES, _MAX_CHARS = 10, 300
_FRAME = re.compile(rf'File "[^"]*/{PACKAGE_PREFIX}[^"/]*/([^"]+)", line (\d+) in (\S+)')
_RAISED_AT = re.compile(r"\(([^()]+, line \d+, in [^()\s]+)\)")


@dataclass(frozen=True)
class CrashReport:
    """Attributes:
    place: "net.py, line 12, in build_model": the innermost of the user's own lines; empty where none is known.
    lines: the end of the log, oldest first.
    """

    place: str = ""
    lines: tuple[str, ...] = ()


def leave(work_dir: Path) -> Callable[[], None]:
    """Called in the round's process before anything of the user's runs. What an attempt before has left is gone.

    Returns what ends it, for a process that goes on to another round.
    """
    (work_dir / _LOG).unlink(missing_ok=True)
    handler = RotatingFileHandler(work_dir / _LOG, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    root = logging.getLogger()
    handler.setFormatter(next((other.formatter for other in root.handlers), None))
    root.addHandler(handler)
    fault = (work_dir / _FAULT).open("w")
    faulthandler.enable(fault)

    def end() -> None:
        faulthandler.disable()
        fault.close()
        root.removeHandler(handler)
        handler.close()

    return end


def read(work_dir: Path) -> CrashReport:
    """What there is, after the process has ended."""
    frame = _FRAME.search(_tail(work_dir / _FAULT))  # the most recent call comes first
    place = f"{frame[1]}, line {frame[2]}, in {frame[3]}" if frame else ""
    lines = [line for line in _tail(work_dir / _LOG).splitlines() if line.strip()]
    return CrashReport(place, tuple(line[:_MAX_CHARS] for line in lines[-_LINES:]))


def place_in(reason: str) -> str:
    """Of the sentence of an exception (families/reasons.py): its place; empty where it has none."""
    places = _RAISED_AT.findall(reason)
    return str(places[-1]) if places else ""


def _tail(path: Path) -> str:
    """Authors' code can make the file as large as it may be, without room on the disk."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
