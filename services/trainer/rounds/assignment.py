"""What control and a round's process say to each other: one assignment in, then messages out, as JSON lines.

Control (rounds.py) has the zygote fork a child that calls

    run_round(assignment, report, stop_requested)          # RunRound, below; implemented by round_process.py

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
from typing import Any, Protocol

from common.definition.identity import MAX_PARAMETERS
from common.errors import InvalidInput
from common.registry.catalog import FileEntry, Lease, OffsetRange, ResumePoint, Round, RoundPlan, RoundState

LIVE_EVENTS = "live/events.out.tfevents.live"
"""Below a round's folder: its curve as it grows, for TensorBoard."""


@dataclass(frozen=True)
class RoundAssignment:
    """Everything a round's process needs; it reads no settings of its own."""

    lease: Lease
    """The round, the fencing token, and the resume point to take up, if there is one."""
    registry_address: str
    event_log: str
    """For common.eventlog.open.open_event_log."""
    work_dir: str
    """Absolute; this round's own. Kept over attempts on this machine, so what an earlier attempt left may be there."""
    cache_dir: str
    """Absolute; files of earlier versions under <model>/<version>/. Control keeps the newest few of each model."""
    intra_op_threads: int
    inter_op_threads: int
    resume_interval_seconds: float
    """Save a resume point at the first block boundary after so long; 0 saves one after every block."""
    workers: int = 1
    """Processes that compute the round's shards, on all trainers; no part of the plan."""
    addresses: tuple[str, ...] = ()
    """host:port of each of them, in order of rank, where they are on several trainers; else they are all here."""
    rank: int = 0
    """Of this process; the chief has 0."""
    processes: int = 1
    """Those of this trainer, from `rank` on."""
    trainers: tuple[str, ...] = ()
    """The names of those that compute the round, the chief first; empty: this one alone."""
    team_id: str = ""
    """Of these; their processes know each other by it."""
    devices: int = 1
    """Devices of each process, the GPUs where there are any; no part of the plan."""
    straggler_seconds: float = 120.0
    """How long a step waits for the process that has not come to it."""
    exchange: str = "memory"
    """How the processes of one machine hand their rows to each other: memory, or collectives; no part of the plan."""
    profile_first: int = 0
    profile_steps: int = 0
    """Steps of this attempt to trace, from 0; 0 steps: none. No part of the plan."""
    readers: int = 1
    """Partitions that are read ahead by threads; no part of the plan."""
    max_parameters: int = MAX_PARAMETERS
    """Of the round's model; one of more fails the round before anything is trained."""
    traceparent: str = ""
    """Of the attempt's span, where it is traced; no part of the plan."""
    evaluator: str = "chief"
    """Who scores what training.evaluate_every_steps asks for: chief, or process, one of its own beside the chief."""
    rebuild_of: int = 0
    """Not 0: train this version of the plan's model again and compare. The lease then is a form only (token 0): no
    resume point is saved and nothing is registered."""
    candidate: tuple[FileEntry, ...] = ()
    against: int = 0
    """Where there are files: measure the SavedModel among them beside this version, on the slice that the round of the
    lease held out. The lease is a form here, too."""

    @property
    def round(self) -> Round:
        return self.lease.round

    @property
    def plan(self) -> RoundPlan:
        return self.lease.round.plan

    @property
    def shards(self) -> int:
        """Parts of each batch, as the definition says; part of the plan."""
        return int(dict(self.plan.configuration.get("training", {})).get("shards", 1))

    @property
    def shares_memory(self) -> bool:
        """Whether what several processes exchange travels through memory: they are to, and all of them are here."""
        return 1 < self.workers == self.processes and self.exchange == "memory"

    @property
    def is_asynchronous(self) -> bool:
        """Whether its steps wait for nobody; part of the plan."""
        return bool(dict(self.plan.configuration.get("training", {})).get("asynchronous"))

    @property
    def most_processes(self) -> int:
        """That can compute the round together: one for each shard, or the workers of an asynchronous one."""
        training = dict(self.plan.configuration.get("training", {}))
        return int(training["asynchronous"]["workers"]) if self.is_asynchronous else self.shards

    @property
    def block_examples(self) -> int:
        """Examples per block; its boundaries are where training can resume. Part of the plan, as it fixes the order."""
        return int(self.plan.configuration["block_examples"])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RoundAssignment":
        fields = json.loads(text)
        told: dict[str, Any] = {"lease": _lease(fields["lease"])}
        told["candidate"] = tuple(FileEntry(**entry) for entry in fields["candidate"])
        return cls(**(fields | told | {name: tuple(fields[name]) for name in ("addresses", "trainers")}))


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
    loss: float | None = None
    resume_points: int = 0
    """Saved by this attempt."""
    step: int = 0
    """Since the model's first round; 0 where it does not train."""
    steps_per_second: float = 0.0
    examples_per_second: float = 0.0
    """Both over the last block."""
    evaluation: Mapping[str, float] = field(default_factory=dict)
    """The newest on the way (training.evaluate_every_steps)."""
    members: tuple[Mapping[str, Any], ...] = ()
    """What each of several has read, as data/divided_log.py counts."""
    asynchronous: Mapping[str, Any] = field(default_factory=dict)
    """Of a round with parameter servers, as parameters/coordinator.py counts."""
    devices: tuple[Mapping[str, Any], ...] = ()
    """What each of the chief's holds, as rounds/devices.py says."""


@dataclass(frozen=True)
class Done:
    version: int
    decision: str
    """The verdict: promote, canary, reject or hold."""
    events_trained: int = 0
    traces: tuple[str, ...] = ()
    """Traceparents of events of the range that are traced."""


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


Message = Progress | Done | Failed | Stopped | Shrunk | Helped | Rebuilt | Figures | Raised
_MESSAGES: Mapping[str, type[Message]] = {
    kind.__name__.lower(): kind for kind in (Progress, Done, Failed, Stopped, Shrunk, Helped, Rebuilt, Figures, Raised)
}


class RunRound(Protocol):
    def __call__(
        self,
        assignment: RoundAssignment,
        report: Callable[[Message], None],
        stop_requested: Callable[[], bool],
    ) -> None: ...


def encode_message(message: Message) -> bytes:
    """One JSON line: the message's kind and its fields."""
    return json.dumps({"kind_of_message": type(message).__name__.lower(), **asdict(message)}).encode() + b"\n"


def decode_message(line: bytes) -> Message:
    """Raises InvalidInput when the line is no message."""
    try:
        fields: dict[str, Any] = json.loads(line)
        kind = _MESSAGES[fields.pop("kind_of_message")]
        if kind is Failed:
            fields["kind"] = FailureKind(fields["kind"])
        if kind is Progress:
            fields |= {name: tuple(fields.get(name, ())) for name in ("members", "devices")}
        if kind is Done:
            fields["traces"] = tuple(fields["traces"])
        if kind is Rebuilt:
            fields |= {name: tuple(fields[name]) for name in ("missing", "differences", "warnings")}
        return kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"not a message of a round's process: {line[:200]!r}") from error


def _lease(fields: Mapping[str, Any]) -> Lease:
    point = fields["resume_point"]
    return Lease(
        round=_round(fields["round"]),
        token=fields["token"],
        expires_at=fields["expires_at"],
        resume_point=None
        if point is None
        else ResumePoint(point["state"], tuple(FileEntry(**entry) for entry in point["files"]), point["saved_at"]),
    )


def _round(fields: Mapping[str, Any]) -> Round:
    plan = dict(fields["plan"])
    plan["ranges"] = tuple(OffsetRange(**item) for item in plan["ranges"])
    return Round(**{**fields, "plan": RoundPlan(**plan), "state": RoundState(fields["state"])})
