"""Reports to the registry every few seconds: what an instance of a service is, serves, does and could not do.

A report replaces its predecessor and is kept in memory only, so a lost report costs nothing: the next has it all.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from common.errors import HeadraceError, InvalidInput
from common.process.beat import until_next
from common.process.lifecycle import Stop
from common.registry.catalog import JsonMap

logger = logging.getLogger(__name__)
MAX_REPORT_BYTES = 256 * 1024
MAX_SERVED = 1000
MAX_FAULTS = 50
MAX_NUMBERS = 200
MAX_PARTS = 500
MAX_PART_NUMBERS = 20
_MAX_TEXT = 1000
_MAX_NAME = 100
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
        return {
            "serves": [asdict(served) for served in self.serves[:MAX_SERVED]],
            "does": dict(self.does),
            "faults": [fault[:_MAX_TEXT] for fault in self.faults[:MAX_FAULTS]],
            "numbers": dict(list(self.numbers.items())[:MAX_NUMBERS]),
            "parts": [
                {**asdict(part), "numbers": dict(list(part.numbers.items())[:MAX_PART_NUMBERS])}
                for part in self.parts[:MAX_PARTS]
            ],
            "models": dict(self.models),
        }


def report_of(*, instance_id: str, service: str, address: str, started_at: float, body: JsonMap) -> Report:
    """The inverse of `Report.body`. Raises InvalidInput: which part is not as it must be."""
    for name, value in (("instance_id", instance_id), ("service", service)):
        if not 0 < len(value) <= 256:
            raise InvalidInput(f"a report's {name} must have 1 to 256 characters, got {value[:50]!r}")
    unknown = sorted(set(body) - {"serves", "does", "faults", "numbers", "parts", "models"})
    if unknown:
        raise InvalidInput(f"a report has unknown parts {', '.join(unknown)}")
    try:
        return Report(
            instance_id,
            service,
            address[:256],
            float(started_at),
            serves=tuple(_served(item) for item in list(body.get("serves", []))[:MAX_SERVED]),
            does=dict(body.get("does", {})),
            faults=tuple(str(fault)[:_MAX_TEXT] for fault in list(body.get("faults", []))[:MAX_FAULTS]),
            numbers=_numbers(body.get("numbers", {}), MAX_NUMBERS),
            parts=tuple(_part(item) for item in list(body.get("parts", []))[:MAX_PARTS]),
            models={
                str(name)[:256]: _counted(counts) for name, counts in list(dict(body.get("models", {})).items())[:1000]
            },
        )
    except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
        raise InvalidInput(f"the report of {instance_id} cannot be read: {error}") from error


def _served(item: Mapping[str, Any]) -> Served:
    return Served(
        model=str(item["model"])[:256],
        version=int(item["version"]),
        state=str(item["state"])[:32],
        since=float(item.get("since", 0.0)),
        aliases=tuple(str(alias)[:256] for alias in list(item.get("aliases", []))[:100]),
        reason=str(item.get("reason", ""))[:_MAX_TEXT],
        given_up=bool(item.get("given_up", False)),
        engine=str(item.get("engine", ""))[:_MAX_TEXT],
        runner=str(item.get("runner", ""))[:_MAX_NAME],
    )


def _part(item: Mapping[str, Any]) -> Part:
    return Part(
        stream=str(item.get("stream", ""))[:256],
        model=str(item.get("model", ""))[:256],
        version=int(item.get("version", 0)),
        numbers=_numbers(item.get("numbers", {}), MAX_PART_NUMBERS),
    )


def _numbers(value: Mapping[str, Any], most: int) -> dict[str, float]:
    return {str(name)[:_MAX_NAME]: float(number) for name, number in list(dict(value).items())[:most]}


def _counted(counts: Mapping[str, Any]) -> JsonMap:
    """What a planner says of one model, with what is missing filled in."""
    return {
        "head_version": int(counts.get("head_version", 0)),
        "waiting": int(counts.get("waiting", 0)),
        "judged_before": int(counts.get("judged_before", 0)),
        "judged": {str(reason)[:_MAX_NAME]: int(n) for reason, n in list(counts.get("judged", {}).items())[:16]},
        "left_out": [_piece(entry) for entry in list(counts.get("left_out", []))[:1000]],
        "log_start": _offsets(counts.get("log_start", {})),
        "log_end": _offsets(counts.get("log_end", {})),
        "waiting_for": str(counts.get("waiting_for", ""))[:_MAX_TEXT],
    }


def _piece(entry: Mapping[str, Any]) -> JsonMap:
    return {
        **{name: int(entry[name]) for name in ("partition", "from_offset", "to_offset")},
        "examples": None if entry["examples"] is None else int(entry["examples"]),
        "reason": str(entry["reason"])[:_MAX_TEXT],
    }


def _offsets(value: Mapping[str, Any]) -> dict[str, int]:
    return {str(int(partition)): int(offset) for partition, offset in value.items()}


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
