"""What control and a round's process say to each other: one assignment in, then messages out, as JSON lines.

Control (control/attempt.py) has the zygote fork a child that calls

    run_round(assignment, report, stop_requested)          # RunRound, below; implemented by rounds/process.py

What it returns runs the next round, of an equal model, definition and schema, in the same process; None: the process
ends. While there is something, the child says Waits, and control gives the lease's next assignment (forking.py), or
ends the process.

Between blocks of examples, and before each stage, the child asks `stop_requested()`; once it is true (the trainer is
being stopped) the child saves a resume point, reports Stopped and returns. Every ending is one of these:

    Done      the version is registered; nothing is left to do
    Failed    the definition is at fault; control fails the round with the reason, and it is not tried again
    Stopped   as asked; control gives the lease back
    Shrunk    a worker was lost; control goes on at once under the same lease, with fewer workers
    Helped    a member of a round that another trainer leads has done its part; control ends it with the round
    Rebuilt   a version was trained again and compared; nothing was leased or registered
    Figures   a SavedModel made elsewhere was measured; nothing was leased or registered
    raised    InvalidInput, DataLoss: control fails the round; any other of the six: control gives the lease back and
              backs off; anything else, an exit without a word, or a signal: a death. Three deaths fail the round.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Protocol, get_args

from pydantic import TypeAdapter
from pydantic_core import from_json

from common.errors import InvalidInput
from services.trainer.protocol.assignment import RoundAssignment


class FailureKind(StrEnum):
    DEFINITION = "definition"
    """The definition raised, or asks for what cannot be built."""
    NUMERIC = "numeric"
    """A loss or a weight is not finite."""
    MEMORY = "memory"
    """The model does not fit."""


@dataclass(frozen=True)
class Progress:
    """How far the round is. `stage` is one of download, read, build, train, evaluate, export, upload, register; a round
    is in `build` until the first block is learned."""

    stage: str
    examples_done: int = 0
    """Of the range, trained on in this pass; in stages after training, in a whole pass."""
    loss: float | None = None
    resume_points: int = 0
    """Saved by this attempt."""
    step: int = 0
    """Since the model's first round; 0 where it does not train."""
    steps_per_second: float = 0.0
    examples_per_second: float = 0.0
    """Both since the last report of the training."""
    evaluation: Mapping[str, float] = field(default_factory=dict)
    """The newest on the way (training.evaluate_every_steps)."""
    members: tuple[Mapping[str, Any], ...] = ()
    """What each of several has read, as data/divided_log.py counts."""
    asynchronous: Mapping[str, Any] = field(default_factory=dict)
    """Of a round with parameter servers, as parameters/coordinator.py counts."""
    devices: tuple[Mapping[str, Any], ...] = ()
    """What each of the chief's holds, as rounds/devices.py says."""
    pass_number: int = 0
    passes: int = 0
    """Which pass over the range it is, from 1, and of how many; 0 where it does not train."""
    weights_from: str = ""
    """What it starts from: "initializers", "version 3", "another version or file" (warm_start), "resume point"."""

    def place(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("stage", "examples_done", "pass_number", "passes")}


@dataclass(frozen=True)
class Done:
    """Control has registered the version, and knows it."""

    traces: tuple[str, ...] = ()
    """Traceparents of events of the range that are traced."""
    process: Mapping[str, Any] = field(default_factory=dict)
    """Whether the round began with what the process had kept (rounds/kept.py)."""


@dataclass(frozen=True)
class Failed:
    """`told`: what is known of a value that is not finite: step, operation, layer, place, and `events`."""

    reason: str
    kind: FailureKind
    told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stopped:
    """A resume point is saved (or there was nothing to save yet)."""

    examples_done: int = 0


@dataclass(frozen=True)
class Shrunk:
    """The round goes on from its last resume point with `workers` processes of this trainer, to the same bits."""

    workers: int
    reason: str


@dataclass(frozen=True)
class Helped:
    """Nothing is kept here."""

    examples_done: int = 0


@dataclass(frozen=True)
class Rebuilt:
    """Equal when `missing` and `differences` are empty.

    Attributes:
        weights_digest: of the weights that came out; empty when training again was not possible.
        missing: the pieces of the lineage that are gone or damaged, a sentence each.
        differences: where the weights differ, a sentence each.
        warnings: what is different here from where the version was trained, a sentence each.
        metrics: {name: (of the version, of what came out)}, on the held-out events; where the weights differ.
        reproducible: False: trained asynchronously, so the metrics were judged and not the weights.
    """

    weights_digest: str
    events_trained: int = 0
    missing: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    reproducible: bool = True


@dataclass(frozen=True)
class Figures:
    """Of a SavedModel made elsewhere, as a version's draft has them.

    Attributes:
        against: the version that `metrics` and `evaluation` call the parent.
        gate: the definition's, as common/definition/gate.py writes it.
        held_out: examples that both were measured on.
    """

    against: int
    gate: Mapping[str, Any]
    metrics: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    held_out: int


@dataclass(frozen=True)
class Raised:
    """Sent by the zygote's wrapper around run_round, never by run_round itself: an exception came out of it."""

    error: str
    """The class's name, as in common.errors; any other is a death of the process."""
    message: str


@dataclass(frozen=True)
class Waits:
    """Sent by the zygote's wrapper after a round's last word: the process would take another."""


Message = Progress | Waits | Done | Failed | Stopped | Shrunk | Helped | Rebuilt | Figures | Raised
Report = Callable[[Message], None]
"""Hands a message to control."""
_MOST_KEPT_BYTES = 256 * 1024
"""Of what the registry keeps with a round, some of it anew with each renewal of the lease."""


@cache
def _readers() -> Mapping[str, TypeAdapter[Message]]:
    return {kind.__name__.lower(): TypeAdapter(kind) for kind in get_args(Message)}


class RunRound(Protocol):
    def __call__(
        self, assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool]
    ) -> "RunRound | None": ...


def encode_message(message: Message) -> bytes:
    """One JSON line: the message's kind and its fields."""
    return json.dumps({"kind_of_message": type(message).__name__.lower(), **asdict(message)}).encode() + b"\n"


def decode_message(line: bytes) -> Message:
    """Raises InvalidInput when the line is no message: authors' code can write there, too."""
    try:
        fields = from_json(line)
        kind = fields.pop("kind_of_message")
        if kind in ("progress", "failed", "raised") and len(line) > _MOST_KEPT_BYTES:
            raise ValueError("too long")
        return _readers()[kind].validate_python(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a message of a round's process: {line[:200]!r}") from error
