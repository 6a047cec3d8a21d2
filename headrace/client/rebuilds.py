"""What came of training a version again, or of measuring a model made elsewhere, as the trainer tells it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import Unavailable
from headrace.client.bodies import build
from headrace.client.connection import Door

_POLL_SECONDS = 0.25
OnWait = Callable[[Mapping[str, Any]], None]
"""Gets the trainer's answer at every look before the end: "state", "trainer", "stage", "examples_done", "pass_number",
"passes"."""


@dataclass(frozen=True)
class Rebuild:
    """A version beside what its lineage gives today.

    Attributes:
        equal: the weights are bit-equal, and so is the stored checkpoint.
        rebuilt_digest: empty when a missing piece made training impossible.
        missing: pieces of the lineage that are gone or damaged, a sentence each.
        differences: where the weights differ, a sentence each.
        warnings: what is different on the trainer from where the version was trained, a sentence each.
        metrics: {name: (registered, rebuilt)} on the held-out events, where the weights differ.
        reproducible: False: trained asynchronously; it is equal where these metrics are within its tolerance.
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
    metrics: Mapping[str, tuple[float, float]]
    seconds: float
    reproducible: bool = True


def wait_for(trainer: Door, rebuild_id: str, *, wait_seconds: float, on_wait: OnWait | None = None) -> Rebuild:
    """Raises Unavailable: not ready in time, or failed; the sentence has the reason."""
    path = f"/v1/rebuilds/{rebuild_id}"
    return build(Rebuild, _done(trainer, path, "rebuild", wait_seconds=wait_seconds, on_wait=on_wait))


def measured(trainer: Door, measurement_id: str, *, wait_seconds: float) -> dict[str, Any]:
    """The figures. Raises as `wait_for` does."""
    path = f"/v1/measurements/{measurement_id}"
    figures: dict[str, Any] = _done(trainer, path, "measurement", wait_seconds=wait_seconds)["figures"]
    return figures


def _done(trainer: Door, path: str, job: str, *, wait_seconds: float, on_wait: OnWait | None = None) -> dict[str, Any]:
    deadline = time.monotonic() + wait_seconds
    while True:
        answer: dict[str, Any] = trainer.get(path)
        if answer["state"] == "done":
            return answer
        if answer["state"] == "failed" and job == "measurement":
            raise Unavailable(f"it could not be judged beside {_name(answer)}: {answer['reason']}")
        if answer["state"] == "failed":
            raise Unavailable(f"{_name(answer)} could not be rebuilt: {answer['reason']}")
        if time.monotonic() > deadline:
            raise Unavailable(f"the {job} is not done within {wait_seconds:g} s; it is {answer['state']}")
        if on_wait is not None:
            on_wait(answer)
        time.sleep(_POLL_SECONDS)


def _name(answer: dict[str, Any]) -> str:
    """A measurement names no version before it has ended."""
    return f"{answer['model']}@{answer['version']}" if answer["version"] else str(answer["model"])
