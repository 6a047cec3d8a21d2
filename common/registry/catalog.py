"""What the registry knows, as plain values: streams, models, rounds, leases, versions, aliases, changes.

Structured values without a fixed shape (configuration, progress) are JSON-ready mappings here and *_json text on the
wire. Times are epoch seconds, UTC.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from common.definition.gate import Gate
from common.errors import InvalidInput

JsonMap = Mapping[str, Any]
VersionMetrics = Mapping[str, Mapping[str, float]]
"""Numbers by part and name: {"candidate": {"auc": 0.7}, "parent": {...}, "progressive": {...}, "examples": {...}};
candidate and parent were measured on the same held-out slice. "training" has the last pass's mean `loss`, and its parts
`data_loss` and `regularization_loss` where the loss is not one number of a module's own."""
PRODUCTION = "production"
CANARY = "canary"
PREDECESSOR = "predecessor"
"""The alias of the version to which production would go back, where the definition's rollout has a judge: replicas then
have it loaded, and score keyed predictions on it too. The registry alone moves it."""


@dataclass(frozen=True)
class Stream:
    name: str
    schema_version: int
    schema_json: str
    created_at: float
    archived: bool = False
    """Takes neither events nor models."""
    log_number: int = 1
    """Which of the streams of this name it is, so that it has none of the events of a deleted stream: 1, or the
    schema version that it began with."""

    @property
    def log_name(self) -> str:
        """Under which its events lie in the log; no stream can be called so, as no name begins with a digit."""
        return self.name if self.log_number <= 1 else f"{self.log_number}.{self.name}"


@dataclass(frozen=True)
class Model:
    name: str
    stream: str
    definition_digest: str
    created_at: float
    aliases: Mapping[str, int] = field(default_factory=dict)
    newest_version: int = 0
    round_sequence: int = 0
    consecutive_failures: int = 0
    retry_at: float = 0.0
    last_failure: str = ""
    failure: JsonMap = field(default_factory=dict)
    """The last failed round: {"message", "stage", "place", "events", "advice", "log", "round_id", "attempts", "at"}; it
    stays when later rounds succeed, until another failure takes its place."""
    paused: str = ""
    """Who paused its training, and why; "" while it is not paused."""
    pinned_version: int = 0
    """Production stays at this version until it is unpinned; 0 when it is not pinned."""
    archived: bool = False
    """Neither trained nor served."""
    head_version: int = 0
    """The parent of the next round: production, or a canary or a held version that came after it; 0: none."""
    rolled_back: JsonMap = field(default_factory=dict)
    """What only versions have learned that production was moved back from, or the head in order to forget events:
    {"head_version": where it went, "newest_version": that there was then, "events": LEARN or LEAVE_OUT, "examples",
    "end_position": {partition: where they end}, "forgot": true where events are forgotten}. It counts while the head is
    that one (`rolled_back_now`); {}: neither has happened."""
    forgotten_examples: int = 0
    """Events that it never learns again (forgotten.py)."""
    canary: JsonMap = field(default_factory=dict)
    """Of a canary that the definition's rollout brings to production in stages: {"version", "stage": from 0, "stages",
    "share": per cent, "by": key or request, "since": epoch seconds, "verdict": "" while it is being judged, and its
    guards "slices" and "memory_bytes"}; {}: there is none."""
    logs_inputs: bool = False
    """Whether keyed predictions are logged with their inputs, by whose values live quality is measured."""

    def rolled_back_now(self) -> JsonMap:
        """rolled_back while the next round starts from where production was moved to, else {}."""
        is_current = bool(self.rolled_back) and self.rolled_back["head_version"] == self.head_version
        return self.rolled_back if is_current else {}


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Records [from_offset, to_offset) of one partition."""

    partition: int
    from_offset: int
    to_offset: int


LEARN, LEAVE_OUT = "learn", "leave_out"
"""What becomes of the events of versions that were rolled back: the next round learns them, or no round does."""
NEWEST_EVENT_TIME = "newest_event_time"
"""In a version's environment: epoch seconds."""
MOST_LISTED = 1_000
"""Versions, or moves of aliases, in one answer."""


def ranges_as_json(ranges: Iterable[OffsetRange]) -> list[dict[str, int]]:
    """[{"partition": 0, "from_offset": 0, "to_offset": 10}, ...] in order."""
    return [asdict(offsets) for offsets in sorted(ranges)]


def ranges_from_json(value: object) -> tuple[OffsetRange, ...]:
    """The inverse of ranges_as_json. Raises InvalidInput: it is not a list of such mappings."""
    names = {"partition", "from_offset", "to_offset"}
    if not isinstance(value, list | tuple) or not all(
        isinstance(item, Mapping) and set(item) == names for item in value
    ):
        raise InvalidInput(f"ranges must be a list of mappings with {', '.join(sorted(names))}, got {value!r}")
    if not all(type(number) is int for item in value for number in item.values()):
        raise InvalidInput(f"ranges must hold whole numbers, got {value!r}")
    return tuple(OffsetRange(**item) for item in value)


class RoundState(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


OPEN_STATES = (RoundState.PLANNED, RoundState.RUNNING)


@dataclass(frozen=True)
class RoundPlan:
    """What a planner decides. With the definition it names, it fixes the weights that come out."""

    model: str
    sequence: int
    parent_version: int
    stream: str
    schema_version: int
    ranges: tuple[OffsetRange, ...]
    definition_digest: str
    configuration: JsonMap
    configuration_digest: str
    code_digest: str
    seed: int
    example_count: int
    trigger: str
    last_event_at: float


@dataclass(frozen=True)
class Round:
    round_id: str
    plan: RoundPlan
    planned_at: float
    state: RoundState
    reason: str = ""
    lease_holder: str = ""
    lease_expires_at: float = 0.0
    attempts: int = 0
    progress: JsonMap = field(default_factory=dict)
    version: int = 0
    failure: JsonMap = field(default_factory=dict)
    """As in Model; {} while it has not failed."""
    stopped_by: str = ""
    """Its holder saves a resume point and gives it back; no trainer takes it until it is resumed."""


@dataclass(frozen=True)
class FileEntry:
    """One file of a manifest. `path` is relative, with forward slashes; `digest` is SHA-256 in hex."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class ResumePoint:
    state: JsonMap
    files: tuple[FileEntry, ...]
    saved_at: float


@dataclass(frozen=True)
class Lease:
    round: Round
    token: int
    expires_at: float
    resume_point: ResumePoint | None = None


class Decision(StrEnum):
    PROMOTE = "promote"
    CANARY = "canary"
    REJECT = "reject"
    HOLD = "hold"


@dataclass(frozen=True)
class Verdict:
    decision: Decision
    reasons: tuple[str, ...]
    rule: Gate
    outcomes: tuple[JsonMap, ...] = ()
    """What became of each rule: {"metric", "slice", "outcome": passed | failed | not_enough_evidence, "candidate",
    "parent", "candidate_interval", "difference_interval", "sentence"}; figures and intervals where there are some."""


class VersionStatus(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    ARCHIVED = "archived"
    """Its files are gone, its record stays."""


THINNED_TO: Mapping[str, str] = {
    "hourly": "one version an hour", "daily": "one version a day", "none": "no version of that age",
}  # fmt: skip
"""The rules of a definition's retention: what stays of a time."""


@dataclass(frozen=True)
class ThinnedVersions:
    """What a rule of the retention has thinned of a model in all; `at` is epoch seconds of the newest pass."""

    rule: str
    versions: int
    first_version: int
    last_version: int
    at: float


@dataclass(frozen=True)
class VersionDraft:
    """What a trainer hands in at the end of a round.

    Manifest paths: `saved_model/...` (what is served), `checkpoint/...` (where the next round starts),
    `tensorboard/...` (event files).
    """

    weights_digest: str
    metrics: VersionMetrics
    gate: Gate
    events_trained: int
    events_held_out: int
    events_unusable: int
    files: tuple[FileEntry, ...]
    step: int
    timings: JsonMap
    environment: JsonMap
    evaluation: JsonMap = field(default_factory=dict)
    """{"slices": [...], "curves": {...}, "intervals": {...}}: docs/guide/evaluate.md says their forms."""
    unusable: JsonMap = field(default_factory=dict)
    """{"reasons": {reason: count}, "samples": [{"partition", "offset", "index", "reason"}]}"""
    signature: str = ""
    """As in Version."""


@dataclass(frozen=True)
class Version:
    model: str
    version: int
    status: VersionStatus
    round_id: str
    parent_version: int
    stream: str
    schema_version: int
    ranges: tuple[OffsetRange, ...]
    definition_digest: str
    configuration_digest: str
    code_digest: str
    seed: int
    weights_digest: str
    metrics: VersionMetrics
    verdict: Verdict
    events_trained: int
    events_held_out: int
    events_unusable: int
    files: tuple[FileEntry, ...]
    created_at: float
    last_event_at: float
    timings: JsonMap
    environment: JsonMap
    step: int
    end_position: Mapping[int, int] = field(default_factory=dict)
    """{partition: offset}: where the next round starts when this version is its parent. It covers every partition that
    the version or one of its parents learned from or left out, also those without records in its own ranges."""
    unusable: JsonMap = field(default_factory=dict)
    """As in VersionDraft."""
    contract: JsonMap = field(default_factory=dict)
    """What its SavedModel promises, as the registry read it: {"signatures": {name: {"method", "inputs", "outputs"}},
    "may_be_left_out": {signature: inputs}, "operations": {name: count}, "tags", "producer"}."""
    evaluation: JsonMap = field(default_factory=dict)
    """As in VersionDraft; a list of versions leaves it out."""
    thinned_at: float = 0.0
    """When its files went, epoch seconds; 0: they have not, or by an older release."""
    thinned_by: str = ""
    """Of THINNED_TO; "" where it was not thinned."""
    forgotten_at: float = 0.0
    """When events were forgotten that it, or an ancestor, has learned; 0: none were. It never becomes production again,
    and no round starts from it."""
    signed_by: str = ""
    """The ids of the keys that its signature names, separated by commas; the registry does not verify them. "": it has
    no signature."""
    signature: str = ""
    """The DSSE envelope (statements.py) as text; a list of versions leaves it out, and thinning removes it."""

    @property
    def newest_event_time(self) -> float | None:
        """Of the round's events, epoch seconds; None where the stream has no event time, or the release knew of none.
        `last_event_at` is when ingest took the newest event."""
        newest = self.environment.get(NEWEST_EVENT_TIME)
        return float(newest) if isinstance(newest, int | float) and math.isfinite(newest) else None


@dataclass(frozen=True)
class AliasChange:
    model: str
    alias: str
    from_version: int
    to_version: int
    by: str
    reason: str
    at: float


@dataclass(frozen=True)
class HistoryEntry:
    """A change of a model or a stream by a principal: who, when, what, why."""

    at: float
    by: str
    action: str
    """apply, promote, rollback, alias, pause, resume, pin, unpin, archive, restore, delete, fail_round, ..."""
    model: str
    """"" for what concerns a stream only."""
    stream: str
    version: int
    detail: str
    reason: str


class ChangeKind(StrEnum):
    HEARTBEAT = "heartbeat"
    RESET = "reset"
    STREAM = "stream"
    MODEL = "model"
    ROUND = "round"
    VERSION = "version"
    ALIAS = "alias"


@dataclass(frozen=True)
class Change:
    """One entry of the registry's change log; `detail` is the alias or the round id."""

    revision: int
    kind: ChangeKind
    name: str
    version: int
    detail: str
    at: float


@dataclass(frozen=True)
class Applied:
    """What `apply` did, or would do.

    Attributes:
        stream_change, model_change: created, changed, unchanged, or "" for what the folder does not hold.
        changes: {key of stream.yaml or model.yaml: (before, after)}; None for a missing value.
        notes: what it means, as sentences.
        learned: what of the model's weights is kept, moved, new and dropped, one sentence each; empty when nothing is.
    """

    stream: Stream | None
    stream_change: str
    model: Model | None
    model_change: str
    changes: Mapping[str, tuple[Any, Any]]
    notes: tuple[str, ...]
    learned: tuple[str, ...] = ()
