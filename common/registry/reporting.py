"""Reports to the registry every few seconds: what an instance of a service is, serves, does and could not do.

A report replaces its predecessor and is kept in memory only, so a lost report costs nothing: the next has it all.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any

from pydantic import TypeAdapter, ValidationError

from common.errors import HeadraceError, InvalidInput
from common.process.beat import until_next
from common.process.lifecycle import Stop
from common.registry.catalog import JsonMap

logger = logging.getLogger(__name__)
MAX_REPORT_BYTES = 256 * 1024
_MAX_TEXT = 1000
_MAX_NAME = 256
_MOST_INSIDE = 1000
_FIRST_PAUSE_SECONDS = 2.0
_AWAY_PAUSE_SECONDS = 5.0
QUIET_SECONDS = 7.5
"""A report without news is sent, and a watcher hears of the registry, at this period's multiples (beat.py): apart, they
would wake gRPC's threads twice as often. The registry takes an instance for gone after 15 s."""
COLD = "COLD"
"""The state of a version that a request has loaded: its replica has more models than its memory holds."""
_Key = tuple[str | int, ...]
"""(stream, model, version, name) of a number of a part, (name,) of one of the instance."""


@dataclass(frozen=True)
class Served:
    """One version on one replica."""

    model: str
    version: int
    state: str
    """START, LOADING, AVAILABLE, UNLOADING, END, or COLD."""
    since: float = 0.0
    """Epoch seconds when it began to answer; 0 before."""
    aliases: tuple[str, ...] = ()
    reason: str = ""
    """Why it could not be loaded; "" when it could."""
    given_up: bool = False
    """It will not be tried again as long as it is wanted."""
    engine: str = ""
    """What runs it, and why; "" before it is loaded."""
    runner: str = ""
    """The process that runs it."""


@dataclass(frozen=True)
class Part:
    """Numbers of one stream, of one model, or of one version of it, on one instance."""

    stream: str = ""
    model: str = ""
    version: int = 0
    """0: the model as a whole, or requests that no version answered."""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """What an instance says of itself."""

    instance_id: str
    service: str
    """ingest, trainer or serving."""
    address: str
    """host:port of its HTTP door; "" when it has none."""
    started_at: float
    serves: tuple[Served, ...] = ()
    does: JsonMap = field(default_factory=dict)
    """Of a trainer its round: {"round_id", "model", "stage", "examples_done", ...}; {} when it waits."""
    faults: tuple[str, ...] = ()
    """What it could not do and why, as sentences."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Rates, queues and percentiles; a name ends with its unit. Of a name that ends with _total the rate is added."""
    parts: tuple[Part, ...] = ()
    """The same numbers by stream, model and version; rates are added as in `numbers`."""
    models: JsonMap = field(default_factory=dict)
    """Of a trainer, by model: what its planner has counted in the log (services/trainer/plan/planner.py)."""

    def body(self) -> JsonMap:
        """JSON-ready, without what identifies the instance, cut to the bounds."""
        whole = asdict(replace(self, does=dict(self.does), models=dict(self.models)))
        return {name: _cut(whole[name], most) for name, most in _MOST.items()}


_MOST = {"serves": 1000, "does": 200, "faults": 50, "numbers": 200, "parts": 500, "models": 1000}
"""Entries of each part of a body; of what is in them, _MOST_INSIDE."""


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, dict):
        return {str(name)[:_MAX_NAME]: _cut(item, _MOST_INSIDE) for name, item in islice(value.items(), most)}
    if isinstance(value, (list, tuple)):
        return [_cut(item, _MOST_INSIDE) for item in value[:most]]
    return value[:_MAX_TEXT] if isinstance(value, str) else value


@dataclass(frozen=True)
class _LeftOut:
    partition: int
    from_offset: int
    to_offset: int
    examples: int | None
    reason: str


@dataclass(frozen=True)
class _Counted:
    """What a planner says of one model."""

    head_version: int = 0
    waiting: int = 0
    judged_before: int = 0
    judged: dict[str, int] = field(default_factory=dict)
    left_out: list[_LeftOut] = field(default_factory=list)
    log_start: dict[int, int] = field(default_factory=dict)
    log_end: dict[int, int] = field(default_factory=dict)
    waiting_for: str = ""


@dataclass(frozen=True)
class _Body(Report):
    models: Mapping[str, _Counted] = field(default_factory=dict)


@cache
def _bodies() -> TypeAdapter[_Body]:
    return TypeAdapter(_Body)


def report_of(*, instance_id: str, service: str, address: str, started_at: float, body: JsonMap) -> Report:
    """The inverse of `Report.body`. Raises InvalidInput: which part is not as it must be."""
    for name, value in (("instance_id", instance_id), ("service", service)):
        if not 0 < len(value) <= 256:
            raise InvalidInput(f"a report's {name} must have 1 to 256 characters, got {value[:50]!r}")
    if unknown := sorted(body.keys() - _MOST):
        raise InvalidInput(f"a report has unknown parts {', '.join(unknown)}")
    parts = {name: _cut(part, _MOST[name]) for name, part in body.items()}
    about = {"instance_id": instance_id, "service": service, "address": address[:256], "started_at": started_at}
    try:
        found = _bodies().validate_python({**parts, **about})
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise InvalidInput(f"the report of {instance_id} cannot be read: {place}: {fault['msg']}") from error
    return Report(**vars(found) | {"models": {name: asdict(counts) for name, counts in found.models.items()}})


class Reporter:
    """Sends `make()` until the stop, in a separate thread that the process does not wait for.

    Args:
        send: RegistryClient.report: returns the seconds to wait before the next report.
        make: called in that thread; it must not wait.
    """

    def __init__(
        self,
        send: Callable[[Report], float],
        make: Callable[[], Report],
        stop: Stop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send, self._make, self._stop, self._clock = send, make, stop, clock
        self._before: tuple[float, Mapping[_Key, float]] | None = None
        self._sent: tuple[Report, float, float] | None = None
        """The report, when it was sent, and the seconds that the registry asked for."""
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_requested():
            self._stop.wait(until_next(self.report()))

    def report(self) -> float:
        """Sends one report, if there is news; how long to wait before the next.

        A registry that is away or refuses changes nothing.
        """
        try:
            report, now = self._with_rates(self._make()), self._clock()
            if self._sent and report == self._sent[0] and now // QUIET_SECONDS == self._sent[1] // QUIET_SECONDS:
                return self._sent[2]
            self._sent, sent = None, (report, now, self._send(report))
            self._sent = sent
            return sent[2]
        except HeadraceError as error:
            logger.debug("no report", extra={"error": error.message})
        except Exception:  # outermost loop: what cannot be reported must not end the reports
            logger.exception("reporting failed unexpectedly")
        return _AWAY_PAUSE_SECONDS

    def _with_rates(self, report: Report) -> Report:
        now = self._clock()
        groups: dict[tuple[str, str, int], Mapping[str, float]] = {
            (part.stream, part.model, part.version): part.numbers for part in report.parts
        }
        totals = {
            (*group, name): value
            for group, numbers in (((), report.numbers), *groups.items())
            for name, value in numbers.items()
            if name.endswith("_total")
        }
        before, self._before = self._before, (now, totals)
        if before is None or now <= before[0]:
            return report
        rates = _rates(before[1], totals, now - before[0])
        parts = tuple(
            replace(part, numbers={**part.numbers, **rates.get((part.stream, part.model, part.version), {})})
            for part in report.parts
        )
        return replace(report, numbers={**report.numbers, **rates.get((), {})}, parts=parts)


def _rates(before: Mapping[_Key, float], now: Mapping[_Key, float], seconds: float) -> dict[_Key, dict[str, float]]:
    """{group: {name_per_second: rate}}; none for what began or began again in between."""
    rates: dict[_Key, dict[str, float]] = {}
    for key, value in now.items():
        if key in before and value >= before[key]:
            name = str(key[-1]).removesuffix("_total") + "_per_second"
            rates.setdefault(key[:-1], {})[name] = round((value - before[key]) / seconds, 3)
    return rates
