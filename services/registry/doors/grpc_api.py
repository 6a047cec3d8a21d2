# ruff: noqa: N802 - the methods carry the names of the service's calls
"""gRPC door: messages to plain values, a call of the catalog, plain values to messages."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from common.access.principal import author_of
from common.errors import InvalidInput, Overloaded
from common.registry import wire
from common.registry.catalog import MOST_LISTED, FileEntry, RoundPlan
from common.registry.live import Evidence
from common.registry.reporting import MAX_REPORT_BYTES, report_of
from common.registry.teams import Offer, TeamState
from common.registry.wire import read_from, sent_as
from protos import registry_pb2 as pb
from protos import registry_pb2_grpc
from services.registry.catalog import Catalog
from services.registry.doors.rules import check_stream
from services.registry.store.blobs import CHUNK_BYTES

SERVICE_NAME = "headrace.RegistryService"
_DEFAULT_ROUNDS = 50
_MAX_UPLOADS = 24


class RegistryServicer(registry_pb2_grpc.RegistryServiceServicer):
    """A method per call of RegistryService; errors become statuses in common.process.rpc."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._uploads = threading.BoundedSemaphore(_MAX_UPLOADS)

    def RegisterStream(self, request: pb.RegisterStreamRequest, context: grpc.ServicerContext) -> pb.Stream:
        check_stream(self._catalog, request.name, request.schema_json)
        return wire.stream_to_wire(self._catalog.register_stream(request.name, request.schema_json))

    def GetStream(self, request: pb.GetStreamRequest, context: grpc.ServicerContext) -> pb.Stream:
        return wire.stream_to_wire(self._catalog.get_stream(request.name, request.schema_version))

    def ListStreams(self, request: pb.ListStreamsRequest, context: grpc.ServicerContext) -> pb.ListStreamsResponse:
        return pb.ListStreamsResponse(streams=map(wire.stream_to_wire, self._catalog.list_streams()))

    def RegisterModel(self, request: pb.RegisterModelRequest, context: grpc.ServicerContext) -> pb.Model:
        files = wire.definition_from_wire(request.files)
        by = author_of(request.by)
        model = self._catalog.register_model(request.name, stream=request.stream, files=files, by=by)
        return sent_as(pb.Model, model)

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.Model:
        return sent_as(pb.Model, self._catalog.get_model(request.name))

    def ListModels(self, request: pb.ListModelsRequest, context: grpc.ServicerContext) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[sent_as(pb.Model, model) for model in self._catalog.list_models()])

    def GetDefinition(self, request: pb.GetDefinitionRequest, context: grpc.ServicerContext) -> pb.Definition:
        files = self._catalog.get_definition(request.digest)
        return pb.Definition(digest=request.digest, files=wire.definition_to_wire(files))

    def PlanRound(self, request: pb.PlanRoundRequest, context: grpc.ServicerContext) -> pb.Round:
        return wire.round_to_wire(self._catalog.plan_round(read_from(request.round, RoundPlan)))

    def ListRounds(self, request: pb.ListRoundsRequest, context: grpc.ServicerContext) -> pb.ListRoundsResponse:
        if request.round_id:
            found = [self._catalog.get_round(request.model, request.round_id)]
        else:
            found = self._catalog.list_rounds(request.model, request.limit or _DEFAULT_ROUNDS)
        return pb.ListRoundsResponse(rounds=map(wire.round_to_wire, found))

    def LeaseRound(self, request: pb.LeaseRoundRequest, context: grpc.ServicerContext) -> pb.LeaseRoundResponse:
        lease = self._catalog.lease_round(
            request.holder, ttl_seconds=request.ttl_seconds, models=request.models, secret=request.holder_secret
        )
        return pb.LeaseRoundResponse(lease=wire.lease_to_wire(lease) if lease else None)

    def RenewLease(self, request: pb.RenewLeaseRequest, context: grpc.ServicerContext) -> pb.Lease:
        progress = wire.json_map("progress_json", request.progress_json)
        lease = self._catalog.renew_lease(
            request.round_id, request.token, ttl_seconds=request.ttl_seconds, progress=progress
        )
        return wire.lease_to_wire(lease)

    def ReleaseRound(self, request: pb.ReleaseRoundRequest, context: grpc.ServicerContext) -> pb.Round:
        return wire.round_to_wire(self._catalog.release_round(request.round_id, request.token, reason=request.reason))

    def FailRound(self, request: pb.FailRoundRequest, context: grpc.ServicerContext) -> pb.Round:
        failure = wire.json_map("failure_json", request.failure_json)
        ended = self._catalog.fail_round(request.round_id, request.token, reason=request.reason, failure=failure)
        return wire.round_to_wire(ended)

    def PutResumePoint(self, request: pb.PutResumePointRequest, context: grpc.ServicerContext) -> pb.Round:
        state = wire.json_map("state_json", request.state_json)
        files = [read_from(file, FileEntry) for file in request.files]
        found = self._catalog.put_resume_point(request.round_id, request.token, state=state, files=files)
        return wire.round_to_wire(found)

    def OfferHelp(self, request: pb.OfferHelpRequest, context: grpc.ServicerContext) -> pb.OfferHelpResponse:
        return wire.orders_to_wire(self._catalog.offer_help(read_from(request.offer, Offer), left=request.left))

    def FormTeam(self, request: pb.FormTeamRequest, context: grpc.ServicerContext) -> pb.Team:
        chief = read_from(request.chief, Offer)
        team = self._catalog.form_team(request.round_id, request.token, chief=chief, most=request.most)
        return sent_as(pb.Team, team)

    def KeepTeam(self, request: pb.KeepTeamRequest, context: grpc.ServicerContext) -> pb.Team:
        chief, team = read_from(request.chief, Offer), read_from(request.team, TeamState)
        return sent_as(pb.Team, self._catalog.keep_team(request.round_id, request.token, chief=chief, team=team))

    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportResponse:
        if len(request.body_json) > MAX_REPORT_BYTES:
            raise InvalidInput(f"a report may have {MAX_REPORT_BYTES} bytes, got {len(request.body_json)}")
        report = report_of(
            instance_id=request.instance_id,
            service=request.service,
            address=request.address,
            started_at=request.started_at,
            body=wire.json_map("body_json", request.body_json),
        )
        return pb.ReportResponse(
            next_seconds=self._catalog.observed.report(report, peer=context.peer().rpartition(":")[0])
        )

    def AskJob(self, request: pb.AskJobRequest, context: grpc.ServicerContext) -> pb.Job:
        options = wire.json_map("options_json", request.options_json)
        job = self._catalog.jobs.request(
            request.kind, model=request.model, version=request.version, options=options, by=author_of(request.by),
            reason=request.reason,
        )  # fmt: skip
        return sent_as(pb.Job, job)

    def ListJobs(self, request: pb.ListJobsRequest, context: grpc.ServicerContext) -> pb.ListJobsResponse:
        found = self._catalog.jobs.listed(model=request.model, job_id=request.job_id)
        return pb.ListJobsResponse(jobs=[sent_as(pb.Job, job) for job in found])

    def TakeJob(self, request: pb.TakeJobRequest, context: grpc.ServicerContext) -> pb.TakeJobResponse:
        job = self._catalog.jobs.take(
            request.holder, request.kind, model=request.model, ttl_seconds=request.ttl_seconds
        )
        return pb.TakeJobResponse(job=sent_as(pb.Job, job) if job is not None else None)

    def TellJob(self, request: pb.TellJobRequest, context: grpc.ServicerContext) -> pb.Job:
        progress = wire.json_map("told_json", request.told_json)
        job = self._catalog.jobs.report(
            request.job_id, request.holder, request.attempts, state=request.state, progress=progress,
            ttl_seconds=request.ttl_seconds,
        )  # fmt: skip
        return sent_as(pb.Job, job)

    def MissingFiles(self, request: pb.MissingFilesRequest, context: grpc.ServicerContext) -> pb.MissingFilesResponse:
        return pb.MissingFilesResponse(digests=self._catalog.blobs.missing(request.digests))

    def GetUpload(self, request: pb.GetUploadRequest, context: grpc.ServicerContext) -> pb.GetUploadResponse:
        received_bytes, complete = self._catalog.blobs.received_bytes(request.digest)
        return pb.GetUploadResponse(received_bytes=received_bytes, complete=complete)

    def UploadFile(
        self, request_iterator: Iterator[pb.UploadFileRequest], context: grpc.ServicerContext
    ) -> pb.UploadFileResponse:
        first = next(request_iterator, None)
        if first is None:
            raise InvalidInput("an upload begins with a message that names the digest and the size")

        def chunks() -> Iterator[bytes]:
            yield first.data
            for message in request_iterator:
                yield message.data

        with self._upload_place():
            blobs, digest, size_bytes = self._catalog.blobs, first.digest, first.size_bytes
            if first.base_digest:
                digest = blobs.receive_patch(digest, size_bytes, first.base_digest, chunks())
            else:
                size_bytes = blobs.receive(digest, size_bytes, first.offset, chunks())
        return pb.UploadFileResponse(digest=digest, size_bytes=size_bytes)

    @contextmanager
    def _upload_place(self) -> Iterator[None]:
        """Uploads never take all threads. Raises Overloaded."""
        if not self._uploads.acquire(blocking=False):
            raise Overloaded(f"{_MAX_UPLOADS} uploads are under way, no more are taken")
        try:
            yield
        finally:
            self._uploads.release()

    def DownloadFile(self, request: pb.DownloadFileRequest, context: grpc.ServicerContext) -> Iterator[pb.FileChunk]:
        if not request.offset and (patch := self._catalog.blobs.patch_of(request.digest, request.base_digests)):
            base, data = patch
            for start in range(0, len(data), CHUNK_BYTES):
                yield pb.FileChunk(data=data[start : start + CHUNK_BYTES], base_digest="" if start else base)
            return
        if request.accepts_url and (url := self._catalog.blobs.url_of(request.digest)):
            yield pb.FileChunk(url=url)
            return
        if request.accepts_path and (path := self._catalog.blobs.path_of(request.digest)):
            yield pb.FileChunk(path=str(path))
            return
        for chunk in self._catalog.blobs.read(request.digest, request.offset):
            yield pb.FileChunk(data=chunk)

    def RegisterVersion(self, request: pb.RegisterVersionRequest, context: grpc.ServicerContext) -> pb.Version:
        draft = wire.draft_from_wire(request.version)
        return wire.version_to_wire(self._catalog.register_version(request.round_id, request.token, draft))

    def GetVersion(self, request: pb.GetVersionRequest, context: grpc.ServicerContext) -> pb.Version:
        return wire.version_to_wire(self._catalog.get_version(request.model, request.version))

    def ListVersions(self, request: pb.ListVersionsRequest, context: grpc.ServicerContext) -> pb.ListVersionsResponse:
        limit = _listed(request.limit)
        found = self._catalog.list_versions(request.model, limit=limit, before=max(0, request.before))
        return pb.ListVersionsResponse(versions=map(wire.version_to_wire, found))

    def SetAlias(self, request: pb.SetAliasRequest, context: grpc.ServicerContext) -> pb.Model:
        model = self._catalog.set_alias(
            request.model, request.alias, request.version, by=author_of(request.by), reason=request.reason
        )
        return sent_as(pb.Model, model)

    def GetEvidence(self, request: pb.GetEvidenceRequest, context: grpc.ServicerContext) -> pb.Evidence:
        found = self._catalog.get_evidence(request.model)
        return pb.Evidence(revision=found.revision, state_json=wire.json_text(found.state))

    def PutEvidence(self, request: pb.PutEvidenceRequest, context: grpc.ServicerContext) -> pb.Evidence:
        documents = request.versions_json.items()
        versions = {version: wire.json_map("versions_json", text) for version, text in documents}
        evidence = read_from(request, Evidence, versions=versions)
        return pb.Evidence(revision=self._catalog.put_evidence(request.model, evidence))

    def Forget(self, request: pb.ForgetRequest, context: grpc.ServicerContext) -> pb.Forgotten:
        selection = wire.json_map("forgotten_json", request.forgotten_json)
        if request.dry_run:
            return pb.Forgotten(forgotten_json=wire.json_text(self._catalog.would_forget(request.model, selection)))
        found = self._catalog.forget(request.model, selection, by=author_of(request.by), reason=request.reason)
        return pb.Forgotten(forgotten_json=wire.json_text(found))

    def GetForgotten(self, request: pb.GetForgottenRequest, context: grpc.ServicerContext) -> pb.Forgotten:
        pieces = self._catalog.forgotten_by(request.model).as_json()
        return pb.Forgotten(forgotten_json=wire.json_text({"pieces": pieces}))

    def Rollback(self, request: pb.RollbackRequest, context: grpc.ServicerContext) -> pb.Model:
        model = self._catalog.rollback(
            request.model, by=author_of(request.by), reason=request.reason, events=request.events
        )
        return sent_as(pb.Model, model)

    def ListAliasHistory(
        self, request: pb.ListAliasHistoryRequest, context: grpc.ServicerContext
    ) -> pb.ListAliasHistoryResponse:
        history = self._catalog.alias_history(request.model, limit=_listed(request.limit))
        return pb.ListAliasHistoryResponse(changes=[sent_as(pb.AliasChange, change) for change in history])

    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.Change]:
        context.add_callback(self._catalog.wake_watchers)
        for change in self._catalog.watch(request.since_revision, is_active=context.is_active, client=context.peer()):
            yield wire.change_to_wire(change)


def _listed(limit: int) -> int:
    return limit if 0 < limit <= MOST_LISTED else MOST_LISTED
