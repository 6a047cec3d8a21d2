"""The judge against histories with planted violations, one for every way to break a rule, and one that breaks none."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from e2e_tests.faults.canary import is_canarys
from e2e_tests.faults.checker import LATE_SECONDS, SERVED_FILE, judge
from e2e_tests.faults.history import (
    AccountSeen,
    AliasMove,
    AliasSeen,
    Append,
    CanaryMove,
    CanarySeen,
    Entry,
    EvidenceSeen,
    Expected,
    Fault,
    KeyedAnswer,
    Labelled,
    LogRecord,
    Prediction,
    Rebuild,
    Recorder,
    Recovery,
    Run,
    StageDecided,
    Stall,
    Undo,
    VersionRecord,
    VersionSeen,
    read_history,
)
from e2e_tests.faults.liveness import SWITCH_SECONDS, Liveness
from testing.rows import each_row

pytestmark = pytest.mark.local_only

Change = Callable[[list[Entry]], list[Entry]]
T = TypeVar("T")
INGEST_FAULT = Fault(at=50.0, until=50.0, number=1, what="kill -9", target="ingest")
SERVING_FAULT = Fault(at=300.0, until=310.0, number=2, what="pause", target="serving-0")
IN, OUT = (next(key for key in map(str, range(100)) if is_canarys(2, 30.0, key) == is_in) for is_in in (True, False))
"""Prediction keys within and without the share of version 2 at its first stage."""
RECOVERIES = [Recovery(56.0, 1, 2.0, 0.1, 5.0), Recovery(315.0, 2, 0.1, 3.0, 4.0)]


def version(number: int, start: int, end: int, *, parent: int, **changes: Any) -> VersionRecord:
    """Ten events in each record, two of them held out."""
    return replace(
        VersionRecord(
            version=number, parent=parent, ranges=[(0, start, end)], end={"0": end}, trained=8 * (end - start),
            held_out=2 * (end - start), unusable=0, weights_digest=f"weights {number}", status="accepted",
            created_at=100.0 * number,
        ),
        **changes,
    )  # fmt: skip


def prediction(number: int, at: float, by: int, **changes: Any) -> Prediction:
    return replace(
        Prediction(
            at=at, until=at + 0.01, id=number, door="rest", deadline_seconds=2.0, asked_version=0, inputs=[[0.1, 0.2]],
            outcome="answered", version=by, outputs=[0.1 * by],
        ),
        **changes,
    )  # fmt: skip


def sound() -> list[Entry]:
    """Three versions and what leads to them; no rule is broken.

    Events 0 to 9 are acknowledged at the second try, 20 to 29 are refused, 30 to 39 stay in doubt and are in the log.
    """
    return [
        Run(0.0, "local", 1, "a machine", "some load"),
        Append(1.0, 1.1, "k0", 0, 10, "in doubt", "Unavailable: away"),
        Append(1.5, 1.6, "k0", 0, 10, "acknowledged", "", 10),
        Append(1.7, 1.8, "k0", 0, 10, "acknowledged", "", 10, duplicate=True),
        Append(2.0, 2.1, "k1", 10, 20, "acknowledged", "", 10),
        Append(3.0, 3.1, "k2", 20, 30, "refused", "InvalidInput: above is 7"),
        Append(4.0, 9.0, "k3", 30, 40, "in doubt", "Unavailable: away"),
        Append(9.5, 9.6, "k4", 40, 50, "acknowledged", "", 10),
        Append(9.7, 9.8, "k5", 50, 60, "in doubt", "Unavailable: away"),
        *[LogRecord(0, offset, list(range(first, first + 10))) for offset, first in enumerate((0, 10, 30, 40))],
        version(1, 0, 2, parent=0),
        version(2, 2, 3, parent=1, status="rejected"),
        version(3, 2, 4, parent=1),
        *[Rebuild(number, f"weights {number}") for number in (1, 2, 3)],
        *[VersionSeen(100.0 * number + 1, number, {SERVED_FILE: f"file {number}"}) for number in (1, 2, 3)],
        VersionSeen(400.0, 1, {SERVED_FILE: "file 1"}),
        AliasMove(100.0, 0, 1, "registry"),
        AliasMove(300.0, 1, 3, "registry"),
        Undo(360.0, 360.2, "undo 1", "acknowledged"),
        AliasMove(360.1, 3, 1, "the operator", "undo 1"),
        Undo(361.0, 361.2, "undo 2", "in doubt", "Unavailable: away"),
        AliasMove(361.1, 1, 3, "the operator", "undo 2"),
        Undo(362.0, 362.2, "undo 3", "refused", "Conflict: nothing to roll back to"),
        AccountSeen(0.5, 0.6, 0, None, 0, 0, 0, 0, None, problems=["no trainer has reported how far the log goes"]),
        AccountSeen(150.0, 150.1, 1, 40, 16, 4, 0, 0, 20),
        AccountSeen(370.0, 370.1, 3, 40, 32, 8, 0, 0, 0, is_last=True),
        AliasSeen(50.0, 50.1, 0),
        AliasSeen(150.0, 150.1, 1),
        AliasSeen(299.9, 300.1, 1),
        AliasSeen(300.5, 300.6, 1),  # the move of 300.0 was not committed yet
        AliasSeen(350.0, 350.1, 3),
        Labelled(120.0, 10),
        EvidenceSeen(130.0, 130.1, 1, 20, {"version 2 against 1": 10}, {"version 2 as production": 10}),
        EvidenceSeen(371.0, 371.1, 4, 20, {"version 2 against 1": 10}, {"version 2 as production": 10}),
        Labelled(372.0, 10, is_after=True),
        EvidenceSeen(373.0, 373.1, 5, 40, {"version 3 against 1": 10}, {"version 2 as production": 10}),
        INGEST_FAULT,
        SERVING_FAULT,
        *RECOVERIES,
        prediction(1, 120.0, 1),
        prediction(2, 290.0, 1, outcome="refused", detail="429", version=0, outputs=[]),
        prediction(3, 305.0, 1, outcome="silent", until=311.0, version=0, outputs=[]),
        prediction(4, 306.0, 1, outcome="broken", version=0, outputs=[]),
        prediction(5, 325.0, 1),  # replaced at 300, but for 13 of these seconds its replica was stopped or recovering
        prediction(6, 359.0, 3),
        prediction(7, 380.0, 0, outcome="refused", detail="504", until=390.0, outputs=[]),  # the machine stood still
        Stall(381.0, 388.0),
        *[Expected(number, 1, [0.1]) for number in (1, 5)],
        Expected(6, 3, [0.3]),
        CanaryMove(320.0, 0, 2),
        *[CanarySeen(at, at, 2, 0, 30.0) for at in (321.0, 338.0)],
        KeyedAnswer(322.0, 322.1, IN, 3),  # replicas need not have heard of the stage
        KeyedAnswer(330.0, 330.1, IN, 2),
        KeyedAnswer(337.0, 337.1, IN, 2),
        KeyedAnswer(337.2, 337.3, OUT, 3),
        StageDecided(338.5, 2, 0, "advance"),
        *[CanarySeen(at, at, 2, 1, 60.0) for at in (339.0, 358.0)],
        KeyedAnswer(355.0, 355.1, IN, 2),
        StageDecided(358.5, 2, 1, "back"),
        CanaryMove(358.5, 2, 0),
        CanarySeen(359.0, 359.0),
        KeyedAnswer(363.0, 363.1, IN, 2),
        KeyedAnswer(364.0, 364.1, IN, 3),
    ]


def test_a_sound_history_breaks_no_rule_also_after_a_trip_to_the_disk(tmp_path: Path) -> None:
    assert judge(sound()) == []
    recorder = Recorder(tmp_path / "history.jsonl")
    recorder.add(*sound())
    recorder.close()
    assert judge(read_history(recorder.path)) == []


def add(*entries: Entry) -> Change:
    return lambda history: [*history, *entries]


def drop(kind: type[Any], index: int = 0) -> Change:
    def change(history: list[Entry]) -> list[Entry]:
        dropped = [entry for entry in history if isinstance(entry, kind)][index]
        return [entry for entry in history if entry is not dropped]

    return change


def alter(kind: type[Any], index: int, **changes: Any) -> Change:
    def change(history: list[Entry]) -> list[Entry]:
        chosen: Any = [entry for entry in history if isinstance(entry, kind)][index]
        return [replace(chosen, **changes) if entry is chosen else entry for entry in history]

    return change


def both(*changes: Change) -> Change:
    def change(history: list[Entry]) -> list[Entry]:
        for one in changes:
            history = one(history)
        return history

    return change


PLANTED: Sequence[tuple[int, str, str, Change]] = [
    (0, "a fault without recovery", "fault 1", drop(Recovery)),
    (0, "no event was acknowledged again", "no event was acknowledged", alter(Recovery, 0, acknowledged_seconds=None)),
    (0, "no prediction was answered again", "no prediction was answered", alter(Recovery, 0, answered_seconds=None)),
    (0, "nothing was learned again", "no version was registered", alter(Recovery, 0, learned_seconds=None)),
    (1, "an acknowledged request twice", "more than once", add(LogRecord(0, 4, list(range(10))))),
    (1, "an event twice in its record", "more than once", alter(LogRecord, 1, events=[10, *range(10, 20)])),
    (1, "a request in doubt twice", "more than once", add(LogRecord(0, 4, list(range(30, 40))))),
    (1, "a lost acknowledged request", "are not in the log", drop(LogRecord, 1)),
    (1, "a lost acknowledged event", "1 of its events are not", alter(LogRecord, 1, events=list(range(10, 19)))),
    (1, "a refused event", "was refused, but 10", add(LogRecord(0, 4, list(range(20, 30))))),
    (1, "an event from nowhere", "never sent", add(LogRecord(0, 4, [77]))),
    (1, "an acknowledgement of too few", "acknowledged with 9", alter(Append, 1, accepted=9)),
    (1, "yes and no", "acknowledged and refused", add(Append(5.0, 5.1, "k1", 10, 20, "refused", "Conflict"))),
    (2, "a gap after the parent", "has a range from 3", alter(VersionRecord, 2, ranges=[(0, 3, 4)])),
    (2, "an overlap with the parent", "has a range from 1", alter(VersionRecord, 2, ranges=[(0, 1, 4)])),
    (2, "a first version that skips", "has a range from 1", alter(VersionRecord, 0, ranges=[(0, 1, 2)])),
    (2, "a gap after a left-out", "ended at 2", alter(VersionRecord, 2, ranges=[(0, 3, 4)], left_out=[(0, 2, 2)])),
    (2, "a parent that is not there", "not in the catalog", alter(VersionRecord, 2, parent=9)),
    (2, "an end elsewhere", "ends at", alter(VersionRecord, 2, end={"0": 5})),
    (2, "a range beyond the log", "which the log lacks", alter(VersionRecord, 2, ranges=[(0, 2, 5)], end={"0": 5})),
    (2, "an event not trained on", "15 trained + 4 held out of 20", alter(VersionRecord, 0, trained=15)),
    (2, "an event trained on twice", "17 trained + 4 held out of 20", alter(VersionRecord, 0, trained=17)),
    (2, "an event held out and trained on", "16 trained + 5 held out", alter(VersionRecord, 0, held_out=5)),
    (2, "an unusable event", "1 unusable", alter(VersionRecord, 0, trained=15, unusable=1)),
    (2, "two children of one parent", "both follow version 1", alter(VersionRecord, 1, status="accepted")),
    (3, "other weights", "rebuilt other", alter(Rebuild, 2, weights_digest="other")),
    (3, "a rebuild that failed", "cannot be rebuilt", alter(Rebuild, 2, error="the log lacks its range")),
    (3, "a version not rebuilt", "not rebuilt", drop(Rebuild, 2)),
    (4, "two answers", "answered 2 times", add(prediction(6, 359.0, 3))),
    (4, "no end at all", "never ended", drop(Prediction, 1)),
    (4, "a wrong answer", "which says", alter(Prediction, 5, outputs=[0.31])),
    (4, "an answer for another request", "which says", alter(Prediction, 5, outputs=[0.3, 0.3])),
    (4, "an answer by nobody known", "not known", drop(Expected, 2)),
    (4, "a version before its time", "not live", both(alter(Prediction, 0, version=3), alter(Expected, 0, version=3))),
    (4, "a version never live", "not live", both(alter(Prediction, 0, version=2), alter(Expected, 0, version=2))),
    (4, "a version long replaced", "not live", alter(Prediction, 4, at=400.0, until=400.1)),
    (4, "another version than asked", "asked version 3", alter(Prediction, 0, asked_version=3)),
    (4, "an answer past its deadline", "with a deadline", alter(Prediction, 0, until=122.1 + LATE_SECONDS)),
    (4, "a refusal past its deadline", "with a deadline", alter(Prediction, 1, until=292.1 + LATE_SECONDS)),
    (4, "lateness without a stall", "took 10.0 s", drop(Stall)),
    (4, "silence without a fault", "got no answer", alter(Prediction, 0, outcome="silent")),
    (4, "silence under ingest's fault", "got no answer", alter(Prediction, 0, outcome="silent", at=50.0, until=55.0)),
    (4, "a broken connection without a fault", "broke", alter(Prediction, 0, outcome="broken")),
    (5, "a missing file", "not whole", alter(VersionSeen, 2, faults=["saved_model/variables: no such file"])),
    (5, "a version without a model", "visible without", alter(VersionSeen, 2, files={})),
    (5, "other bytes later", "other files", alter(VersionSeen, 3, files={SERVED_FILE: "file 7"})),
    (5, "a version that vanished", "not in the catalog any more", add(VersionSeen(150.0, 4, {SERVED_FILE: "x"}))),
    (5, "a version nobody looked at", "never looked at", drop(VersionSeen, 1)),
    (5, "a move without entry", "a move between", drop(AliasMove)),
    (5, "a silent move", "without an entry", alter(AliasSeen, 1, production=3)),
    (5, "a late move", "without an entry", alter(AliasSeen, 4, production=1)),
    (5, "a move by nobody", "by whom", alter(AliasMove, 1, by="")),
    (5, "a move to nothing", "names a version that is not", alter(AliasMove, 1, to_version=8)),
    (5, "a rollback without entry", "no entry of that time", add(Undo(370.0, 370.1, "undo 4", "acknowledged"))),
    (5, "a rollback twice", "has 2 entries", add(AliasMove(362.0, 3, 3, "the operator", "undo 2"))),
    (5, "a refused rollback done", "has 1 entries", add(AliasMove(362.1, 3, 1, "the operator", "undo 3"))),
    (5, "a move before its version", "came before", alter(AliasMove, 1, at=299.0)),
    (6, "a part too large", "its parts are", alter(AccountSeen, 1, trained=17)),
    (6, "less than nothing", "-1 events as waiting", alter(AccountSeen, 1, total=19, waiting=-1)),
    (6, "a problem of its own", "3 more examples", alter(AccountSeen, 1, problems=["3 more examples than the log"])),
    (6, "a total without a trainer", "no trainer", alter(AccountSeen, 0, total=0, waiting=0)),
    (6, "a total that goes back", "back to 40", alter(AccountSeen, 1, total=50, waiting=30)),
    (6, "more than was sent", "when 0 had been sent", alter(AccountSeen, 1, at=0.8, until=0.9)),
    (6, "no account in the end", "was not read", drop(AccountSeen, 2)),
    (6, "an event nowhere", "is 40", alter(AccountSeen, 2, total=30, trained=22)),
    (6, "an event twice", "in 2 places", alter(AccountSeen, 2, left_out_ranges=[(0, 1, 2)])),
    (7, "evidence that goes back", "version 2 against 1 went from 10 back to 9",
     alter(EvidenceSeen, 1, samples={"version 2 against 1": 9})),
    (7, "an older state", "revision went from 5 back to 4", add(EvidenceSeen(374.0, 374.1, 4, 40, {}, {}))),
    (7, "a label twice", "on 11 labels when 10 had been sent", alter(EvidenceSeen, 0, tracks={"version 2 as a": 11})),
    (7, "a judge that stopped", "0 were counted", alter(EvidenceSeen, 2, labelled=20)),
    (7, "nothing in the end", "when all faults were over", drop(Labelled, 1)),
    (8, "a key of production", "by version 2 while that was canary", add(KeyedAnswer(330.4, 330.5, OUT, 2))),
    (8, "a key of the canary", "was answered by version 3", alter(KeyedAnswer, 2, version=3)),
    (8, "a stage decided twice", "was decided 2 times", add(StageDecided(340.0, 2, 0, "advance"))),
    (8, "an earlier stage", "went from stage 2 back", add(CanarySeen(358.2, 358.2, 2, 0, 30.0))),
    (8, "a canary that is gone", "5.5 s after it was canary no more", alter(KeyedAnswer, 5, at=364.0)),
    (6, "waiting for ever", "10 events as waiting; by the log", alter(AccountSeen, 2, waiting=10, trained=22)),
]  # fmt: skip


@each_row(("rule", "name", "words", "plant"), PLANTED)
def test_what_is_planted_is_found(rule: int, name: str, words: str, plant: Change) -> None:
    found = [violation for violation in judge(plant(sound())) if violation.rule == rule]
    assert any(words in violation.text for violation in found), found


def test_a_stretch_that_the_plan_leaves_out_is_no_gap() -> None:
    follows = version(4, 5, 6, parent=3, left_out=[(0, 4, 5)])
    history = [*sound(), follows, Rebuild(4, "weights 4"), VersionSeen(401.0, 4, {SERVED_FILE: "file 4"})]
    history += [LogRecord(0, 4, list(range(60, 70))), LogRecord(0, 5, list(range(70, 80)))]
    history += [Append(10.0, 10.1, "k6", 60, 70, "acknowledged", "", 10), Append(10.2, 10.3, "k7", 70, 80, "in doubt")]
    history += [AccountSeen(402.0, 402.1, 4, 60, 40, 10, 0, 10, 0, [(0, 4, 5)], is_last=True)]
    history = alter(AccountSeen, 2, is_last=False)(history)
    assert judge(history) == []
    silent = replace(follows, left_out=())
    assert [found.rule for found in judge([silent if entry is follows else entry for entry in history])] == [2]


def test_a_replaced_version_has_only_undisturbed_time_to_go() -> None:
    live = Liveness(sound())
    assert live.seconds_after(1, 325.0, 325.1) == pytest.approx(25.0 - 14.0)
    assert live.was_live(1, 300.0 + SWITCH_SECONDS, 330.0)
    assert not live.was_live(1, 320.0 + SWITCH_SECONDS, 350.0)


def test_a_line_that_is_no_entry_is_refused_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "history").write_text('{"kind": "Run", "at": 1.0}\n')
    with pytest.raises(ValueError, match="line 1"):
        read_history(tmp_path / "history")
