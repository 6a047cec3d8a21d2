"""The registry as seen by the other services: typed calls over gRPC, with the six errors."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from common.errors import Unavailable
from common.loopback import is_loopback
from common.process.pace import UNLIMITED, Pace
from common.process.retry import Retry
from common.process.rpc_client import Authorization, RenewedChannel, errors_from_status, open_channel
from common.process.tls import Tls
from common.registry import wire
from common.registry.catalog import (
    MOST_LISTED,
    AliasChange,
    Change,
    FileEntry,
    JsonMap,
    Lease,
    Model,
    Round,
    RoundPlan,
    Stream,
    Version,
    VersionDraft,
)
from common.registry.files import FileTransfer, Patching, digest_of, manifest_of
from common.registry.forgotten import Forgotten, forgotten_from_json
from common.registry.jobs import Job, JobKind, JobState
from common.registry.live import Evidence
from common.registry.reporting import QUIET_SECONDS, Report
from common.registry.teams import Offer, Orders, TeamState
from protos import registry_pb2 as pb
from protos import registry_pb2_grpc

__all__ = ["RegistryClient", "digest_of", "manifest_of"]

Answer = TypeVar("Answer", bound=Message)
# Three times the longest pause between heartbeats.
_SILENCE_SECONDS = 3 * QUIET_SECONDS


class RegistryClient:
    """Thread-safe. Every call has a timeout and raises Unavailable when the registry does not answer in time.

    Within that time a call that may be repeated is tried again while the registry is away (all but rollback).
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_seconds: float = 10.0,
        traceparent: str = "",
        authorization: Authorization | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Connects in the background, at the first call.

        Args:
            address: "host:port".
            traceparent: of the span that all calls belong to.
            authorization: the header's value, asked for with each call; None: calls go without credentials.
            tls: None: plain text. What its files hold now counts for calls from now on.
        """
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._closed = False
        self._channel = RenewedChannel(
            lambda: open_channel(address, traceparent=traceparent, authorization=authorization, tls=tls), tls
        )
        self._stub = self._channel.stub(registry_pb2_grpc.RegistryServiceStub)
        is_near = is_loopback(address.rpartition(":")[0])
        self._files = FileTransfer(self._stub, timeout_seconds=timeout_seconds, is_near=is_near)

    def close(self) -> None:
        """Ends the connection; calls that are running raise Unavailable."""
        self._closed = True
        self._channel.close()

    # streams and models

    def register_stream(self, name: str, schema_json: str) -> Stream:
        """Raises InvalidInput, Conflict (not compatible with the newest schema)."""
        request = pb.RegisterStreamRequest(name=name, schema_json=schema_json)
        return wire.stream_from_wire(self._call(self._stub.RegisterStream, request))

    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream:
        """With its newest schema, or the version asked for. Raises NotFound."""
        request = pb.GetStreamRequest(name=name, schema_version=schema_version)
        return wire.stream_from_wire(self._call(self._stub.GetStream, request))

    def list_streams(self) -> list[Stream]:
        """In order of name."""
        answer = self._call(self._stub.ListStreams, pb.ListStreamsRequest())
        return [wire.stream_from_wire(stream) for stream in answer.streams]

    def register_model(self, name: str, *, stream: str, files: Mapping[str, bytes], by: str) -> Model:
        """Registers the model or a new definition of it. Raises InvalidInput, NotFound (stream), Conflict."""
        request = pb.RegisterModelRequest(name=name, stream=stream, files=wire.definition_to_wire(files), by=by)
        return wire.read_from(self._call(self._stub.RegisterModel, request), Model)

    def get_model(self, name: str) -> Model:
        """Raises NotFound."""
        return wire.read_from(self._call(self._stub.GetModel, pb.GetModelRequest(name=name)), Model)

    def list_models(self) -> list[Model]:
        """In order of name."""
        answer = self._call(self._stub.ListModels, pb.ListModelsRequest())
        return [wire.read_from(model, Model) for model in answer.models]

    def get_definition(self, digest: str) -> dict[str, bytes]:
        """{path: content}. Raises NotFound."""
        answer = self._call(self._stub.GetDefinition, pb.GetDefinitionRequest(digest=digest))
        return wire.definition_from_wire(answer.files)

    # rounds and leases

    def plan_round(self, plan: RoundPlan) -> Round:
        """Stores the next round; the same plan again gives the same round. Raises Conflict, InvalidInput, NotFound."""
        request = pb.PlanRoundRequest(round=wire.sent_as(pb.Round, plan))
        return wire.round_from_wire(self._call(self._stub.PlanRound, request))

    def list_rounds(self, model: str, *, limit: int = 50) -> list[Round]:
        """Newest first. Raises NotFound."""
        answer = self._call(self._stub.ListRounds, pb.ListRoundsRequest(model=model, limit=limit))
        return [wire.round_from_wire(found) for found in answer.rounds]

    def get_round(self, model: str, round_id: str) -> Round:
        """Raises NotFound."""
        answer = self._call(self._stub.ListRounds, pb.ListRoundsRequest(model=model, round_id=round_id))
        if [found.round_id for found in answer.rounds] != [round_id]:
            raise Unavailable(f"the registry at {self._address} does not know how to find one round; upgrade it first")
        return wire.round_from_wire(answer.rounds[0])

    def lease_round(
        self, holder: str, *, ttl_seconds: float, models: Sequence[str] = (), secret: str = ""
    ) -> Lease | None:
        """The oldest round that is planned or whose lease ran out, of these models (none named: of any).

        None: nothing to do.

        Args:
            secret: known to this holder only, 16 to 256 characters. A holder that asks while it has a running round,
                with the secret of that lease, gets the round again under a new token. "": it never gets it back.
        """
        request = pb.LeaseRoundRequest(holder=holder, ttl_seconds=ttl_seconds, models=models, holder_secret=secret)
        answer = self._call(self._stub.LeaseRound, request)
        return wire.lease_from_wire(answer.lease) if answer.HasField("lease") else None

    def renew_lease(self, lease: Lease, *, ttl_seconds: float, progress: JsonMap) -> Lease:
        """Holds the round for ttl_seconds from now. Raises Conflict when the lease is no longer the caller's."""
        request = pb.RenewLeaseRequest(**_held(lease), ttl_seconds=ttl_seconds, progress_json=wire.json_text(progress))
        return wire.lease_from_wire(self._call(self._stub.RenewLease, request))

    def release_round(self, lease: Lease, *, reason: str) -> Round:
        """Gives the round back, to be leased at once. Raises Conflict when the lease is no longer the caller's."""
        request = pb.ReleaseRoundRequest(**_held(lease), reason=reason)
        return wire.round_from_wire(self._call(self._stub.ReleaseRound, request))

    def offer_help(self, offer: Offer, *, left: str = "") -> Orders:
        """Says that this trainer is there, and hears what to compute; `left`: why it has left `offer.team_id`."""
        request = pb.OfferHelpRequest(offer=wire.sent_as(pb.HelpOffer, offer), left=left)
        return wire.orders_from_wire(self._call(self._stub.OfferHelp, request))

    def form_team(self, lease: Lease, chief: Offer, *, most: int) -> TeamState:
        """A team for the leased round. Raises Conflict when the lease is no longer the caller's."""
        request = pb.FormTeamRequest(**_held(lease), chief=wire.sent_as(pb.HelpOffer, chief), most=most)
        return wire.read_from(self._call(self._stub.FormTeam, request), TeamState)

    def keep_team(self, lease: Lease, chief: Offer, team: TeamState) -> TeamState:
        """How the team stands, or who is free where there is none. Raises Conflict as form_team does."""
        request = pb.KeepTeamRequest(
            **_held(lease), chief=wire.sent_as(pb.HelpOffer, chief), team=wire.sent_as(pb.Team, team)
        )
        return wire.read_from(self._call(self._stub.KeepTeam, request), TeamState)

    def fail_round(self, lease: Lease, *, reason: str, failure: JsonMap | None = None) -> Round:
        """Ends the round for good. Raises Conflict when the lease is no longer the caller's.

        Args:
            failure: what is known beside the reason: {"stage", "place", "events", "advice", "log"}.
        """
        request = pb.FailRoundRequest(**_held(lease), reason=reason, failure_json=wire.json_text(failure or {}))
        return wire.round_from_wire(self._call(self._stub.FailRound, request))

    def put_resume_point(self, lease: Lease, *, state: JsonMap, files: Sequence[FileEntry]) -> Round:
        """Replaces the round's resume point by uploaded files. Raises Conflict, InvalidInput (a file is missing)."""
        request = pb.PutResumePointRequest(
            **_held(lease), state_json=wire.json_text(state), files=[wire.sent_as(pb.FileEntry, file) for file in files]
        )
        return wire.round_from_wire(self._call(self._stub.PutResumePoint, request))

    def report(self, report: Report) -> float:
        """Says what this instance is and does; seconds until the next. Never tried twice: the next says it again."""
        request = wire.sent_as(pb.ReportRequest, report, body_json=wire.json_text(report.body()))
        return float(self._once(self._stub.Report, request).next_seconds)

    # jobs

    def request_job(
        self, kind: JobKind, model: str, *, version: int = 0, options: JsonMap | None = None, by: str, reason: str = ""
    ) -> Job:
        """A free trainer does it. Raises NotFound, Conflict, Overloaded, InvalidInput."""
        request = pb.AskJobRequest(
            kind=str(kind), model=model, version=version, options_json=wire.json_text(options or {}), by=by,
            reason=reason,
        )  # fmt: skip
        return wire.read_from(self._call(self._stub.AskJob, request), Job)

    def jobs(self, *, model: str = "", job_id: str = "") -> list[Job]:
        """The newest first. Raises NotFound when the named job is not there."""
        answer = self._call(self._stub.ListJobs, pb.ListJobsRequest(model=model, job_id=job_id))
        return [wire.read_from(job, Job) for job in answer.jobs]

    def take_job(self, holder: str, kind: JobKind, *, model: str = "", ttl_seconds: float) -> Job | None:
        """A job that waits, that this holder had, or whose holder is silent; None: nothing to do."""
        request = pb.TakeJobRequest(holder=holder, kind=str(kind), model=model, ttl_seconds=ttl_seconds)
        answer = self._call(self._stub.TakeJob, request)
        return wire.read_from(answer.job, Job) if answer.HasField("job") else None

    def report_job(self, job: Job, *, state: JobState, progress: JsonMap, ttl_seconds: float) -> Job:
        """Renews, ends or gives back a job. Raises Conflict when it is no longer the caller's."""
        request = pb.TellJobRequest(
            job_id=job.job_id, holder=job.holder, attempts=job.attempts, state=str(state),
            told_json=wire.json_text(progress), ttl_seconds=ttl_seconds,
        )  # fmt: skip
        return wire.read_from(self._call(self._stub.TellJob, request), Job)

    # files

    def upload(self, directory: Path, files: Sequence[FileEntry], *, bases: Mapping[str, Path] | None = None) -> int:
        """Sends the files the registry lacks, taking up interrupted uploads; returns the bytes sent.

        Args:
            bases: {digest: file that is here and in the registry}: a big file of which one of these has the size goes
                as a patch where little of it differs, and whole where the registry cannot use the patch.

        Raises:
            InvalidInput: a file is not there, or no longer has the digest of its entry.
        """
        request = pb.MissingFilesRequest(digests=sorted({file.digest for file in files}))
        missing = self._call(self._stub.MissingFiles, request).digests
        return self._files.upload(directory, files, missing, bases or {})

    def upload_ahead(self, directory: Path, files: Sequence[FileEntry], *, bases: Mapping[str, Path]) -> int:
        """Sends patches of big files while their digests, empty in `files`, are being taken: `upload` finds them there.
        Returns the bytes sent; what the registry does not take is left to `upload`.

        Args:
            bases: as `upload` has it.
        """
        return self._files.upload_ahead(directory, files, bases)

    def download(
        self,
        files: Sequence[FileEntry],
        directory: Path,
        *,
        pace: Pace = UNLIMITED,
        bases: Mapping[str, Path] | None = None,
        patching: Patching | None = None,
    ) -> int:
        """Writes each file to directory/path, verified; leaves those alone that are there with the right digest.

        Args:
            pace: how fast, together with all other downloads that share it.
            bases: {digest: file that is here}, the likeliest first: a big file of which one of these has the size comes
                as a patch where the registry can make it, and whole where the patch does not give its digest.
            patching: makes a file of a base and a patch; None: in a new file.

        Returns the bytes received. A file appears under its name only when it is whole.

        Raises:
            DataLoss: the stored bytes are damaged.
            NotFound, InvalidInput.
        """
        return self._files.download(files, directory, pace, bases, patching)

    def received(self) -> Mapping[str, int]:
        """Bytes of this client's downloads: by kind, as FileTransfer.received has them."""
        return self._files.received()

    # versions and aliases

    def register_version(self, lease: Lease, draft: VersionDraft) -> Version:
        """Ends the round with a version; the same draft again gives the same version.

        Raises:
            Conflict: the lease is no longer the caller's.
            InvalidInput: the draft, its gate or its files are not as they must be.
        """
        request = pb.RegisterVersionRequest(**_held(lease), version=wire.draft_to_wire(draft))
        return wire.version_from_wire(self._call(self._stub.RegisterVersion, request))

    def get_version(self, model: str, version: int) -> Version:
        """With its files. Raises NotFound."""
        return wire.version_from_wire(
            self._call(self._stub.GetVersion, pb.GetVersionRequest(model=model, version=version))
        )

    def list_versions(self, model: str, *, limit: int = MOST_LISTED, before: int = 0) -> list[Version]:
        """The newest `limit`, before a version where `before` is not 0; oldest first, without their files. Raises
        NotFound."""
        answer = self._call(self._stub.ListVersions, pb.ListVersionsRequest(model=model, limit=limit, before=before))
        return [wire.version_from_wire(version) for version in answer.versions]

    def set_alias(self, model: str, alias: str, version: int, *, by: str, reason: str) -> Model:
        """Points the alias at the version; 0 removes it. Raises NotFound, Conflict, InvalidInput."""
        request = pb.SetAliasRequest(model=model, alias=alias, version=version, by=by, reason=reason)
        return wire.read_from(self._call(self._stub.SetAlias, request), Model)

    def rollback(self, model: str, *, by: str, reason: str, events: str = "") -> Model:
        """Moves production back to the version before. Never tried twice. Raises NotFound, Conflict, InvalidInput."""
        request = pb.RollbackRequest(model=model, by=by, reason=reason, events=events)
        return wire.read_from(self._once(self._stub.Rollback, request), Model)

    def forget(self, model: str, selection: JsonMap, *, by: str, reason: str, dry_run: bool = False) -> JsonMap:
        """Has the model never learn from these events again: {"pieces": places, "examples": how many they are}; gives
        what has learned them and where the next round starts. Raises NotFound, Conflict, InvalidInput."""
        request = pb.ForgetRequest(
            model=model, forgotten_json=wire.json_text(selection), by=by, reason=reason, dry_run=dry_run
        )
        return wire.json_map("forgotten_json", self._once(self._stub.Forget, request).forgotten_json)

    def forgotten_by(self, model: str) -> Forgotten:
        """Raises NotFound."""
        answer = self._call(self._stub.GetForgotten, pb.GetForgottenRequest(model=model))
        return forgotten_from_json(wire.json_map("forgotten_json", answer.forgotten_json)["pieces"])

    def get_evidence(self, model: str) -> Evidence:
        """Where the reading of labels stands. Raises NotFound."""
        return wire.read_from(self._call(self._stub.GetEvidence, pb.GetEvidenceRequest(model=model)), Evidence)

    def put_evidence(self, model: str, evidence: Evidence) -> int:
        """The new revision. Never tried twice. Raises Conflict: another trainer was first; NotFound, InvalidInput."""
        versions = {version: wire.json_text(document) for version, document in evidence.versions.items()}
        request = wire.sent_as(pb.PutEvidenceRequest, evidence, model=model, versions_json=versions)
        return int(self._once(self._stub.PutEvidence, request).revision)

    def alias_history(self, model: str, *, limit: int = MOST_LISTED) -> list[AliasChange]:
        """The newest `limit` moves, oldest first. Raises NotFound."""
        answer = self._call(self._stub.ListAliasHistory, pb.ListAliasHistoryRequest(model=model, limit=limit))
        return [wire.read_from(change, AliasChange) for change in answer.changes]

    def watch(self, since_revision: int = 0) -> Iterator[Change]:
        """Changes as they happen, heartbeats included; reconnects are the caller's (it raises Unavailable).

        A registry that is silent for 22.5 s counts as away. Closing the iterator ends the watch. Raises Overloaded: the
        registry has as many watchers as it takes."""
        with self._errors("the watch of the registry"):
            changes = self._stub.Watch(pb.WatchRequest(since_revision=since_revision))
            try:
                while (message := _next_within(changes, changes.cancel, _SILENCE_SECONDS)) is not None:
                    yield wire.change_from_wire(message)
            finally:
                changes.cancel()
        raise Unavailable(f"the registry at {self._address} ended the watch")

    def _call(self, method: Callable[..., Answer], request: Message) -> Answer:
        retry = Retry(self._timeout_seconds)
        while True:
            try:
                return self._once(method, request, retry.remaining_seconds())
            except Unavailable as error:
                if self._closed:
                    raise
                retry.wait_or_raise(error)

    def _once(self, method: Callable[..., Answer], request: Message, timeout_seconds: float | None = None) -> Answer:
        with self._errors("the registry"):
            return method(request, timeout=self._timeout_seconds if timeout_seconds is None else timeout_seconds)

    @contextmanager
    def _errors(self, action: str) -> Iterator[None]:
        """The six errors, also for calls on a connection that another thread has closed (grpc raises ValueError)."""
        try:
            with errors_from_status(f"{action} at {self._address}"):
                yield
        except ValueError as error:
            if not self._closed:
                raise
            raise Unavailable(f"the connection to the registry at {self._address} is closed") from error


def _held(lease: Lease) -> dict[str, Any]:
    """What a call about the round shows."""
    return {"round_id": lease.round.round_id, "token": lease.token}


def _next_within(changes: Iterator[pb.Change], cancel: Callable[[], object], seconds: float) -> pb.Change | None:
    """The next message; None at the end of the stream. The call is cancelled when nothing comes in time."""
    timer = threading.Timer(seconds, cancel)
    timer.daemon = True
    timer.start()
    try:
        return next(changes, None)
    finally:
        timer.cancel()
