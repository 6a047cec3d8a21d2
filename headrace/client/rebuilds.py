"""What came of training a version again, as the trainer tells it, and how to wait for it."""

import time
from dataclasses import dataclass
from typing import Any

from common.errors import NotFound, Unavailable
from headrace.client.connection import Door

_POLL_SECONDS = 0.25
_STRANGERS = 40
"""Behind one address may be several trainers, and only one of them knows the rebuild; after so many answers in a row
that do not know it, it is forgotten."""


@dataclass(frozen=True)
class Rebuild:
    """A version beside what its lineage gives today.

    Attributes:
        equal: the weights are bit-equal, and so is the stored checkpoint.
        rebuilt_digest: empty when a missing piece made training impossible.
        missing: pieces of the lineage that are gone or damaged, a sentence each.
        differences: where the weights differ, a sentence each.
        warnings: what is different on the trainer from where the version was trained, a sentence each.
    """

    model: str
    version: int
    equal: bool
    expected_digest: str
    rebuilt_digest: str
    events_trained: int
    missing: tuple[str, ...]
    differences: tuple[str, ...]
    warnings: tuple[str, ...]
    seconds: float


def wait_for(trainer: Door, rebuild_id: str, *, wait_seconds: float) -> Rebuild:
    """Raises Unavailable: not ready in time, forgotten by a restarted trainer, or failed for a reason that is told."""
    deadline = time.monotonic() + wait_seconds
    strangers = 0
    while True:
        try:
            answer = trainer.call("GET", f"/v1/rebuilds/{rebuild_id}", repeatable=True).json()
            strangers = 0
        except NotFound as error:
            answer, strangers = {"state": "waiting"}, strangers + 1
            if strangers >= _STRANGERS:
                raise Unavailable(
                    f"the trainer has forgotten the rebuild, so it was restarted: {error.message}"
                ) from error
        if answer["state"] == "done":
            return _rebuild_of(answer)
        if answer["state"] == "failed":
            raise Unavailable(f"{answer['model']}@{answer['version']} could not be rebuilt: {answer['reason']}")
        if time.monotonic() > deadline:
            raise Unavailable(f"the rebuild is not done within {wait_seconds:g} s; it is {answer['state']}")
        time.sleep(_POLL_SECONDS)


def _rebuild_of(answer: dict[str, Any]) -> Rebuild:
    return Rebuild(
        model=str(answer["model"]),
        version=int(answer["version"]),
        equal=bool(answer["equal"]),
        expected_digest=str(answer["expected_digest"]),
        rebuilt_digest=str(answer["rebuilt_digest"]),
        events_trained=int(answer["events_trained"]),
        missing=tuple(answer["missing"]),
        differences=tuple(answer["differences"]),
        warnings=tuple(answer["warnings"]),
        seconds=float(answer["seconds"]),
    )
