"""`headrace rebuild`: what is printed, and the exit status a script relies on."""

import json
from typing import Any

from common.errors import Unavailable
from headrace.commands.session import user_name
from headrace.tests.answering_server import Run, Server
from testing.rows import each_row

WAITING = {"rebuild_id": "i", "model": "m", "version": 2, "state": "waiting", "reason": "", "equal": None}
DONE: dict[str, Any] = WAITING | {
    "state": "done", "equal": True, "expected_digest": "a" * 64, "rebuilt_digest": "a" * 64, "events_trained": 1234,
    "missing": [], "differences": [], "warnings": ["keras was 3.1 where the version was trained and is 3.2 here"],
    "metrics": {}, "seconds": 2.5,
}  # fmt: skip


def test_an_equal_version_is_said_to_be_after_the_wait(server: Server, run: Run) -> None:
    does = {"round_id": "other-000007", "stage": "train"}
    server.will_answer(202, WAITING)
    server.will_answer_all(WAITING, {"instances": [{"service": "trainer", "instance_id": "t", "does": does}]})
    server.will_answer(200, WAITING | {"state": "running", "trainer": "t", "stage": "train", "examples_done": 7}
        | {"pass_number": 2, "passes": 3})  # fmt: skip
    result = run("rebuild", "m@2", answers=(DONE,))
    assert (result.exit_code, server.requests[0].path) == (0, "/v1/models/m/versions/2:rebuild")
    assert json.loads(server.requests[0].body) == {"by": user_name()}, "the history names the person, not the trainer"
    assert result.stderr.splitlines() == [
        "m@2 waits for a trainer that is free: t runs other-000007 (train)",
        "m@2 is trained again by t: train, pass 2 of 3, 7 examples so far",
    ]
    assert result.stdout.splitlines() == [
        "registered  " + "a" * 64,
        "rebuilt     " + "a" * 64,
        "warning: keras was 3.1 where the version was trained and is 3.2 here",
        "m@2 is equal: 1,234 examples, 2.5 s",
    ]


def test_of_an_asynchronous_version_the_metrics_count(server: Server, run: Run) -> None:
    server.will_answer(202, WAITING)
    server.will_answer(
        200, DONE | {"rebuilt_digest": "b" * 64, "metrics": {"auc": [0.75, 0.74]}, "reproducible": False}
    )
    result = run("rebuild", "m@2")
    assert result.exit_code == 0
    assert result.output.splitlines()[-3:] == [
        "auc: 0.75 registered, 0.74 rebuilt",
        "m@2 was trained asynchronously, so its weights need not be equal; its metrics were compared",
        "m@2 is within its tolerance: 1,234 examples, 2.5 s",
    ]


def test_a_version_that_is_not_equal_is_exit_status_one(server: Server, run: Run) -> None:
    server.will_answer(202, WAITING)
    server.will_answer(
        200,
        DONE | {"equal": False, "differences": ["model/w differs in 1 of 2 values"], "metrics": {"auc": [0.75, 0.5]}},
    )
    result = run("rebuild", "m@2")
    assert "auc: 0.75 registered, 0.5 rebuilt" in result.output
    server.will_answer(202, WAITING)
    server.will_answer(
        200, DONE | {"equal": False, "rebuilt_digest": "", "missing": ["the parent, version 1, is archived"]}
    )
    result = run("rebuild", "m@2", "--json")
    document = json.loads(result.output)
    assert (result.exit_code, document["equal"]) == (1, False)
    assert document["missing"] == ["the parent, version 1, is archived"]


@each_row("name", ["m", "m@", "@2", "m@0", "m@x"])
def test_a_name_without_a_version_is_refused(run: Run, name: str) -> None:
    assert "MODEL@VERSION" in run.refusal("rebuild", name)


def test_a_rebuild_that_could_not_be_tried_is_unavailable_with_the_reason(server: Server, run: Run) -> None:
    server.will_answer(202, WAITING)
    server.will_answer(200, DONE | {"state": "failed", "reason": "the trainer was stopped"})
    assert "the trainer was stopped" in run.refusal("rebuild", "m@2", status=Unavailable.exit)
