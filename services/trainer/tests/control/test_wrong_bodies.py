"""A value of a wrong type at any key of a request to a trainer: one of the six errors."""

from typing import Any

import pytest

from services.trainer.tests.support.platform_processes import MODEL, TrainerProcess
from testing.waiting import wait_until
from testing.wrong_values import JSON_VALUES, wrong

FILE = {"path": "saved_model.pb", "size_bytes": 1, "digest": "0" * 64}
BODIES: dict[str, dict[str, Any]] = {
    "train": {"by": "ada", "reason": "trial", "from": {"0": 5}, "allow_signature_change": False},
    "measure": {"by": "ada", "reason": "trial", "files": [FILE]},
    "profile": {"by": "ada", "reason": "trial", "first_step": 1, "steps": 2},
    "versions/1:rebuild": {"by": "ada", "reason": "trial"},
}


@pytest.mark.usefixtures("events")
def test_a_request_with_a_value_of_a_wrong_type_is_refused_in_a_sentence(trainer: TrainerProcess) -> None:
    trainer.start()
    wait_until(lambda: trainer.get("/readyz")[0] == 200, "it is ready")
    for verb, body in BODIES.items():
        statuses = set()
        for place, given in wrong(body, JSON_VALUES):
            path = f"/v1/models/{MODEL}" + (f"/{verb}" if "/" in verb else f":{verb}")
            status, answer = trainer.post(path, given)
            statuses.add(status)
            assert status in (202, 400, 404, 409), f"{verb}: {place}: {answer}"
            assert status == 202 or answer["error"]["message"], f"{verb}: {place}"
        assert 400 in statuses, verb
