"""The trusted half of a round: calls that take the registry and the trainer's credentials, done here for a process that
has neither. Its calls (services/trainer/protocol/calls.py) can come from authors' code as well.

Its process reads the plan's files and ends its round. The files of a version are looked at here, their digests are
taken here, and the gate comes from the definition; metrics are compared with those of a second process, which has the
version's export and no code of its author's (stated_metrics.py).
"""

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from google.protobuf.message import DecodeError, Message

from common.definition.model import Definition, parse_definition
from common.errors import InvalidInput, Overloaded, PermissionDenied
from common.eventlog.sourced_log import SourcedLog
from common.facts import present
from common.json_values import value_of
from common.registry import wire
from common.registry.catalog import FileEntry, JsonMap, RoundPlan, Version, VersionDraft
from common.registry.client import RegistryClient
from common.registry.patches import SMALLEST_FILE_BYTES
from common.registry.plan_notes import PUSHED
from common.registry.scored_outside import SCORED_OUTSIDE
from protos import registry_pb2 as pb
from services.trainer.control import signing, stated_metrics
from services.trainer.control.dead_letters import RoundLetters
from services.trainer.control.handed_in import manifest_of
from services.trainer.control.score_request import ScoreRequest
from services.trainer.control.signing import VersionSigner
from services.trainer.data.divided_log import open_round_log
from services.trainer.protocol import calls
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.calls import OUTPUT, RESUME
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
MOST_CALLS = 64
"""Answered at once."""
_MOST_BYTES = 64 * 1024 * 1024
"""Of the calls that are being answered, together."""
_MOST_FACTS_BYTES = 4 * 1024 * 1024
"""Of a version, with the names of 10,000 files: the registry reads them for each list of versions."""
_KNOWN_DEFINITIONS = 256
OpenRegistry = Callable[[str], RegistryClient]
"""By the traceparent of the calls; "" where they are not traced."""


@dataclass(frozen=True)
class Means:
    """The trainer's means for the trusted halves of all rounds.

    Attributes:
        definition_of: by its digest.
        signer: of every version; None where none is signed.
    """

    settings: TrainerSettings
    definition_of: Callable[[str], Definition]
    signer: VersionSigner | None = None


class TrustedHalves:
    """Makes a trusted half for each assignment.

    Args:
        open_registry: a client whose calls wait for a registry that restarts.
    """

    def __init__(self, open_registry: OpenRegistry, signer: VersionSigner | None, settings: TrainerSettings) -> None:
        self._open_registry = open_registry
        self._registry = open_registry("")
        read = lru_cache(_KNOWN_DEFINITIONS)(lambda digest: parse_definition(self._registry.get_definition(digest)))
        self._means = Means(settings, read, signer)

    def of(self, assignment: RoundAssignment) -> "TrustedHalf":
        if not assignment.traceparent:
            return TrustedHalf(assignment, self._registry, self._means)
        traced = self._open_registry(assignment.traceparent)
        return TrustedHalf(assignment, traced, self._means, on_close=traced.close)

    def close(self) -> None:
        self._registry.close()


@dataclass
class _Readable:
    """The names that the process may read: the plan's, and those that it names in turn."""

    models: set[str]
    streams: set[str]
    definitions: set[str]
    files: set[FileEntry]

    @classmethod
    def of(cls, assignment: RoundAssignment) -> "_Readable":
        plan, point = assignment.plan, assignment.lease.resume_point
        source = str(dict(plan.configuration.get("warm_start", {})).get("model", ""))
        files = {*(point.files if point else ()), *assignment.candidate}
        return cls({plan.model, *filter(None, [source])}, {plan.stream}, {plan.definition_digest}, files)

    def add(self, found: Version | RoundPlan) -> None:
        self.streams.add(found.stream)
        self.definitions.add(found.definition_digest)
        self.files |= set(found.files) if isinstance(found, Version) else set()


class TrustedHalf:
    """Of an assignment. `take` may be called for any number of calls at once.

    Attributes:
        version: that the round was ended with; None before.
        registers: it is being ended with a version; the result is not known yet.
        scoring: the request to the attempt's thread meanwhile.
        refused: why its version is not registered; it hands in no other.
    """

    def __init__(
        self,
        assignment: RoundAssignment,
        registry: RegistryClient,
        means: Means,
        *,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._assignment, self._registry, self._on_close = assignment, registry, on_close
        self._means, self._settings = means, means.settings
        self._readable = _Readable.of(assignment)
        self._handed_in: dict[str, tuple[FileEntry, ...]] = {}
        self._free = threading.Semaphore(MOST_CALLS)
        self._letters = RoundLetters(assignment.plan, self._open_log, written_by=assignment.round.round_id)
        self._turn, self._counting = threading.Lock(), threading.Lock()
        self._room_bytes = _MOST_BYTES
        self._is_closed = False
        self.version: Version | None = None
        self.registers = False
        self.scoring, self.refused = ScoreRequest(), ""

    def take(self, descriptor: int) -> None:
        """Answers the call at this end of its sockets, in a new thread; closes it where there are too many."""
        if self._is_closed or not self._free.acquire(blocking=False):
            os.close(descriptor)
            return
        threading.Thread(target=self._serve, args=(descriptor,), name="call of a round", daemon=True).start()

    def close(self) -> None:
        """The process has ended, or has gone on to another round. Calls that have begun come to their end."""
        self._is_closed = True
        self._on_close()

    def _serve(self, descriptor: int) -> None:
        os.nice(self._settings.nice)  # of this thread, and of those that it starts: as a round's process weighs
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:  # The author's code may hand over anything.
            os.close(descriptor)
            self._free.release()
            return
        taken_bytes = 0

        def grow(count: int) -> None:
            nonlocal taken_bytes
            with self._counting:
                if count > self._room_bytes:
                    raise Overloaded(f"the calls of a round may have {_MOST_BYTES} bytes together")
                self._room_bytes -= count
                taken_bytes += count

        try:
            with connection:
                calls.answer(connection, self._do, grow)
        except OSError as error:
            logger.info("a call of a round was not answered", extra={"error": str(error)})
        finally:
            with self._counting:
                self._room_bytes += taken_bytes
            self._free.release()

    def _do(self, name: str, body: bytes) -> bytes:
        do = _CALLS.get(name)
        if do is None:
            raise InvalidInput(f"there is no call {name[:80]!r}, expected one of {', '.join(_CALLS)}")
        try:
            return do(self, body)
        except (DecodeError, TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
            raise InvalidInput(f"{name}: its body is of another form: {error}") from error
        except OSError as error:  # of files that are not there, or no files
            raise InvalidInput(f"{name}: {error}") from error

    def _get_stream(self, body: bytes) -> bytes:
        request = pb.GetStreamRequest.FromString(body)
        self._permit("stream", request.name, self._readable.streams)
        stream = self._registry.get_stream(request.name, schema_version=request.schema_version)
        return _sent(wire.stream_to_wire(stream))

    def _get_definition(self, body: bytes) -> bytes:
        digest = pb.GetDefinitionRequest.FromString(body).digest
        self._permit("definition", digest, self._readable.definitions)
        files = self._registry.get_definition(digest)
        return _sent(pb.Definition(files=wire.definition_to_wire(files)))

    def _get_version(self, body: bytes) -> bytes:
        request = pb.GetVersionRequest.FromString(body)
        self._permit("model", request.model, self._readable.models)
        found = self._registry.get_version(request.model, request.version)
        self._readable.add(found)
        return _sent(wire.version_to_wire(found))

    def _list_rounds(self, body: bytes) -> bytes:
        request = pb.ListRoundsRequest.FromString(body)
        self._permit("model", request.model, self._readable.models)
        found = self._registry.get_round(request.model, request.round_id)
        self._readable.add(found.plan)
        return _sent(pb.ListRoundsResponse(rounds=[wire.round_to_wire(found)]))

    def _download(self, body: bytes) -> bytes:
        request = calls.as_json(body)
        files = [value_of(FileEntry, entry) for entry in request["files"]]
        for file in files:
            self._permit("file", file, self._readable.files)
        directory, plan = os.path.realpath(request["directory"]), self._assignment.plan
        own = (self._assignment.work_dir, f"{self._assignment.cache_dir}/{plan.model}")
        if not any(Path(directory).is_relative_to(os.path.realpath(folder)) for folder in own):
            raise PermissionDenied(f"{directory} is no folder of this round's")
        return json.dumps({"bytes": self._registry.download(files, Path(directory))}).encode()

    def _upload(self, body: bytes) -> bytes:
        folder = calls.as_json(body)["folder"]
        self._permit("folder", folder, {OUTPUT, RESUME})
        with self._turn:
            self._check_open()
            directory = Path(self._assignment.work_dir) / folder
            bases, sent = dict[str, Path](), list[int]()

            def send_ahead(found: list[FileEntry]) -> None:
                """The registry makes files of patches while their digests are taken here."""
                bases.update(self._bases_of(found) if folder == OUTPUT else {})
                if bases:
                    sent.append(self._registry.upload_ahead(directory, found, bases=bases))

            most_bytes = self._settings.max_version_mib << 20
            files = manifest_of(directory, most_bytes=most_bytes, meanwhile=send_ahead)
            sent.append(self._registry.upload(directory, files, bases=bases))
            self._handed_in[folder] = files
        return json.dumps({"bytes": sum(sent), "files": [asdict(file) for file in files]}).encode()

    def _put_resume_point(self, body: bytes) -> bytes:
        state = dict(calls.as_json(body)["state"])
        with self._turn:
            self._check_open()
            self._registry.put_resume_point(self._assignment.lease, state=state, files=self._handed_in.get(RESUME, ()))
        return b"{}"

    def _register_version(self, body: bytes) -> bytes:
        """Raises as RegistryClient.register_version, and Unavailable: it cannot be signed now."""
        if len(body) > _MOST_FACTS_BYTES:
            raise InvalidInput(f"a version's facts have {len(body)} bytes, at most {_MOST_FACTS_BYTES} are kept")
        draft = wire.draft_from_wire(pb.Version.FromString(body))
        with self._turn:
            self._check_open()
            if OUTPUT not in self._handed_in:
                raise InvalidInput("the round has handed in no files of a version")
            definition = self._means.definition_of(self._assignment.plan.definition_digest)
            facts = {name: fact for name, fact in draft.environment.items() if name not in (PUSHED, SCORED_OUTSIDE)}
            facts[SCORED_OUTSIDE] = self._scored(draft, definition)
            files = self._handed_in[OUTPUT]
            draft = replace(draft, files=files, gate=definition.gate, environment=facts, signature="")
            self.registers = True
            try:
                self.version = signing.register(self._registry, self._assignment.lease, draft, self._means.signer)
            finally:
                self.registers = False
        return _sent(wire.version_to_wire(self.version))

    def _scored(self, draft: VersionDraft, definition: Definition) -> JsonMap:
        """As in common/registry/scored_outside.py.

        Raises:
            InvalidInput: the draft's are others, or the export gives none.
            Unavailable: nothing is known of it now.
        """
        plan, setting = self._assignment.plan, self._settings.score_outside
        if reason := stated_metrics.reason_against(definition, setting):
            unscored = stated_metrics.unscored(definition, plan, None, reason=reason)
            is_required = definition.module is not None or setting in ("all", "required")
            return {"reason": reason} | present(
                unscored=unscored if is_required else {}, required=setting == "required" or None
            )
        # No round may write there.
        work_dir = self._settings.data_dir.absolute() / "scored" / plan.model / self._assignment.round.round_id
        work_dir.mkdir(parents=True, exist_ok=True)
        assignment = self._assignment.scoring(self._handed_in[OUTPUT], str(work_dir))
        try:
            found = self.scoring.score(assignment, timeout_seconds=self._settings.round_timeout_seconds)
            if fault := stated_metrics.fault_of(draft, found, definition):
                raise InvalidInput(f"the version is not registered: {fault}")
        except InvalidInput as error:
            self.refused = error.message
            raise
        unscored = stated_metrics.unscored(definition, plan, found, reason="")
        return {"metrics": found.metrics} | present(unscored=unscored, required=setting == "required" or None)

    def _set_aside(self, body: bytes) -> bytes:
        """Goes on where the process has ended meanwhile, so its events are set aside, or it has not come to it."""
        places = calls.places_of(body)
        with self._turn:
            self._check_open()
            if self.version is None:
                raise InvalidInput("events are set aside once the round has its version")
            written = self._letters.write(places, most=self.version.events_unusable)
        return json.dumps({"letters": written}).encode()

    def _bases_of(self, files: Sequence[FileEntry]) -> dict[str, Path]:
        """Files of the parent that are on this trainer, by digest, bases of patches for `files`."""
        plan = self._assignment.plan
        sizes = {file.size_bytes for file in files if file.size_bytes >= SMALLEST_FILE_BYTES}
        if not plan.parent_version or not sizes:
            return {}
        folder = Path(self._assignment.cache_dir) / plan.model / str(plan.parent_version)
        parent = self._registry.get_version(plan.model, plan.parent_version).files
        return {file.digest: folder / file.path for file in parent if file.size_bytes in sizes}

    def _open_log(self) -> closing[SourcedLog]:
        return closing(open_round_log(self._assignment.plan, self._settings.event_log, self._registry))

    def _permit(self, kind: str, name: object, permitted: Container[object]) -> None:
        if name not in permitted:
            raise PermissionDenied(f"the round has no {kind} {str(name)[:200]!r}")

    def _check_open(self) -> None:
        """Nothing is handed in but by the chief of a leased round, and while its process lives."""
        assignment = self._assignment
        if self.refused:
            raise PermissionDenied(self.refused)
        if self._is_closed or assignment.rebuild_of or assignment.candidate or assignment.rank:
            raise PermissionDenied("nothing is handed in here: this is not the chief's process of a leased round")


_CALLS: Mapping[str, Callable[[TrustedHalf, bytes], bytes]] = {
    "GetStream": TrustedHalf._get_stream,
    "GetDefinition": TrustedHalf._get_definition,
    "GetVersion": TrustedHalf._get_version,
    "ListRounds": TrustedHalf._list_rounds,
    "Download": TrustedHalf._download,
    "Upload": TrustedHalf._upload,
    "PutResumePoint": TrustedHalf._put_resume_point,
    "RegisterVersion": TrustedHalf._register_version,
    "SetAside": TrustedHalf._set_aside,
}


def _sent(message: Message) -> bytes:
    return message.SerializeToString()
