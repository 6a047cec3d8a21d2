"""What a round's process asks of the registry, in one folder and one process: the tests' second adapter.

Not a stand-in for its rules (leases, gate, chains are the registry's own tests); bytes and manifests are real.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from common.definition.model import parse_definition
from common.errors import DataLoss, Unavailable
from common.eventlog.base import EventLog
from common.registry.catalog import (
    Decision,
    FileEntry,
    JsonMap,
    Lease,
    OffsetRange,
    ResumePoint,
    Round,
    RoundPlan,
    RoundState,
    Stream,
    Verdict,
    Version,
    VersionDraft,
    VersionStatus,
    ranges_as_json,
)
from common.registry.client import manifest_of
from common.registry.plan_notes import WINDOW
from services.trainer.control.dead_letters import RoundLetters
from services.trainer.protocol.calls import Place


@dataclass
class LocalRegistry:
    files_dir: Path
    schema_json: str = ""
    definitions: dict[str, dict[str, bytes]] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    drafts: list[VersionDraft] = field(default_factory=list)
    resume_point: ResumePoint | None = None
    takes_resume_points: bool = True
    rounds: dict[str, Round] = field(default_factory=dict)
    leased: Lease | None = None
    """Of the round that is conducted."""
    handed_in: tuple[FileEntry, ...] = ()
    log: EventLog | None = None

    def get_definition(self, digest: str) -> dict[str, bytes]:
        return self.definitions[digest]

    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream:
        return Stream(name, schema_version or 1, self.schema_json, 0.0)

    def get_version(self, model: str, version: int) -> Version:
        return self.versions[version - 1]

    def get_round(self, model: str, round_id: str) -> Round:
        return self.rounds[round_id]

    def upload(self, directory: Path) -> tuple[tuple[FileEntry, ...], int]:
        files = self.handed_in = manifest_of(directory)
        self.files_dir.mkdir(parents=True, exist_ok=True)
        for entry in files:
            shutil.copyfile(directory / entry.path, self.files_dir / entry.digest)
        return files, sum(entry.size_bytes for entry in files)

    def download(self, files: Sequence[FileEntry], directory: Path) -> int:
        for entry in files:
            if hashlib.sha256((self.files_dir / entry.digest).read_bytes()).hexdigest() != entry.digest:
                raise DataLoss(f"file {entry.path} came with another digest than {entry.digest}")
            (directory / entry.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.files_dir / entry.digest, directory / entry.path)
        return sum(entry.size_bytes for entry in files)

    def put_resume_point(self, state: JsonMap) -> None:
        if not self.takes_resume_points:
            raise Unavailable("the registry is away")
        self.resume_point = ResumePoint(dict(state), self.handed_in, 0.0)

    def register_version(self, draft: VersionDraft) -> Version:
        assert self.leased, "a round is conducted"
        lease = self.leased
        plan = lease.round.plan
        self.rounds[lease.round.round_id] = lease.round
        version = Version(
            model=plan.model,
            version=len(self.versions) + 1,
            status=VersionStatus.ACCEPTED,
            round_id=lease.round.round_id,
            parent_version=plan.parent_version,
            stream=plan.stream,
            schema_version=plan.schema_version,
            ranges=plan.ranges,
            definition_digest=plan.definition_digest,
            configuration_digest=plan.configuration_digest,
            code_digest="",
            seed=plan.seed,
            weights_digest=draft.weights_digest,
            metrics=draft.metrics,
            evaluation=draft.evaluation,
            verdict=Verdict(Decision.PROMOTE, (), draft.gate),
            events_trained=draft.events_trained,
            events_held_out=draft.events_held_out,
            events_unusable=draft.events_unusable,
            unusable=draft.unusable,
            files=draft.files,
            created_at=0.0,
            last_event_at=0.0,
            timings=draft.timings,
            environment=draft.environment,
            step=draft.step,
        )
        self.versions.append(version)
        self.drafts.append(draft)
        return version

    def set_aside(self, places: Sequence[Place]) -> int:
        assert self.leased, "a round is conducted"
        assert self.log, "the round has events"
        log, round_ = nullcontext(self.log), self.leased.round
        letters = RoundLetters(round_.plan, lambda: log, written_by=round_.round_id)
        return letters.write(places, most=self.versions[-1].events_unusable)

    def close(self) -> None:
        """Nothing is open."""

    def lease(
        self,
        *,
        definition: Mapping[str, bytes],
        ranges: tuple[OffsetRange, ...],
        block_examples: int,
        seed: int = 11,
        parent_version: int = 0,
        evaluation: JsonMap | None = None,
        window: tuple[OffsetRange, ...] = (),
    ) -> Lease:
        """Stores the definition and leases a round over the ranges.

        Args:
            evaluation: of the plan; by default what the definition says.
        """
        digest = hashlib.sha256(repr(sorted(definition.items())).encode()).hexdigest()
        self.definitions[digest] = dict(definition)
        split = parse_definition(definition).evaluation.to_configuration() if evaluation is None else evaluation
        plan = RoundPlan(
            model="model",
            sequence=len(self.versions) + 1,
            parent_version=parent_version,
            stream="stream",
            schema_version=1,
            ranges=ranges,
            definition_digest=digest,
            configuration={"block_examples": block_examples, "evaluation": split}
            | ({WINDOW: ranges_as_json(window)} if window else {}),
            configuration_digest="",
            code_digest="",
            seed=seed,
            example_count=0,
            trigger="manual",
            last_event_at=0.0,
        )
        leased = Round(f"round-{len(self.versions) + 1}", plan, 0.0, RoundState.RUNNING)
        return Lease(leased, 1, 0.0, self.resume_point)

    def taken_up(self, lease: Lease) -> Lease:
        """The same round, leased again after its holder died."""
        return replace(lease, token=lease.token + 1, resume_point=self.resume_point)
