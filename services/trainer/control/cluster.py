"""This trainer among others: under which addresses they reach it, and the teams of the rounds that it leads.

The registry is where trainers meet (common/registry/teams.py). The members of a team change no bit of its result, so a
round that loses a trainer, or that others could join, stops, goes back to its resume point and goes on with a new team.
"""

import hashlib
import json
import logging
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.counted import counted, is_or_are
from common.errors import Conflict, HeadraceError, InvalidInput
from common.process.lifecycle import Stop
from common.registry.catalog import Lease
from common.registry.client import RegistryClient
from common.registry.teams import PRESENCE_SECONDS, Offer, TeamState
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Progress
from services.trainer.settings import TrainerSettings
from services.trainer.shards.cluster_spec import ClusterSpec, free_ports

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
_JOBS = ("chief", "worker")
_REFUSED = {
    "ps": "an asynchronous round starts its own parameter servers (training: asynchronous: servers), on the chief's "
    "machine; in other rounds each worker holds the variables. Leave ps out, and let its machines be workers",
    "evaluator": "the chief evaluates, with TRAINER_EVALUATOR=process beside it",
}
logger = logging.getLogger(__name__)
AUTO = "auto"
_GATHER_SECONDS = 60.0
"""How long the tasks of a TF_CONFIG may take to come, all of them."""
_MAX_FRUITLESS = 3


@dataclass(frozen=True)
class Place:
    """Where this trainer stands.

    Attributes:
        host: under which others reach it.
        spec: of the cluster that TF_CONFIG describes; None without one.
    """

    host: str
    spec: ClusterSpec | None = None

    @property
    def leads(self) -> bool:
        """Whether it takes rounds of its own: in a cluster of TF_CONFIG the chief alone does."""
        return self.spec is None or self.spec.is_chief

    @property
    def group(self) -> str:
        return hashlib.sha256(",".join(self.spec.addresses).encode()).hexdigest() if self.spec else ""


def place_of(settings: TrainerSettings) -> Place | None:
    """None: this trainer computes its rounds alone. Raises InvalidInput: TF_CONFIG, by its key."""
    text = os.environ.get("TF_CONFIG", "")
    spec = read_tf_config(text) if text else None
    if spec and len(spec.addresses) > 1:
        if settings.workers > 1:
            raise InvalidInput("TF_CONFIG gives each task one process; TRAINER_WORKERS must be 1 with it")
        if settings.helper_idle_seconds:
            raise InvalidInput("TF_CONFIG names the leader; TRAINER_HELPER_IDLE_SECONDS must be 0 with it")
        return Place(spec.addresses[spec.rank].rpartition(":")[0], spec)
    if not settings.cluster_host:
        return None
    return Place(_own_address(settings.registry_address) if settings.cluster_host == AUTO else settings.cluster_host)


class Cluster:
    """Used by the thread of the lease loop.

    Args:
        code_digest: trainers with other code would compute something else, and are no company.
    """

    def __init__(
        self, settings: TrainerSettings, registry: RegistryClient, place: Place, *, holder: str, code_digest: str
    ) -> None:
        self.leads = place.leads and not settings.helper_idle_seconds
        self._settings, self._registry, self._place = settings, registry, place
        self._holder, self._code_digest = holder, code_digest
        self._fruitless = Counter[str]()  # by round: teams that were lost before they had saved anything
        self._comrades = dict[str, int]()  # by round: trainers that its last team had and that should come back
        self._addresses: tuple[str, ...] = ()

    def offer(self, *, team_id: str = "", is_leaving: bool = False) -> Offer:
        """All processes of this trainer, on the same ports until `renew_ports`."""
        if not self._addresses:
            self._addresses = self._found_addresses()
        spec = self._place.spec
        return Offer(
            self._holder, self._place.group, spec.rank if spec else 0, self._addresses, self._code_digest,
            team_id, is_leaving,
        )  # fmt: skip

    def renew_ports(self) -> None:
        """Servers of a round that has ended may still hold the ports."""
        self._addresses = ()

    def gathered(self, assignment: RoundAssignment, stop: Stop) -> tuple[RoundAssignment, TeamState]:
        """The round with the team that computes it; as it is, where this trainer does alone. Raises Conflict: the lease
        has ended."""
        lease, alone = assignment.lease, (assignment, TeamState())
        most = assignment.most_processes
        if most <= assignment.processes or self._fruitless[lease.round.round_id] >= _MAX_FRUITLESS:
            return alone
        self.renew_ports()
        chief = self._chief(assignment)
        try:
            self._await_others(lease, chief, most, stop)
            team = self._registry.form_team(lease, chief, most=most)
        except Conflict:
            raise
        except HeadraceError as error:
            logger.warning("a round begins without other trainers", extra={"error": error.message})
            return alone
        if not team.team_id:
            return alone
        logger.info("a round is computed together", extra={"trainers": team.members, "workers": len(team.addresses)})
        joined = replace(assignment, addresses=team.addresses, trainers=team.members, team_id=team.team_id)
        return joined if assignment.is_asynchronous else replace(joined, workers=len(team.addresses)), team

    def look_at(self, assignment: RoundAssignment, team: TeamState) -> TeamState:
        """How the team stands now. Raises what the registry's client raises."""
        return self._registry.keep_team(assignment.lease, self._chief(assignment), team)

    def note_ended(self, assignment: RoundAssignment, progress: Progress) -> None:
        """Several trainers did not bring the round to its end; a round that gets nowhere with others goes on alone."""
        round_id = assignment.round.round_id
        self._comrades[round_id] = len(assignment.trainers) - 2  # without this trainer and the lost one
        if not progress.resume_points:
            self._fruitless[round_id] += 1
            if self._fruitless[round_id] == _MAX_FRUITLESS:
                logger.warning("the round goes on without other trainers", extra={"round": round_id})

    def forget(self, round_id: str) -> None:
        self._fruitless.pop(round_id, None)
        self._comrades.pop(round_id, None)

    def _chief(self, assignment: RoundAssignment) -> Offer:
        whole = self.offer()
        return replace(whole, addresses=whole.addresses[: assignment.processes])

    def _await_others(self, lease: Lease, chief: Offer, most: int, stop: Stop) -> None:
        """Until those that are known are free, or for as long as a round waits. A registry that was started again
        may not have heard yet of those that computed the round until now."""
        spec, own = self._place.spec, len(chief.addresses)
        began = time.monotonic()
        wait_seconds = _GATHER_SECONDS if spec else self._settings.cluster_wait_seconds
        renew_at = began + self._settings.lease_ttl_seconds / 3
        while not stop.is_requested():
            found = self._registry.keep_team(lease, chief, TeamState())
            known = max(found.known, self._comrades.get(lease.round.round_id, 0))
            wanted = min(most, len(spec.addresses) if spec else own + known)
            now = time.monotonic()
            if own + found.free >= wanted or now - began > wait_seconds:
                return
            if now > renew_at:
                ttl = self._settings.lease_ttl_seconds
                self._registry.renew_lease(lease, ttl_seconds=ttl, progress=lease.round.progress)
                renew_at = now + ttl / 3
            stop.wait(PRESENCE_SECONDS / 2)

    def _found_addresses(self) -> tuple[str, ...]:
        if self._place.spec:
            return (self._place.spec.addresses[self._place.spec.rank],)
        first, count = self._settings.cluster_port, self._settings.workers
        ports = range(first, first + count) if first else free_ports(count)
        return tuple(f"{self._place.host}:{port}" for port in ports)


def _own_address(registry_address: str) -> str:
    """Of this machine, on the way to the registry. Raises InvalidInput."""
    host, _, port = registry_address.rpartition(":")
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            found = str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"TRAINER_CLUSTER_HOST is auto, and no way to {registry_address} is found: {error}"
        ) from error
    return f"[{found}]" if ":" in found else found


class TeamWatch:
    """The other trainers of a round, while its attempt runs."""

    def __init__(self, cluster: Cluster, team: TeamState, *, regroup_seconds: float) -> None:
        self._cluster, self._team, self._regroup_seconds = cluster, team, regroup_seconds
        self._look_at = 0.0

    def look(self, assignment: RoundAssignment, progress: Progress, seconds: float) -> tuple[str, str]:
        """Why the team cannot go on, and why it should be another; "" for neither. Called often."""
        if time.monotonic() < self._look_at:
            return "", ""
        self._look_at = time.monotonic() + PRESENCE_SECONDS
        try:
            found = self._cluster.look_at(assignment, self._team)
        except HeadraceError as error:  # a lease that has ended is seen at its renewal
            logger.debug("the team is not known", extra={"error": error.message})
            return "", ""
        leaves = found.is_leaving and not assignment.is_asynchronous  # whose workers go without being released
        change = f"trainer {found.is_leaving} leaves" if leaves else ""
        together = assignment.workers
        if assignment.is_asynchronous:
            elsewhere = progress.asynchronous.get("workers_elsewhere")
            together = assignment.processes + (elsewhere if isinstance(elsewhere, int) else 0)
        can_join = found.free > 0 and together < assignment.most_processes
        if can_join and progress.stage == "train" and seconds > self._regroup_seconds:
            change = change or f"{counted(found.free, 'process')} of other trainers {is_or_are(found.free)} free"
        return found.lost, change


def read_tf_config(text: str) -> ClusterSpec:
    """TF_CONFIG, as TensorFlow's guide to distributed training, Kubeflow and Vertex AI write it:

    {"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}; without a chief the first
    worker is the chief. Raises InvalidInput: which key, what it holds, what was expected.
    """
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"TF_CONFIG is not JSON: {error}") from error
    whole = _mapping(whole, "TF_CONFIG", ("cluster", "task"), optional=("environment", "rpc_layer"))
    if whole.get("rpc_layer", "grpc") not in ("", "grpc"):
        raise InvalidInput(f"TF_CONFIG: rpc_layer is {whole['rpc_layer']!r}, expected grpc")
    cluster = _mapping(whole["cluster"], "TF_CONFIG: cluster", (), optional=(*_JOBS, *_REFUSED))
    for job, reason in _REFUSED.items():
        if cluster.get(job):
            raise InvalidInput(f"TF_CONFIG: cluster names {job} tasks: {reason}")
    chiefs, workers = (_addresses(cluster.get(job, []), f"TF_CONFIG: cluster: {job}") for job in _JOBS)
    if len(chiefs) > 1:
        raise InvalidInput(f"TF_CONFIG: cluster: chief lists {len(chiefs)} addresses, expected one")
    addresses = (*chiefs, *workers)
    if not addresses:
        raise InvalidInput("TF_CONFIG: cluster lists no worker")
    if len(set(addresses)) != len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        raise InvalidInput(f"TF_CONFIG: cluster lists {twice} twice")
    task = _mapping(whole["task"], "TF_CONFIG: task", ("type", "index"), optional=("trial", "cloud"))
    kind, index = task["type"], task["index"]
    if kind not in _JOBS:
        reason = f": {_REFUSED[kind]}" if isinstance(kind, str) and kind in _REFUSED else ""
        raise InvalidInput(f"TF_CONFIG: task: type is {kind!r}, expected chief or worker{reason}")
    members = chiefs if kind == "chief" else workers
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(members):
        raise InvalidInput(
            f"TF_CONFIG: task: index is {index!r}, and cluster lists {len(members)} {kind} addresses; expected "
            f"{f'0 to {len(members) - 1}' if members else f'another type than {kind}'}"
        )
    return ClusterSpec(addresses, index + (len(chiefs) if kind == "worker" else 0))


def _mapping(value: object, place: str, needed: tuple[str, ...], *, optional: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{place} must be a mapping, got {value!r}")
    for key in needed:
        if key not in value:
            raise InvalidInput(f"{place} lacks {key}")
    unknown = sorted(set(value) - {*needed, *optional})
    if unknown:
        known = ", ".join((*needed, *optional))
        raise InvalidInput(f"{place} has {', '.join(map(repr, unknown))}; known: {known}")
    return value


def _addresses(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidInput(f"{place} must be a list of addresses, got {value!r}")
    for address in value:
        found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if not found or not 0 < int(found[2]) < 65_536:
            raise InvalidInput(f"{place} has {address!r}, expected host:port")
    return tuple(value)
