"""One way to log: one line per event on standard error, JSON or plain text, with the fields passed as `extra`."""

import contextvars
import functools
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Literal

LogFormat = Literal["text", "json"]
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

_service_here: contextvars.ContextVar[str] = contextvars.ContextVar("service_here")
_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
"""What begins a line or moves a terminal's cursor, as Python writes it: a name from outside makes no line."""


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "service": _service_here.get(self._service),
            "message": record.getMessage(),
            **_extra_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _TextFormatter(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created)) + f".{int(record.msecs):03d}"
        fields = "".join(f" {key}={value}" for key, value in _extra_fields(record).items())
        message = f"{record.getMessage()}{fields}".translate(_CONTROLS)
        line = f"{clock} {_service_here.get(self._service)} {record.levelname.lower()}: {message}"
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).splitlines()
        return "\n  ".join([line, *(entry.translate(_CONTROLS) for entry in trace)])


def log_here_as(service: str) -> None:
    """From here on the lines of this thread have this name in place of the process's."""
    _service_here.set(service)


def logging_as_here(target: Callable[..., None], *arguments: object) -> Callable[[], None]:
    """For a thread whose lines have the name of the caller's."""
    return functools.partial(contextvars.copy_context().run, target, *arguments)


def configure_logs(service: str, *, log_format: LogFormat = "text", level: str = "INFO") -> None:
    """Sends the root logger's lines to standard error. Call once, first thing in __main__."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service) if log_format == "json" else _TextFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))  # it tells of every start
