"""Everything that a round's process is given: its plan under a lease, where things are, how it may compute."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common.definition.identity import MAX_PARAMETERS
from common.json_values import value_of
from common.registry.catalog import FileEntry, Lease, Round, RoundPlan
from services.trainer.sandbox.rules import SandboxRules

LIVE_EVENTS = "live/events.out.tfevents.live"
"""Below a round's folder: its curve as it grows, for TensorBoard."""


@dataclass(frozen=True)
class RoundAssignment:
    """Everything a round's process needs; it reads no settings of its own."""

    lease: Lease
    """The round, the fencing token, and the resume point to take up, if there is one."""
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
    device_reduction: str = "tree"
    """Where their parts are added up: tree, or one_device; no part of the plan."""
    straggler_seconds: float = 120.0
    """How long a step waits for the process that has not come to it."""
    compares_workers: bool = False
    """Whether its processes, where all are this trainer's, are compared with one."""
    exchange: str = "memory"
    """How the processes of one machine hand their rows to each other: memory, or collectives; no part of the plan."""
    trial_seconds: float = 300.0
    conversion_seconds: float = 900.0
    """Limits of the export's trial and of the converters to other formats; seconds without a core do not count."""
    trial_every: int = 20
    """Of versions whose program is known, one in so many is tried as a first one is."""
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
    may_stay: bool = False
    """The process may keep what it has built, and wait for the next round of its model; no part of the plan."""
    sandbox: SandboxRules = field(default_factory=SandboxRules)
    """What its process may reach; no part of the plan."""
    channel: int = -1
    """The descriptor by which its process, and those that it forks, call control (calls.py); the process says it."""
    process_dir: str = ""
    """Absolute, where it is not `work_dir`: of the process, gone with it: the definition's files, temporary files."""
    rebuild_of: int = 0
    """Not 0: train this version of the plan's model again and compare. The lease then is a form only (token 0): no
    resume point is saved and nothing is registered."""
    candidate: tuple[FileEntry, ...] = ()
    against: int = 0
    """Where there are files: measure the SavedModel among them beside this version, on the slice that the round of the
    lease held out. The lease is a form here, too."""
    candidate_is_own: bool = False
    """The files are those that this round itself has handed in, measured beside its parent: no code of their author's
    runs in this process."""

    def scoring(self, files: tuple[FileEntry, ...], work_dir: str) -> "RoundAssignment":
        """Of the process that scores the files of this round's version."""
        return RoundAssignment(
            self.lease, self.event_log, work_dir, f"{work_dir}/cache", self.intra_op_threads, self.inter_op_threads,
            self.resume_interval_seconds, readers=self.readers, candidate=files, candidate_is_own=True,
            may_stay=self.may_stay,
        )  # fmt: skip

    @property
    def round(self) -> Round:
        return self.lease.round

    @property
    def code_dir(self) -> Path:
        """Below which the definition's files are written, for as long as its module is used."""
        return Path(self.process_dir or self.work_dir)

    @property
    def plan(self) -> RoundPlan:
        return self.lease.round.plan

    @property
    def training(self) -> Mapping[str, Any]:
        """The definition's section, as the plan has it."""
        return dict(self.plan.configuration.get("training", {}))

    @property
    def shards(self) -> int:
        """Parts of each batch, as the definition says; part of the plan."""
        return int(self.training.get("shards", 1))

    @property
    def shares_memory(self) -> bool:
        """Whether what several processes exchange travels through memory: they are to, and all of them are here."""
        return 1 < self.workers == self.processes and self.exchange == "memory"

    @property
    def is_asynchronous(self) -> bool:
        """Whether its steps wait for nobody; part of the plan."""
        return bool(self.training.get("asynchronous"))

    @property
    def most_processes(self) -> int:
        """That can compute the round together: one for each shard, or the workers of an asynchronous one."""
        return int(self.training["asynchronous"]["workers"]) if self.is_asynchronous else self.shards

    @property
    def block_examples(self) -> int:
        """Examples per block; its boundaries are where training can resume. Part of the plan, as it fixes the order."""
        return int(self.plan.configuration["block_examples"])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RoundAssignment":
        return value_of(cls, json.loads(text))
