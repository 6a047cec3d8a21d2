"""Who may call what of a trainer: every route, by the credentials that it takes."""

from pathlib import Path
from typing import Any, cast

import pytest

from common.access.guard import Guard
from common.process.health import Health
from services.trainer.http_api import create_http_app
from services.trainer.rules import RULES
from testing.walking import access_in, http_actions, statuses_of_all

_NOTHING = cast(Any, None)
_COMMON = {"GET /healthz", "GET /readyz"} | {action for action, rule in RULES.items() if not rule.roles}


def _app(tmp_path: Path) -> Any:
    guard = Guard(access_in(tmp_path), RULES)
    return create_http_app(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING, Health(), _NOTHING, _NOTHING, guard=guard)


def test_every_route_has_a_rule_and_every_rule_is_of_one(tmp_path: Path) -> None:
    assert http_actions(_app(tmp_path)) == {action for action in RULES if not action.startswith("grpc.")}


@pytest.mark.parametrize("name", ["", "nobody"])
def test_without_credentials_only_probes_are_answered(tmp_path: Path, name: str) -> None:
    answers = statuses_of_all(_app(tmp_path), name)
    assert {action for action, status in answers.items() if status != 401} == {"GET /healthz", "GET /readyz"}


def test_who_may_not_train_is_refused(tmp_path: Path) -> None:
    app = _app(tmp_path)
    changing = {action for action in http_actions(app) if action.startswith("POST ")}
    for name in ("viewer", "predictor", "sender", "stranger"):
        answers = statuses_of_all(app, name)
        assert {answers[action] for action in changing} == {403}, name
    for name in ("author", "operator"):
        answers = statuses_of_all(app, name)
        assert 403 not in {answers[action] for action in changing}, name


def test_what_a_predictor_sees_of_a_trainer_is_its_description(tmp_path: Path) -> None:
    answers = statuses_of_all(_app(tmp_path), "predictor")
    assert {action for action, status in answers.items() if status != 403} == _COMMON & answers.keys()
