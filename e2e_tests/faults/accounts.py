"""Rule 6 of the judge: the account names every event once, all the while and in the end."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from e2e_tests.faults.history import AccountSeen, Append, Entry, LogRecord, VersionRecord, of_kind
from e2e_tests.faults.violation import Violation

_NOT_YET = "no trainer has reported"
"""The one thing that an account may lack, and only as long as it also shows no total."""


def every_event_is_accounted_for(history: Sequence[Entry]) -> list[Violation]:
    """Rule 6. Under faults an account may be late but not wrong; the last one must name what the log holds."""
    seen = sorted(of_kind(history, AccountSeen), key=lambda item: item.at)
    broken = [Violation(6, f"the account {text}", item.at) for item in seen for text in _faults_of_one(item)]
    broken += _faults_in_time(seen, list(of_kind(history, Append)))
    last = [item for item in seen if item.is_last]
    if not last and any(of_kind(history, VersionRecord)):
        broken.append(Violation(6, "the account was not read when all was over"))
    return broken + [
        Violation(6, f"the last account {text}", item.at) for item in last for text in _against(item, history)
    ]


def _faults_of_one(item: AccountSeen) -> Iterator[str]:
    for problem in item.problems:
        if not (problem.startswith(_NOT_YET) and item.total is None):
            yield f"says of itself: {problem}"
    parts = {name: getattr(item, name) for name in ("trained", "held_out", "unusable", "left_out", "waiting")}
    negative = [name for name, count in parts.items() if count is not None and count < 0]
    if negative:
        yield f"has {parts[negative[0]]} events as {negative[0]}"
    if (item.total is None) != (item.waiting is None):
        yield f"has a total of {item.total} and {item.waiting} waiting"
    if item.total is not None and item.waiting is not None and sum(parts.values()) != item.total:
        yield f"has a total of {item.total}, and its parts are {parts}"


def _faults_in_time(seen: Sequence[AccountSeen], appends: Sequence[Append]) -> Iterator[Violation]:
    """The total never goes back, and never is more than what was sent by then."""
    sent = sorted({(append.first_event, append.end_event): append.at for append in reversed(appends)}.items(), key=_at)
    most, place, before = 0, 0, 0
    for item in seen:
        if item.total is None:
            continue
        while place < len(sent) and sent[place][1] <= item.until:
            most += sent[place][0][1] - sent[place][0][0]
            place += 1
        if item.total > most:
            yield Violation(6, f"the account counts {item.total} events when {most} had been sent", item.at)
        if item.total < before:
            yield Violation(6, f"the account's total went from {before} back to {item.total}", item.at)
        before = max(before, item.total)


def _at(item: tuple[tuple[int, int], float]) -> float:
    return item[1]


def _against(item: AccountSeen, history: Sequence[Entry]) -> Iterator[str]:
    """The last account against the log and the versions, counted here once more."""
    counts = {(record.partition, record.offset): len(record.events) for record in of_kind(history, LogRecord)}
    line = _line({record.version: record for record in of_kind(history, VersionRecord)}, item.head_version)
    learned = [tuple(piece) for record in line for piece in record.ranges]
    left_out = [tuple(piece) for piece in item.left_out_ranges]
    named = Counter(place for piece in (*learned, *left_out) for place in _places(piece))
    twice = sorted(place for place, times in named.items() if times > 1)
    if twice:
        yield f"has offset {twice[0][1]} of partition {twice[0][0]} in {named[twice[0]]} places"
    expected = {
        "total": sum(counts.values()),
        "trained": sum(record.trained for record in line),
        "held_out": sum(record.held_out for record in line),
        "unusable": sum(record.unusable for record in line),
        "left_out": sum(counts.get(place, 0) for piece in left_out for place in _places(piece)),
        "waiting": sum(count for place, count in counts.items() if place not in named),
    }
    for name, count in expected.items():
        if getattr(item, name) != count:
            yield f"has {getattr(item, name)} events as {name}; by the log and the versions it is {count}"


def _line(versions: Mapping[int, VersionRecord], head: int) -> list[VersionRecord]:
    found = []
    while head in versions:
        found.append(versions[head])
        head = versions[head].parent
    return found


def _places(piece: Sequence[int]) -> Iterator[tuple[int, int]]:
    partition, start, stop = piece
    return ((partition, offset) for offset in range(start, stop))
