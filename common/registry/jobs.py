"""Jobs: work beside rounds, which any free trainer takes."""

from dataclasses import dataclass, field
from enum import StrEnum

from common.errors import InvalidInput
from common.registry.catalog import FileEntry, JsonMap


class JobKind(StrEnum):
    REBUILD = "rebuild"
    """Train the version again from its lineage and compare."""
    PROFILE = "profile"
    """Trace steps of the model's next round: options {"first_step", "steps"}."""
    MEASURE = "measure"
    """Measure a SavedModel made elsewhere beside the live version: options {"files": [{path, size_bytes, digest}]}."""


class JobState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """No result came out; `told` has the reason."""


@dataclass(frozen=True)
class Job:
    """One wish, from when it was asked for until it is forgotten.

    Attributes:
        version: 0 where it concerns none yet.
        attempts: how often a trainer has taken it; what tells one holding from the next.
        told: while it runs its progress, then its outcome; always {"reason"} where it failed.
        asked_at, ended_at: epoch seconds; 0 while it has not ended.
    """

    job_id: str
    kind: JobKind
    model: str
    version: int
    by: str
    reason: str
    asked_at: float
    state: JobState = JobState.WAITING
    options: JsonMap = field(default_factory=dict)
    holder: str = ""
    attempts: int = 0
    told: JsonMap = field(default_factory=dict)
    ended_at: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.state in (JobState.WAITING, JobState.RUNNING)


def measured_files(options: JsonMap) -> tuple[FileEntry, ...]:
    """What a job to measure names; none in those of other jobs. Raises InvalidInput when they are no files."""
    entries = options.get("files", [])
    try:
        files = tuple(FileEntry(**entry) for entry in entries)
    except TypeError as error:
        raise InvalidInput(f"files are to be a list of path, size_bytes and digest: {error}") from error
    for file in files:
        if [type(value) for value in (file.path, file.size_bytes, file.digest)] != [str, int, str]:
            raise InvalidInput(f"a file is a path, its size_bytes and a digest, got {str(file)[:200]}")
    return files
