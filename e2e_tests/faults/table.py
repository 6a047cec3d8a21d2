"""The table of one or more runs: fault, mode, count, recovery seconds, violations."""

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from e2e_tests.faults.history import (
    AccountSeen,
    AliasMove,
    Append,
    EndedEarly,
    Entry,
    Fault,
    LogRecord,
    Prediction,
    Rebuild,
    Recovery,
    Run,
    StageDecided,
    VersionRecord,
    of_kind,
)
from e2e_tests.faults.liveness import Liveness
from e2e_tests.faults.violation import Violation

_PAGE_COLUMNS = 140
RowKey = tuple[str, str, str]
"""Mode, what, target."""


@dataclass
class Row:
    count: int = 0
    recoveries: list[Recovery] = field(default_factory=list)
    """Those that succeeded."""
    violations: int = 0

    def cells(self) -> Iterator[str]:
        """Count, then p50 and the most of the seconds, over all and of each part, then violations."""
        yield str(self.count)
        yield _spread([item.seconds for item in self.recoveries])
        yield _spread([item.acknowledged_seconds for item in self.recoveries])
        yield _spread([item.answered_seconds for item in self.recoveries])
        yield _spread([item.learned_seconds for item in self.recoveries])
        yield str(self.violations)


def _spread(seconds: Sequence[float | None]) -> str:
    found = [one for one in seconds if one is not None]
    return f"{statistics.median(found):.1f} / {max(found):.1f}" if found else "-"


@dataclass(frozen=True)
class Judged:
    """A run and what its judge found."""

    history: Sequence[Entry]
    violations: Sequence[Violation]

    @property
    def run(self) -> Run:
        return next(of_kind(self.history, Run))

    @property
    def early_end(self) -> EndedEarly | None:
        return next(of_kind(self.history, EndedEarly), None)


def rows(judged: Sequence[Judged]) -> Mapping[RowKey, Row]:
    """A violation counts for the last fault that began before it; one without a time for none of them."""
    found: dict[RowKey, Row] = defaultdict(Row)
    for one in judged:
        mode = one.run.mode
        recoveries = {item.number: item for item in of_kind(one.history, Recovery)}
        faults = sorted(of_kind(one.history, Fault), key=lambda fault: fault.at)
        for fault in faults:
            row = found[mode, fault.what, fault.target]
            row.count += 1
            recovery = recoveries.get(fault.number)
            if recovery is not None and recovery.seconds is not None:
                row.recoveries.append(recovery)
        for violation in one.violations:
            before = [fault for fault in faults if fault.at <= violation.at]
            if before:
                found[mode, before[-1].what, before[-1].target].violations += 1
    return found


COLUMNS = ("fault", "mode", "count", "recovery, s: p50 / max", "events", "predictions", "learning", "violations")


def cells(judged: Sequence[Judged]) -> Iterator[tuple[str, ...]]:
    """The table's rows under COLUMNS, the total last."""
    total = Row()
    for (mode, what, target), row in sorted(rows(judged).items()):
        yield f"{what}: {target}", mode, *row.cells()
        total.count += row.count
        total.recoveries += row.recoveries
    total.violations = sum(len(one.violations) for one in judged)
    yield "all", "", *total.cells()


def markdown(judged: Sequence[Judged]) -> str:
    """The table and a line about each run, for benchmarks/results."""
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *cells(judged)]
    return (
        "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n" + "".join(f"- {summary(one)}\n" for one in judged)
    )


def show(judged: Sequence[Judged]) -> None:
    """The table, a line about each run, and what broke a rule, on the terminal."""
    console = Console(width=None if sys.stdout.isatty() else _PAGE_COLUMNS)
    table = Table(*COLUMNS)
    for line in cells(judged):
        table.add_row(*line)
    console.print(table)
    for one in judged:
        console.print(summary(one), highlight=False)
    for one in judged:
        for violation in one.violations[:20]:
            console.print(f"VIOLATION of rule {violation.rule}: {violation.text}", style="red", highlight=False)


def summary(judged: Judged) -> str:
    """What was judged, in one line: a rule that had nothing to look at would be no rule."""
    history = judged.history
    tries = Counter(item.outcome for item in of_kind(history, Append))
    predictions = list(of_kind(history, Prediction))
    heard = Counter(item.outcome for item in predictions)
    live = Liveness(history)
    after = [live.seconds_after(item.version, item.at, item.until) for item in predictions if item.version]
    calm = [item for item in predictions if item.outcome == "refused" and not live.is_disturbed(item.at, item.until)]
    end = judged.early_end
    parts = (
        f"{_count(history, Fault)} faults" + (f" ({end.left_count} were left at {end.signal_name})" if end else ""),
        (
            f"{sum(len(record.events) for record in of_kind(history, LogRecord))} events in the log (tries: "
            f"{tries['acknowledged']} acknowledged, {tries['refused']} refused, {tries['in doubt']} in doubt)"
        ),
        (
            f"{_count(history, VersionRecord)} versions, {_count(history, Rebuild)} rebuilt, "
            f"{_count(history, AliasMove)} moves of production"
        ),
        (
            f"{heard['answered']} predictions answered, {heard['refused']} refused ({len(calm)} with no fault about), "
            f"{heard['broken']} broken off, {heard['silent']} silent"
        ),
        f"{_count(history, AccountSeen)} accounts read",
        *([f"{decided} stages of canaries decided"] if (decided := _count(history, StageDecided)) else []),
        f"a replaced version answered at most {max(after, default=0.0):.1f} s later",
        f"{len(judged.violations)} violations",
    )
    return f"{judged.run.mode}, seed {judged.run.seed}: " + "; ".join(parts)


def _count(history: Sequence[Entry], kind: type[object]) -> int:
    return sum(isinstance(entry, kind) for entry in history)
