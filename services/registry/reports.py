"""Instances of services by their own reports, and the state of served versions that follows.

In memory: an instance that falls silent is forgotten, and after a restart the next reports fill it again.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from common.counted import counted
from common.errors import Overloaded
from common.registry.catalog import PRODUCTION, JsonMap, Model
from common.registry.reporting import COLD, Report, Served

NEXT_SECONDS = 2.5
SILENT_SECONDS = 15.0
_SETTLING_SECONDS = 3.0
"""A report this long after a move of an alias knows of it: reports come every NEXT_SECONDS."""
MAX_INSTANCES = 1000
MAX_ENTRIES = 100_000
"""Versions, parts and models of all reports: pages look at each of them."""


@dataclass(frozen=True)
class Instance:
    report: Report
    reported_at: float
    peer: str = ""
    """The machine that it came from."""

    @property
    def entries(self) -> int:
        return len(self.report.serves) + len(self.report.parts) + len(self.report.models)

    def to_mapping(self, now: float) -> dict[str, Any]:
        """As GET /v1/instances shows it."""
        report = self.report
        return {
            "instance_id": report.instance_id,
            "service": report.service,
            "address": report.address,
            "started_at": report.started_at,
            "reported_at": self.reported_at,
            "age_seconds": round(max(0.0, now - self.reported_at), 3),
            **report.body(),
        }


@dataclass(frozen=True)
class Serving:
    """The replicas' state of the version that production names."""

    version: int
    moved_at: float
    """When production moved to it."""
    replicas: tuple[str, ...]
    """Instances that serve any version of the model."""
    available: tuple[str, ...]
    failed: Mapping[str, str]
    """{instance: reason} of those that have given the version up."""
    converged_at: float | None
    """The time since which every replica answers with it; None while a replica does not."""


class Reports:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._instances: dict[str, Instance] = {}

    def take(self, report: Report, peer: str = "") -> Instance:
        """Replaces the instance's last report. Past the limit, the machine with most instances loses its largest.
        Raises Overloaded: the instance is itself of that machine."""
        now = self._clock()
        instance = Instance(report, now, peer)
        with self._lock:
            self._forget_silent(now)
            others = {name: other for name, other in self._instances.items() if name != report.instance_id}
            entries = instance.entries + sum(other.entries for other in others.values())
            while len(others) >= MAX_INSTANCES or entries > MAX_ENTRIES:
                name = _surplus(others, instance)
                entries -= others.pop(name).entries
            self._instances = others | {report.instance_id: instance}
        return instance

    def instances(self) -> list[Instance]:
        """Those that are not silent, by service and name."""
        with self._lock:
            self._forget_silent(self._clock())
            found = list(self._instances.values())
        return sorted(found, key=lambda instance: (instance.report.service, instance.report.instance_id))

    def served(self, model: str) -> list[tuple[Instance, Served]]:
        """Every version of the model on every replica."""
        found = [(instance, served) for instance in self.instances() for served in instance.report.serves]
        return [(instance, served) for instance, served in found if served.model == model]

    def serving(self, model: str, version: int, *, moved_at: float) -> Serving:
        """How replicas stand with the version that production names since `moved_at`."""
        found = self.served(model)
        replicas = sorted({instance.report.instance_id for instance, _ in found})
        ours = [(instance, served) for instance, served in found if served.version == version]
        available = {
            i.report.instance_id: s.since
            for i, s in ours
            if s.state == COLD or (s.state == "AVAILABLE" and PRODUCTION in s.aliases)
        }
        failed = {i.report.instance_id: s.reason for i, s in ours if s.given_up and s.reason}
        everywhere = bool(replicas) and set(available) == set(replicas)
        converged_at = max((moved_at, *available.values())) if everywhere else None
        return Serving(version, moved_at, tuple(replicas), tuple(sorted(available)), failed, converged_at)

    def unloadable(self, model: Model, *, moved_at: float) -> dict[str, str]:
        """{instance: reason} when every replica of the model has given up production's version and none serves it."""
        version = model.aliases.get(PRODUCTION, 0)
        found = self.served(model.name)
        if not version or not found:
            return {}
        by_replica: dict[str, Served | None] = {instance.report.instance_id: None for instance, _ in found}
        for instance, served in found:
            knows = instance.reported_at > moved_at + _SETTLING_SECONDS
            if served.version == version and served.given_up and served.reason and knows:
                by_replica[instance.report.instance_id] = served
        if not all(by_replica.values()):
            return {}
        return {name: served.reason for name, served in by_replica.items() if served is not None}

    def counted(self, model: str) -> JsonMap | None:
        """A trainer's counts of the log for the model; None while none reports any.

        Of several trainers the furthest in the log: another's report may come later with an older count.
        """
        reporting = [instance for instance in self.instances() if model in instance.report.models]
        furthest = max(
            reporting, key=lambda instance: (_seen(instance.report.models[model]), instance.reported_at), default=None
        )
        return furthest.report.models[model] if furthest is not None else None

    def log_start(self, model: str) -> dict[int, int] | None:
        """{partition: offset} where the log of the model's stream begins; None while no trainer reports it."""
        offsets = (self.counted(model) or {}).get("log_start")
        return {int(partition): int(offset) for partition, offset in offsets.items()} if offsets is not None else None

    def users_of(self, model: str) -> list[str]:
        """Sentences about the replicas that still hold versions of the model."""
        held: dict[str, list[int]] = {}
        for instance, served in self.served(model):
            if served.state in ("START", "LOADING", "AVAILABLE", "UNLOADING"):
                held.setdefault(instance.report.instance_id, []).append(served.version)
        return [f"replica {name} has version {', '.join(map(str, sorted(v)))}" for name, v in sorted(held.items())]

    def _forget_silent(self, now: float) -> None:
        silent = [name for name, instance in self._instances.items() if now - instance.reported_at > SILENT_SECONDS]
        for name in silent:
            del self._instances[name]


def _surplus(others: Mapping[str, Instance], newcomer: Instance) -> str:
    """The largest report of the machine with the largest. Raises Overloaded where that is the newcomer's."""
    by_peer: dict[str, int] = {}
    for instance in (newcomer, *others.values()):
        by_peer[instance.peer] = by_peer.get(instance.peer, 0) + MAX_ENTRIES // MAX_INSTANCES + instance.entries
    peer = max(by_peer, key=lambda name: by_peer[name])
    if peer == newcomer.peer:
        entries = counted(sum(instance.entries for instance in others.values()), "entry")
        raise Overloaded(
            f"{len(others)} instances report already, with {entries} of versions and parts, most of them from the "
            f"machine of {newcomer.report.instance_id}; expected at most {MAX_INSTANCES} and {MAX_ENTRIES}"
        )
    return max((name for name in others if others[name].peer == peer), key=lambda name: others[name].entries)


def _seen(counted_log: JsonMap) -> int:
    return sum(counted_log.get("log_end", {}).values())
