"""The history of a run under faults: what was done and heard at the platform's doors, one JSON object per line.

An entry's `kind` is its class's name. `at` and `until` are epoch seconds: when it began and when it was over. The
checker (checker.py) needs nothing but these entries, so a kept history can be judged again.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import orjson

Outcome = Literal["acknowledged", "refused", "in doubt"]
PredictionOutcome = Literal["answered", "refused", "broken", "silent"]
TIME_LIMIT = "the time limit"


@dataclass(frozen=True)
class Run:
    at: float
    mode: str
    seed: int
    machine: str
    load: str


@dataclass(frozen=True)
class Spell:
    at: float
    until: float


@dataclass(frozen=True)
class Append(Spell):
    """One try at sending one request. A retry is another entry with the same key and events.

    Attributes:
        first_event, end_event: the request's events have these ids, the second one not included.
        outcome: refused means a definite no (400, 404, 409, 429); in doubt is everything after which a client has to
            ask again (503, a broken connection, silence).
    """

    key: str
    first_event: int
    end_event: int
    outcome: Outcome
    detail: str = ""
    accepted: int = 0
    duplicate: bool = False


@dataclass(frozen=True)
class Prediction(Spell):
    """What came of one prediction; two entries of one id are two answers.

    Attributes:
        asked_version: 0 asks for the live one.
        inputs: [a, b] of each instance.
        outcome: refused by an error answer; broken: the connection ended without one; silent: nothing came.
        version, outputs: of an answer; outputs are the probabilities.
    """

    id: int
    door: str
    deadline_seconds: float
    asked_version: int
    inputs: Sequence[Sequence[float]]
    outcome: PredictionOutcome
    detail: str = ""
    version: int = 0
    outputs: Sequence[float] = ()


@dataclass(frozen=True)
class Fault(Spell):
    """`until`: when it was lifted; that of a kill is the kill's own moment."""

    number: int
    what: str
    target: str


@dataclass(frozen=True)
class EndedEarly:
    """No further fault was tried; `left_count` were still to come.

    Attributes:
        signal_name: what asked for it: a signal, or TIME_LIMIT where the run had been given one.
    """

    at: float
    signal_name: str
    left_count: int

    @property
    def was_planned(self) -> bool:
        return self.signal_name == TIME_LIMIT


@dataclass(frozen=True)
class Stall(Spell):
    """The machine itself stood still, or had no time for the suite: nothing can be said of how long things took."""


@dataclass(frozen=True)
class Recovery:
    """Seconds from the lifting of a fault until the first success that began after it; None: not within the bound.

    Attributes:
        acknowledged_seconds: a request of events.
        answered_seconds: a prediction, at every door.
        learned_seconds: a version was registered.
    """

    at: float
    number: int
    acknowledged_seconds: float | None
    answered_seconds: float | None
    learned_seconds: float | None

    @property
    def seconds(self) -> float | None:
        parts = (self.acknowledged_seconds, self.answered_seconds, self.learned_seconds)
        found = [part for part in parts if part is not None]
        return max(found) if len(found) == len(parts) else None


@dataclass(frozen=True)
class VersionSeen:
    """A version as the registry showed it, with every file fetched and hashed.

    Attributes:
        files: {path: SHA-256}.
        faults: what was missing or different from what the version says of it.
    """

    at: float
    version: int
    files: Mapping[str, str]
    faults: Sequence[str] = ()


@dataclass(frozen=True)
class AliasSeen(Spell):
    """Production as the registry showed it to a question that was put at `at` and answered at `until`; 0: none."""

    production: int


@dataclass(frozen=True)
class AccountSeen(Spell):
    """The model's account as the registry showed it. Numbers are examples; None: not known then.

    Attributes:
        is_last: read when all was over, so that it must name every event of the log.
        left_out_ranges: (partition, from, to) of each entry under `left_out`.
        problems: what the account says does not add up.
    """

    head_version: int
    total: int | None
    trained: int
    held_out: int
    unusable: int
    left_out: int
    waiting: int | None
    left_out_ranges: Sequence[Sequence[int]] = ()
    problems: Sequence[str] = ()
    is_last: bool = False


@dataclass(frozen=True)
class EvidenceSeen(Spell):
    """The model's live quality as the registry showed it.

    Attributes:
        revision: how often a trainer has handed in evidence.
        labelled: predictions with their label, as counted.
        samples: by "version V against W", on how many examples the judge has compared them.
        tracks: by "version V as ALIAS", how many of its answers had their label.
    """

    revision: int
    labelled: int
    samples: Mapping[str, int]
    tracks: Mapping[str, int]


@dataclass(frozen=True)
class Labelled:
    """A request of keyed predictions whose labels were sent, whatever was heard; no key is used twice.

    Attributes:
        is_after: sent when all faults were over, answered and acknowledged.
    """

    at: float
    keys: int
    is_after: bool = False


@dataclass(frozen=True)
class CanarySeen(Spell):
    """As the registry showed it to replicas; version 0: there was none."""

    version: int = 0
    stage: int = 0
    share: float = 0.0
    verdict: str = ""


@dataclass(frozen=True)
class KeyedAnswer(Spell):
    """To a request with prediction keys; `key` is the first of them."""

    key: str
    version: int


@dataclass(frozen=True)
class CanaryMove:
    """Of the alias canary, as its history has it; to 0: it was taken away."""

    at: float
    from_version: int
    to_version: int


@dataclass(frozen=True)
class StageDecided:
    """That the judge decided about a stage, as the audit log has it."""

    at: float
    version: int
    stage: int
    decision: str


@dataclass(frozen=True)
class LogRecord:
    """A record of the event log, read when all was over, with the ids of its events."""

    partition: int
    offset: int
    events: Sequence[int]


@dataclass(frozen=True)
class VersionRecord:
    """A version in the catalog when all was over. Ranges are (partition, from, to); end is {partition: offset}.

    `left_out` are the ranges that its round's plan says are not learned: what was judged, or rolled back, and fills
    max_round_examples by itself.
    """

    version: int
    parent: int
    ranges: Sequence[Sequence[int]]
    end: Mapping[str, int]
    trained: int
    held_out: int
    unusable: int
    weights_digest: str
    status: str
    created_at: float
    left_out: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class AliasMove:
    """An entry of production's history in the registry."""

    at: float
    from_version: int
    to_version: int
    by: str
    reason: str = ""


@dataclass(frozen=True)
class Undo(Spell):
    """A rollback by the operator, asked for once; its reason is its own."""

    reason: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Rebuild:
    """What came of `headrace rebuild`; an error when it could not be done."""

    version: int
    weights_digest: str
    error: str = ""


@dataclass(frozen=True)
class Expected:
    """What the named version's own SavedModel says of a prediction's inputs."""

    id: int
    version: int
    outputs: Sequence[float]


Entry = (
    Run
    | Append
    | Prediction
    | Fault
    | EndedEarly
    | Stall
    | Recovery
    | VersionSeen
    | AliasSeen
    | AccountSeen
    | EvidenceSeen
    | Labelled
    | CanarySeen
    | KeyedAnswer
    | CanaryMove
    | StageDecided
    | LogRecord
    | VersionRecord
    | AliasMove
    | Undo
    | Rebuild
    | Expected
)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Entry)}
E_ = TypeVar("E_")


class Recorder:
    """Writes a history; any thread may add to it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("wb")
        self._lock = threading.Lock()

    def add(self, *entries: Entry) -> None:
        lines = b"".join(orjson.dumps({"kind": type(entry).__name__, **asdict(entry)}) + b"\n" for entry in entries)
        with self._lock:
            self._file.write(lines)
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_history(path: Path) -> list[Entry]:
    """Raises ValueError for a line that is no entry."""
    entries: list[Entry] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            document = orjson.loads(line)
            try:
                entries.append(_KINDS[document.pop("kind")](**document))
            except (KeyError, TypeError) as error:
                raise ValueError(f"line {number} of {path} is no entry of a history: {error}") from error
    return entries


def of_kind(history: Iterable[Entry], kind: type[E_]) -> Iterator[E_]:
    """The entries of one class, in order."""
    return (entry for entry in history if isinstance(entry, kind))
