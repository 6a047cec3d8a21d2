"""`headrace versions MODEL --watch`: a line for each change, and no end before Ctrl-C."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from common.errors import NotFound, Unavailable
from common.registry.catalog import AliasChange, Version, VersionStatus
from headrace.client.bodies import build
from headrace.commands.version_watch import Look, changes, follow
from headrace.tests.answering_server import ROUND, VERSION, Run, Server

SECOND: Version = build(Version, VERSION)
THIRD = replace(SECOND, version=3, parent_version=2, created_at=61.0)
MOVE = {
    "model": "m", "alias": "production", "from_version": 2, "to_version": 3, "by": "gate", "reason": "", "at": 62.0,
}  # fmt: skip


def look(*versions: Version, moves: tuple[dict[str, Any], ...] = ()) -> Look:
    return Look([build(AliasChange, move) for move in moves], {version.version: version for version in versions})


def will_show(
    server: Server, versions: list[dict[str, Any]], moves: list[dict[str, Any]], *rounds: dict[str, Any],
    waiting_for: str = "7 of 10 new examples", ended: Sequence[dict[str, Any]] = (),
) -> None:  # fmt: skip
    """For one look: the history, the versions, the rounds, and where none is open what the next waits for."""
    server.will_answer_all({"changes": moves}, {"versions": versions}, {"rounds": [*rounds, *ended]})
    if not rounds:
        server.will_answer(200, {"waiting_for": waiting_for})


def open_round(state: str, *, model: str = "m", planned_at: float = 1.0, **progress: object) -> dict[str, Any]:
    plan = ROUND | {"model": model}
    return plan | {"plan": plan, "state": state, "planned_at": planned_at, "progress": progress}


@pytest.mark.parametrize("as_json", [False, True])
def test_each_change_is_a_line_as_it_happens(run: Run, server: Server, as_json: bool) -> None:
    third = VERSION | {"version": 3, "parent_version": 2, "created_at": 61.0}
    will_show(server, [VERSION], [])
    will_show(server, [VERSION], [])
    will_show(server, [VERSION, third], [])
    will_show(server, [VERSION, third], [MOVE])
    server.will_answer(404, {"error": {"kind": "NotFound", "message": "the test is over"}})
    result = run(*(["--json"] if as_json else []), "versions", "m", "--watch", "--interval", "0.1")
    assert result.exit_code == NotFound.exit
    assert "watching m, newest version 2; looking every 0.1 s until Ctrl-C" in result.stderr
    lines = result.stdout.splitlines()
    if as_json:
        registered, moved = map(json.loads, lines)
        assert (registered["change"], registered["version"], registered["metrics"]) == (
            "registered",
            3,
            VERSION["metrics"],
        )
        assert moved == {"change": "alias", **MOVE}
        return
    assert lines == [
        "1970-01-01 00:01:01Z  version 3 from version 2 is accepted: 90 events trained, 10 held out",
        "1970-01-01 00:01:02Z  production is version 3, was version 2 (by gate)",
    ]


def test_how_far_the_next_version_is_is_told_by_stage_progress_and_queue(run: Run, server: Server) -> None:
    will_show(server, [VERSION], [])
    will_show(server, [VERSION], [], open_round("planned", planned_at=2.0), open_round("running", model="other"))
    will_show(server, [VERSION], [], open_round("running", stage="train", examples_done=10, pass_number=2, passes=3))
    will_show(server, [VERSION], [], open_round("running", stage="train", examples_done=20, pass_number=2, passes=3))
    will_show(server, [VERSION], [], open_round("running", stage="export", examples_done=30))
    will_show(server, [VERSION], [], waiting_for="the end of round r (running)", ended=[open_round("done")])
    will_show(server, [VERSION], [], waiting_for="there is no new example", ended=[open_round("done")])
    server.will_answer(404, {"error": {"kind": "NotFound", "message": "the test is over"}})
    told = run("versions", "m", "--watch", "--interval", "0.1").stderr.splitlines()[1:-1]
    assert told == [
        "no round is open: 7 of 10 new examples",
        "round 3 waits for a trainer, 1 round before it",
        "round 3 train, pass 2 of 3: 10 of 30 events",
        "round 3 export: 30 of 30 events",
        "no round is open: there is no new example",
    ]


def test_what_happened_between_two_looks_is_told_in_its_order() -> None:
    archived = replace(SECOND, status=VersionStatus.ARCHIVED)
    removed = MOVE | {"alias": "canary", "from_version": 1, "to_version": 0, "at": 30.0, "reason": "it was slow"}
    told = changes(look(SECOND), look(archived, THIRD, moves=(removed, MOVE)))
    assert [happening.text.partition(" (by")[0] for happening in told] == [
        "canary was removed, was version 1",
        "version 3 from version 2 is accepted: 90 events trained, 10 held out",
        "production is version 3, was version 2",
        "version 2 is archived",
    ]
    assert told[0].text.endswith("(by gate: it was slow)")
    judged = replace(THIRD, verdict=replace(THIRD.verdict, reasons=("auc is 0.9", "judged on 9")))
    passed = MOVE | {"reason": "m-3 passed the gate: auc is 0.9; judged on 9"}
    assert [
        happening.text.partition(" (")[2] for happening in changes(look(SECOND), look(SECOND, judged, moves=(passed,)))
    ] == [
        "auc is 0.9; judged on 9)",
        "by gate: m-3 passed the gate)",
    ]
    assert changes(look(judged), look(judged, moves=(passed,)))[0].text.endswith(
        "(by gate: m-3 passed the gate: auc is 0.9; judged on 9)"
    )
    assert changes(look(SECOND, moves=(MOVE,)), look(SECOND, moves=(MOVE,))) == []
    # Each look holds the newest versions and moves: of many, the oldest fall out between two.
    later = MOVE | {"from_version": 3, "to_version": 4, "at": 70.0}
    told = changes(look(SECOND, THIRD, moves=(removed, MOVE)), look(THIRD, moves=(MOVE, later)))
    assert [happening.text for happening in told] == ["production is version 4, was version 3 (by gate)"]


def test_a_registry_that_is_away_is_told_once_and_asked_again() -> None:
    answers: Iterator[Look | Exception] = iter(
        [Unavailable("gone"), Unavailable("gone"), look(SECOND, THIRD), Unavailable("gone again"), NotFound("over")]
    )

    def ask() -> Look:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    away: list[str] = []
    told = follow(look(SECOND), ask, pause=lambda: None, on_away=away.append)
    ((happening,), _) = next(told)
    assert happening.document["version"] == 3
    with pytest.raises(NotFound):
        next(told)
    assert away == ["gone", "gone again"]
