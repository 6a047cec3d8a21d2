"""The judge: pure functions from a history (history.py) to what breaks one of the eight rules.

1. Every acknowledged event is in the log exactly once (retries with the same key included), and none that was refused.
2. The versions' ranges are contiguous, do not overlap, start where the parent ended, and trained + held out equals the
   events in them.
3. Every version, rebuilt from its lineage, has the same weights digest.
4. Every accepted prediction was answered exactly once, right, by a version that was live then; the rest were refused
   openly; nothing hung past its deadline.
5. Nothing incomplete was ever visible; no alias moved without its entry in the history.
6. The account names every event once: trained, held out, unusable, left out or waiting (accounts.py).
7. The evidence of rollouts never goes back, counts no label twice and goes on after every fault (evidence.py).
8. A canary answers exactly the keys of its share, each stage is decided once, and a canary that was taken away answers
   nobody (canary.py).

Rule 0 is the suite's own: every fault was recovered from within its bound.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from e2e_tests.faults.accounts import every_event_is_accounted_for
from e2e_tests.faults.canary import canaries_keep_to_their_share
from e2e_tests.faults.evidence import evidence_goes_on
from e2e_tests.faults.history import (
    AliasMove,
    AliasSeen,
    Append,
    CanaryMove,
    Entry,
    Expected,
    Fault,
    LogRecord,
    Prediction,
    Rebuild,
    Recovery,
    Undo,
    VersionRecord,
    VersionSeen,
    of_kind,
)
from e2e_tests.faults.liveness import Liveness, disturbances
from e2e_tests.faults.violation import Violation

LATE_SECONDS = 5.0
"""What an answer may come after its deadline: the way back, and a busy machine."""
COMMIT_SECONDS = 5.0
"""Between the time in an alias's history and the moment from which readers see the move: its transaction."""
TOLERANCE = 1e-5
"""Between an answer and what the version's SavedModel says when it is run elsewhere, in batches of another size."""
SERVED_FILE = "saved_model/saved_model.pb"
_DOORS = ("serving", "proxy", "everything")


Rule = Callable[[Sequence[Entry]], list[Violation]]


def judge(history: Sequence[Entry]) -> list[Violation]:
    """Everything that breaks a rule, by rule."""
    rules: tuple[Rule, ...] = (
        recoveries,
        events_exactly_once,
        ranges_follow_the_parents,
        rebuilt_weights_are_equal,
        predictions_answered_once_and_right,
        only_whole_versions_and_recorded_moves,
        every_event_is_accounted_for,
        evidence_goes_on,
        canaries_keep_to_their_share,
    )
    return [violation for rule in rules for violation in rule(history)]


def recoveries(history: Sequence[Entry]) -> list[Violation]:
    """Rule 0."""
    faults = {fault.number: fault for fault in of_kind(history, Fault)}
    found = {recovery.number: recovery for recovery in of_kind(history, Recovery)}
    broken = []
    for number, fault in faults.items():
        recovery = found.get(number)
        if recovery is None or recovery.seconds is None:
            parts = "no recovery on record" if recovery is None else _missing_parts(recovery)
            broken.append(Violation(0, f"fault {number} ({fault.what} of {fault.target}): {parts}", fault.at))
    return broken


def _missing_parts(recovery: Recovery) -> str:
    parts = {
        "no event was acknowledged": recovery.acknowledged_seconds,
        "no prediction was answered": recovery.answered_seconds,
        "no version was registered": recovery.learned_seconds,
    }
    return ", ".join(text for text, seconds in parts.items() if seconds is None)


def events_exactly_once(history: Sequence[Entry]) -> list[Violation]:
    """Rule 1."""
    in_log = Counter(event for record in of_kind(history, LogRecord) for event in record.events)
    requests: dict[tuple[str, int, int], list[Append]] = defaultdict(list)
    for one_try in of_kind(history, Append):
        requests[one_try.key, one_try.first_event, one_try.end_event].append(one_try)
    broken: list[Violation] = []
    sent: set[int] = set()
    for (key, first, end), tries in requests.items():
        sent.update(range(first, end))
        broken += _judge_request(key, range(first, end), tries, in_log)
    strangers = [event for event in in_log if event not in sent]
    if strangers:
        broken.append(Violation(1, f"{len(strangers)} events in the log were never sent, such as {strangers[0]}"))
    return broken


def _judge_request(key: str, events: range, tries: Sequence[Append], in_log: Mapping[int, int]) -> list[Violation]:
    acknowledged = [one_try for one_try in tries if one_try.outcome == "acknowledged"]
    refused = [one_try for one_try in tries if one_try.outcome == "refused"]
    counts = [in_log.get(event, 0) for event in events]
    name = f"request {key} (events {events.start} to {events.stop - 1})"
    broken = [
        Violation(1, f"{name} was acknowledged with {one_try.accepted} events of {len(events)}", one_try.until)
        for one_try in acknowledged
        if one_try.accepted != len(events)
    ]
    at = tries[-1].until
    if acknowledged and refused:
        broken.append(Violation(1, f"{name} was acknowledged and refused ({refused[0].detail})", at))
    if acknowledged and (lost := counts.count(0)):
        broken.append(Violation(1, f"{name} was acknowledged, but {lost} of its events are not in the log", at))
    if doubled := sum(count > 1 for count in counts):
        broken.append(Violation(1, f"{name}: {doubled} of its events are in the log more than once", at))
    if not acknowledged and len(refused) == len(tries) and any(counts):
        broken.append(
            Violation(1, f"{name} was refused, but {sum(map(bool, counts))} of its events are in the log", at)
        )
    return broken


def ranges_follow_the_parents(history: Sequence[Entry]) -> list[Violation]:
    """Rule 2. A version that was rejected is nobody's parent, and the next one starts where it started, unless the plan
    has it on record that the stretch is left out."""
    versions = {record.version: record for record in of_kind(history, VersionRecord)}
    events_at: dict[int, dict[int, int]] = defaultdict(dict)
    for record in of_kind(history, LogRecord):
        events_at[record.partition][record.offset] = len(record.events)
    broken: list[Violation] = []
    for version in versions.values():
        broken += _judge_ranges(version, versions, events_at)
    away = [move.at for move in of_kind(history, CanaryMove) if not move.to_version]
    return broken + _overlaps(versions, list(of_kind(history, AliasMove)), away)


def _judge_ranges(
    version: VersionRecord, versions: Mapping[int, VersionRecord], events_at: Mapping[int, Mapping[int, int]]
) -> list[Violation]:
    name, broken = f"version {version.version}", []
    if version.parent and version.parent not in versions:
        return [
            Violation(2, f"{name} has the parent {version.parent}, which is not in the catalog", version.created_at)
        ]
    parent_end = versions[version.parent].end if version.parent else {}
    end, count = dict(parent_end), 0
    for partition in sorted({piece[0] for piece in version.ranges}):
        counts = events_at.get(partition, {})
        learned_ranges = sorted(tuple(piece[1:]) for piece in version.ranges if piece[0] == partition)
        pieces = sorted([*learned_ranges, *(tuple(piece[1:]) for piece in version.left_out if piece[0] == partition)])
        expected = parent_end.get(str(partition), min(counts, default=0))
        for start, stop in pieces:
            if start != expected:
                text = (
                    f"{name} has a range from {start} of partition {partition}; what is before it ended at {expected}"
                )
                broken.append(Violation(2, text, version.created_at))
            expected = stop
        offsets = [offset for start, stop in learned_ranges for offset in range(start, stop)]
        missing = [offset for offset in offsets if offset not in counts]
        if missing:
            text = f"{name} covers offset {missing[0]} of partition {partition}, which the log lacks"
            broken.append(Violation(2, text, version.created_at))
        count += sum(counts.get(offset, 0) for offset in offsets)
        end[str(partition)] = expected
    if dict(version.end) != end:
        broken.append(Violation(2, f"{name} ends at {dict(version.end)}; its ranges end at {end}", version.created_at))
    learned = version.trained + version.held_out
    if learned != count or version.unusable:
        text = f"{name}: {version.trained} trained + {version.held_out} held out of {count} events in its ranges"
        broken.append(
            Violation(2, text + (f", {version.unusable} unusable" if version.unusable else ""), version.created_at)
        )
    return broken


def _overlaps(
    versions: Mapping[int, VersionRecord], moves: Sequence[AliasMove], away: Sequence[float]
) -> list[Violation]:
    """Two accepted children of one parent cover the same events, unless production went back to the parent between, or
    a canary was taken away at one of the moments `away`."""
    children: dict[int, list[VersionRecord]] = defaultdict(list)
    for version in versions.values():
        if version.status != "rejected":
            children[version.parent].append(version)
    broken = []
    for parent, siblings in children.items():
        siblings.sort(key=lambda version: version.version)
        back = [*away, *(move.at for move in moves if move.to_version == parent)]
        for older, younger in pairwise(siblings):
            if not any(older.created_at < at < younger.created_at for at in back):
                text = f"versions {older.version} and {younger.version} both follow version {parent}: ranges overlap"
                broken.append(Violation(2, text, younger.created_at))
    return broken


def rebuilt_weights_are_equal(history: Sequence[Entry]) -> list[Violation]:
    """Rule 3."""
    rebuilt = {rebuild.version: rebuild for rebuild in of_kind(history, Rebuild)}
    broken = []
    for version in of_kind(history, VersionRecord):
        rebuild = rebuilt.get(version.version)
        if rebuild is None:
            broken.append(Violation(3, f"version {version.version} was not rebuilt", version.created_at))
        elif rebuild.error:
            broken.append(
                Violation(3, f"version {version.version} cannot be rebuilt: {rebuild.error}", version.created_at)
            )
        elif rebuild.weights_digest != version.weights_digest:
            text = f"version {version.version} has weights {version.weights_digest}, rebuilt {rebuild.weights_digest}"
            broken.append(Violation(3, text, version.created_at))
    return broken


def predictions_answered_once_and_right(history: Sequence[Entry]) -> list[Violation]:
    """Rule 4."""
    predictions = list(of_kind(history, Prediction))
    expected = {item.id: item for item in of_kind(history, Expected)}
    live = Liveness(history)
    faults = disturbances(history, lambda fault: fault.target.startswith(_DOORS))
    answers = Counter(item.id for item in predictions)
    broken = [
        Violation(4, f"prediction {key} was answered {count} times") for key, count in answers.items() if count > 1
    ]
    gaps = set(range(1, max(answers, default=0) + 1)) - answers.keys()
    broken += [Violation(4, f"prediction {key} was asked and never ended") for key in sorted(gaps)]
    for item in predictions:
        broken += [
            Violation(4, f"prediction {item.id} {text}", item.at) for text in _faults_of(item, expected, live, faults)
        ]
    return broken


def _faults_of(
    item: Prediction, expected: Mapping[int, Expected], live: Liveness, faults: Sequence[tuple[float, float]]
) -> list[str]:
    took = item.until - item.at
    disturbed = any(start <= item.until and item.at <= end for start, end in faults)
    if item.outcome in ("broken", "silent"):
        told = (
            f"got no answer in {took:.1f} s ({item.detail})" if item.outcome == "silent" else f"broke ({item.detail})"
        )
        return [] if disturbed else [f"{told}, and no fault was at its door"]
    late = took > item.deadline_seconds + LATE_SECONDS and not disturbed
    found = [f"took {took:.1f} s with a deadline of {item.deadline_seconds:g} s"] if late else []
    if item.outcome == "refused":
        return found
    if item.asked_version and item.version != item.asked_version:
        found.append(f"asked version {item.asked_version} and was answered by {item.version}")
    if not item.asked_version and not live.was_live(item.version, item.at, item.until):
        found.append(f"was answered by version {item.version}, which was not live then")
    right = expected.get(item.id)
    if right is None or right.version != item.version:
        return [*found, f"was answered by version {item.version}, whose own answer is not known"]
    if len(right.outputs) != len(item.outputs) or not all(
        math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        for one, other in zip(item.outputs, right.outputs, strict=True)
    ):
        found.append(f"was answered {list(item.outputs)} by version {item.version}, which says {list(right.outputs)}")
    return found


def only_whole_versions_and_recorded_moves(history: Sequence[Entry]) -> list[Violation]:
    """Rule 5."""
    return [*_incomplete_versions(history), *_unrecorded_moves(history), *_undone_otherwise(history)]


def _incomplete_versions(history: Sequence[Entry]) -> Iterable[Violation]:
    kept = {record.version for record in of_kind(history, VersionRecord)}
    first_seen: dict[int, VersionSeen] = {}
    for seen in of_kind(history, VersionSeen):
        name = f"version {seen.version}"
        if seen.faults:
            yield Violation(5, f"{name} was visible and not whole: {'; '.join(seen.faults)}", seen.at)
        if SERVED_FILE not in seen.files:
            yield Violation(5, f"{name} was visible without {SERVED_FILE}", seen.at)
        if dict(first_seen.setdefault(seen.version, seen).files) != dict(seen.files):
            yield Violation(5, f"{name} has other files than when it was first seen", seen.at)
        if seen.version not in kept:
            yield Violation(5, f"{name} was visible and is not in the catalog any more", seen.at)
    for version in sorted(kept - first_seen.keys()):
        yield Violation(5, f"version {version} is in the catalog and was never looked at")


def _unrecorded_moves(history: Sequence[Entry]) -> Iterable[Violation]:
    versions = {record.version: record for record in of_kind(history, VersionRecord)}
    moves = list(of_kind(history, AliasMove))
    before = 0
    for move in moves:
        name = f"the move of production from {move.from_version} to {move.to_version}"
        if move.from_version != before:
            yield Violation(5, f"{name} follows one to {before}: a move between them has no entry", move.at)
        if not move.by:
            yield Violation(5, f"{name} does not say by whom", move.at)
        if move.to_version and move.to_version not in versions:
            yield Violation(5, f"{name} names a version that is not in the catalog", move.at)
        elif move.to_version and move.at < versions[move.to_version].created_at:
            yield Violation(5, f"{name} came before the version was registered", move.at)
        before = move.to_version
    for seen in of_kind(history, AliasSeen):
        past = [move.to_version for move in moves if move.at <= seen.at - COMMIT_SECONDS]
        meanwhile = [move.to_version for move in moves if seen.at - COMMIT_SECONDS < move.at <= seen.until]
        if seen.production not in {past[-1] if past else 0, *meanwhile}:
            yield Violation(5, f"production was seen at version {seen.production} without an entry for it", seen.at)


def _undone_otherwise(history: Sequence[Entry]) -> Iterable[Violation]:
    """A rollback that was confirmed has its entry, one that was refused has none."""
    moves = list(of_kind(history, AliasMove))
    for undo in of_kind(history, Undo):
        entries = [move for move in moves if move.reason == undo.reason]
        if len(entries) > 1 or (undo.outcome == "refused" and entries):
            yield Violation(5, f"rollback {undo.reason!r} ({undo.outcome}) has {len(entries)} entries", undo.at)
        if undo.outcome == "acknowledged" and not any(undo.at <= move.at <= undo.until for move in entries):
            yield Violation(5, f"rollback {undo.reason!r} was confirmed and has no entry of that time", undo.at)
