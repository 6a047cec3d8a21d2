"""A replica whose files are there at once and whose runners do what a test says."""

import select
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.serving.options.model_options import ModelOptions
from services.serving.replica.loads import ReplicaActions, ReplicaLimits
from services.serving.replica.on_demand import OnDemand
from services.serving.replica.replica import Replica
from services.serving.replica.version_slot import VersionSlot
from services.serving.replica.versions_wanted import Wanted
from services.serving.wire.channel import JsonChannel
from services.serving.wire.replica_state import ServingState

_READY = {
    "event": "ready", "signatures": {}, "engine": "session", "notes": [], "load_priority": "normal",
    "load_seconds": 0.1, "engine_reasons": {},
}  # fmt: skip


class Played:
    """Serves m from folders, unless a test wants other models, of other versions. A runner has the version for which it
    was forked as its pid.

    `programs`: by version, for those that are not by themselves.
    """

    def __init__(
        self, limits: ReplicaLimits, programs: Mapping[int, str] | None = None, on_demand: OnDemand | None = None
    ) -> None:
        self.forked: list[int] = []
        self.killed: list[int] = []
        self.hurried: list[int] = []
        self.programs = programs or {}
        self._ends: dict[int, list[socket.socket]] = {}
        self.replica = Replica(
            limits,
            ReplicaActions(
                fetch=lambda model, version: None,
                fork=self._fork,
                admit=lambda slot, directory, beside: self._fork(slot, directory),
                kill=self.killed.append,
                hurry=self.hurried.append,
                recover=lambda model, targets, runner_id: None,
                unloaded=lambda model, version: None,
            ),
            on_demand,
        )

    def _fork(self, slot: VersionSlot, directory: Path) -> JsonChannel:
        self.forked.append(slot.version)
        ends = self._ends.setdefault(slot.version, [])
        ends[:0] = socket.socketpair()
        return JsonChannel(ends[0])

    def close(self) -> None:
        for ends in self._ends.values():
            for end in ends:
                end.close()

    def want(self, *versions: int, **labels: int) -> None:
        self.replica.on_wanted(Wanted({"m": labels}, versions={"m": versions}))
        self.fetch()

    def promote(self, version: int) -> None:
        """A registry says that production is this version; its files are on their way."""
        self.replica.on_wanted(Wanted({"m": {"production": version}}))

    def fetch(self) -> None:
        """The files of every version that is being fetched are there, and runners that were forked have begun."""
        for slot in self.replica.slots():
            if slot.is_fetching:
                program = self.programs.get(slot.version, "")
                self.replica.on_fetched(slot.model, slot.version, Path("nowhere"), ModelOptions(), program=program)
        for version in self.forked:
            runner = self.slot(version).runner
            if runner is not None and not runner.pid:
                self.replica.on_forked(self.slot(version).model, version, version)

    def slot(self, version: int) -> VersionSlot:
        return next(slot for slot in self.replica.slots() if slot.version == version)

    def say(self, version: int, event: str, **fields: Any) -> None:
        """The version's runner says something of it."""
        runner = self.slot(version).runner
        assert runner is not None
        message = _READY if event == "ready" else {"event": event}
        self.replica.on_runner_message(runner, message | {"version": version} | fields)

    def load(self, version: int, **fields: Any) -> None:
        """Its runner is warm, and everybody reads what he was told to."""
        self.say(version, "ready", runner_id=f"r/m/{version}", **fields)
        self.obey()

    def obey(self) -> None:
        """All runners read what they were told to, until nothing changes any more."""
        before: object = None
        while before != (before := [slot.targets_read() for slot in self.replica.slots()]):
            for runner in self.replica.runners():
                self.replica.on_runner_message(runner, {"event": "serving", "targets": runner.assigned})

    def told(self, pid: int) -> list[dict[str, Any]]:
        """What the runner was told and has not read yet, but for the queues to read."""
        end = self._ends[pid][1]
        if not select.select([end], [], [], 0)[0]:
            return []
        return [message for message in JsonChannel(end).receive() if "targets" not in message]

    def has_read(self, version: int, *targets: str) -> None:
        """The version's runner says that it reads these queues."""
        self.say(version, "serving", targets=dict.fromkeys(targets, version))

    def reads(self, version: int) -> set[str]:
        return set(self.slot(version).targets_read())

    def states(self) -> dict[int, ServingState]:
        return {slot.version: slot.state for slot in self.replica.slots()}


@contextmanager
def playing() -> Iterator[Callable[..., Played]]:
    """What makes such replicas, with the limits given."""
    played: list[Played] = []

    def begin(
        *,
        parallel_loads: int = 9,
        parallel_unloads: int = 0,
        load_attempts: int = 1,
        retry: float | None = None,
        models_per_runner: int = 1,
        programs: Mapping[int, str] | None = None,
        memory_bytes: int = 0,
        idle_load: float = 100.0,
    ) -> Played:
        limits = ReplicaLimits(
            parallel_loads=parallel_loads, load_timeout_seconds=100.0, load_attempts=load_attempts,
            idle_load_seconds=idle_load, run_timeout_seconds=100.0, parallel_unloads=parallel_unloads,
            load_retry_seconds=retry, models_per_runner=models_per_runner,
        )  # fmt: skip
        on_demand = OnDemand(memory_bytes, {}, models_per_runner=models_per_runner) if memory_bytes else None
        played.append(Played(limits, programs, on_demand))
        return played[-1]

    yield begin
    for item in played:
        item.close()
