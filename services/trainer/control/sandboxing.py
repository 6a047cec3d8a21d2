"""The limits of a round: its own folders, its stream's part of the log, and the settings' additions."""

import ipaddress
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from common.errors import HeadraceError, InvalidInput, Unavailable
from common.eventlog.kafka_security import kafka_of
from common.eventlog.open import brokers_of
from common.eventlog.topics import examples_topic, labels_topic, predictions_topic
from common.process.gpu import has_gpu
from common.registry.catalog import RoundPlan
from common.registry.client import RegistryClient
from common.registry.plan_notes import LABELS, SKEW
from common.schema import Schema
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.sandbox.rules import OFF, REQUIRE, SandboxRules, scrubbed
from services.trainer.settings import TrainerSettings

_SEGMENTS, _KAFKA = "segments:", "kafka:"
_OPEN_FILES = 16_384
_PROCESSES, _PROCESSES_A_CORE = 4096, 64
"""Threads count, and TensorFlow's collective operations take hundreds."""
_BROKERS_LAST_SECONDS = 60.0
Confining = Callable[[RoundAssignment], RoundAssignment]
"""Gives an assignment its rules. Raises Unavailable: the registry, which knows the stream, is away."""


def check_machine(mode: str, found: Sequence[str]) -> Sequence[str]:
    """The limits that are not set under the mode, a sentence each; `found`: those that this machine cannot set. Raises
    InvalidInput: the mode requires all of them."""
    if mode == OFF:
        return ["anything: TRAINER_SANDBOX is off"]
    if found and mode == REQUIRE:
        raise InvalidInput(f"TRAINER_SANDBOX is require, and this machine cannot confine {'; '.join(found)}")
    return found


def environment_of(settings: TrainerSettings) -> dict[str, str]:
    """The environment variables of rounds' processes."""
    if settings.sandbox == OFF:
        return dict(os.environ)
    return scrubbed(os.environ, frozenset(_words(settings.sandbox_environment)))


def confining(
    settings: TrainerSettings, registry: RegistryClient, brokers_at: Callable[[str], Sequence[str]] = brokers_of
) -> Confining:
    if settings.sandbox == OFF:
        return lambda assignment: assignment
    brokers = _Brokers(brokers_at)
    base = SandboxRules(
        mode=settings.sandbox,
        read=(
            *_words(settings.sandbox_read, ":"),
            *(os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)),
        ),
        processes=settings.sandbox_processes or _PROCESSES + _PROCESSES_A_CORE * (os.cpu_count() or 1),
        memory_mib=settings.sandbox_memory_mib,
        file_mib=settings.sandbox_file_mib,
        open_files=_OPEN_FILES,
        has_gpu=has_gpu(),
    )  # fmt: skip

    def confined(assignment: RoundAssignment) -> RoundAssignment:
        try:
            return replace(assignment, sandbox=_with_log(base, assignment, settings, registry, brokers))
        except Unavailable:
            raise
        except HeadraceError as error:
            raise Unavailable(f"the places that the round may reach are not known: {error.message}") from error

    return confined


@dataclass
class _Brokers:
    """Of each Kafka, by its URL."""

    read: Callable[[str], Sequence[str]]
    known: dict[str, tuple[float, Sequence[str]]] = field(default_factory=dict)

    def of(self, url: str) -> Sequence[str]:
        read_at, found = self.known.get(url, (-_BROKERS_LAST_SECONDS, ()))
        if time.monotonic() >= read_at + _BROKERS_LAST_SECONDS:
            found = self.read(url)
            self.known[url] = time.monotonic(), found
        return found


def _with_log(
    base: SandboxRules,
    assignment: RoundAssignment,
    settings: TrainerSettings,
    registry: RegistryClient,
    brokers: _Brokers,
) -> SandboxRules:
    plan, work_dir = assignment.plan, Path(assignment.work_dir)
    cache_dir = Path(assignment.cache_dir) / plan.model
    cache_dir.mkdir(parents=True, exist_ok=True)
    write = [str(work_dir.parent if assignment.may_stay else work_dir), str(cache_dir)]
    servers, read = list[str](), list(base.read)
    stream = registry.get_stream(plan.stream, schema_version=plan.schema_version)
    source = Schema.from_json(stream.schema_json).source
    if assignment.event_log.startswith(_SEGMENTS):
        folder = Path(assignment.event_log.removeprefix(_SEGMENTS).partition("?")[0])
        beside = {LABELS: labels_topic(stream.log_name), SKEW: predictions_topic(plan.model)}
        topics = [examples_topic(stream.log_name), *(beside[kind] for kind in read_beside(plan))]
        read += [str(folder / topic) for topic in topics]
    else:
        known, security = kafka_of(assignment.event_log.removeprefix(_KAFKA))
        servers, read = [*servers, *known, *brokers.of(assignment.event_log)], read + security.files()
    if source and source.servers:
        servers += [*source.servers.split(","), *brokers.of(f"{_KAFKA}{source.servers}")]
    if source:
        servers.append(_server_of(str(source.options.get("schema_registry", ""))))
    servers = [server.strip() for server in servers if server.strip()]
    alone = assignment.workers == 1 and not assignment.addresses and not assignment.is_asynchronous
    ports = {int(server.rpartition(":")[2]) for server in servers} | set(map(int, _words(settings.sandbox_ports)))
    return replace(
        base, write=tuple(write), read=tuple(read), ports=tuple(sorted(ports)) if alone else None,
        resolves_names=not all(map(_is_address, servers)),
        has_gpu=base.has_gpu and alone,  # processes that it forks could not name their threads, and would take the CPU
    )  # fmt: skip


def read_beside(plan: RoundPlan) -> tuple[str, ...]:
    """Which topics a round reads beside its events, as keys of the plan. A process that stays has the rules of its
    first round, so it takes none that reads others."""
    joins = plan.configuration.get(LABELS, {}).get("labels")
    return (*([LABELS] if joins else []), *([SKEW] if SKEW in plan.configuration else []))


def _server_of(url: str) -> str:
    """host:port, also where the URL leaves the port to its scheme; "" of ""."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}" if parts.hostname else ""


def _is_address(server: str) -> bool:
    try:
        ipaddress.ip_address(server.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return True


def _words(text: str, separator: str = ",") -> Sequence[str]:
    return [word.strip() for word in text.split(separator) if word.strip()]
