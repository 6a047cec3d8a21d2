"""Follows a model from outside: its rounds, its versions, and when each replica began to serve which."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.errors import Unavailable
from common.registry.catalog import Decision, Model, Round, RoundState, Version
from headrace.client.platform import Client


@dataclass(frozen=True)
class Load:
    """One version on one replica: when its runner began to load and when it began to answer, epoch seconds."""

    replica: int
    version: int
    began_at: float
    available_at: float


@dataclass
class Seen:
    """What is known by now; look() brings it up to date."""

    model: Model | None = None
    versions: list[Version] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    loads: dict[tuple[int, int], Load] = field(default_factory=dict)
    progress: Mapping[str, Any] = field(default_factory=dict)
    """Of the round that a trainer is at: stage, examples_done."""

    @property
    def open_round(self) -> Round | None:
        return next((r for r in self.rounds if r.state in (RoundState.PLANNED, RoundState.RUNNING)), None)

    def round_of(self, version: Version) -> Round | None:
        return next((found for found in self.rounds if found.round_id == version.round_id), None)

    def is_promoted(self, version: Version) -> bool:
        return version.verdict.decision == Decision.PROMOTE

    def chain(self) -> list[Version]:
        """The newest judged version and its parents, oldest first: together they cover the stream once."""
        by_number = {version.version: version for version in self.versions}
        chain: list[Version] = []
        number = max(by_number, default=0)
        while number:
            chain.append(by_number[number])
            number = by_number[number].parent_version
        return chain[::-1]

    def covers(self, position: Mapping[int, int]) -> bool:
        """Whether every event before the position is in the range of a judged version."""
        chain = self.chain()
        if not chain:
            return False
        end = chain[-1].end_position
        return all(end.get(partition, 0) >= offset for partition, offset in position.items())

    def served_at(self, version: Version, replica_count: int) -> float | None:
        """When every replica served the version or a later version; None while a replica does not."""
        moments = [self._served_by(replica, version.version) for replica in range(replica_count)]
        known = [moment for moment in moments if moment is not None]
        return max(known) if known and len(known) == len(moments) else None

    def _served_by(self, replica: int, version: int) -> float | None:
        moments = [
            load.available_at for load in self.loads.values() if load.replica == replica and load.version >= version
        ]
        return min(moments, default=None)


class Watcher:
    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model
        self.seen = Seen()

    def look(self) -> Seen:
        """Asks the registry, the trainer and every replica. A trainer or replica that is away is asked
        again next time."""
        seen = self.seen
        seen.model = self._client.model(self._model)
        rounds = {found.round_id: found for found in (*seen.rounds, *self._client.rounds(self._model))}
        seen.rounds = sorted(rounds.values(), key=lambda found: found.planned_at, reverse=True)
        known = seen.versions[-1].version if seen.versions else 0
        for number in range(known + 1, seen.model.newest_version + 1):  # each alone: there is one a second
            seen.versions.append(self._client.version(self._model, number))
        try:
            seen.progress = (self._client.trainer_status().get("attempt") or {}).get("progress") or {}
            states = self._client.replica_states()
        except Unavailable:
            return seen
        for replica, state in enumerate(states):
            self._note_replica(replica, state.get("versions", ()))
        return seen

    def _note_replica(self, replica: int, versions: Sequence[Mapping[str, Any]]) -> None:
        for item in versions:
            available_at = float(item.get("available_at") or 0.0)
            if item["model"] != self._model or available_at == 0.0:
                continue
            number = int(item["version"])
            load_seconds = float(item.get("load_seconds") or 0.0)
            self.seen.loads.setdefault(
                (replica, number), Load(replica, number, available_at - load_seconds, available_at)
            )
