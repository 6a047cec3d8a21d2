"""The registry's core: every call of both doors, each change a transaction.

The ideas are next door: streams, models, rounds and leases, the gate, versions, aliases, blobs, watching, collection.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InvalidInput
from common.registry.catalog import (
    Applied,
    Change,
    FileEntry,
    HistoryEntry,
    JsonMap,
    Lease,
    Model,
    ResumePoint,
    Round,
    RoundPlan,
    Stream,
    Version,
    VersionDraft,
)
from common.registry.live import Evidence
from common.registry.plan_notes import FIRED
from common.registry.teams import Offer, Orders, TeamState
from common.saved_model.layout import KnownGraphs
from services.registry.decided import Decided
from services.registry.definitions import models, streams
from services.registry.definitions.shares import PUSHED, within_share
from services.registry.lifecycle import forgetting
from services.registry.lifecycle.apply import apply
from services.registry.observed import Observed
from services.registry.rounds import leases, line, rolled_back
from services.registry.rounds import plans as rounds
from services.registry.rounds.jobs import Jobs
from services.registry.rounds.leases import LeaseRules
from services.registry.rounds.teams import Teams
from services.registry.store.audit import BY_REGISTRY, AuditLog, Call
from services.registry.store.blobs import Blobs
from services.registry.store.database import KEEP_CHANGES, Clock, Database, Transaction, reading, writing
from services.registry.store.ended import EndedSessions
from services.registry.store.folder import InFolder
from services.registry.store.history import check_author, list_history
from services.registry.store.manifest import check_manifest
from services.registry.store.postgres import Leadership
from services.registry.store.shelf import Shelf
from services.registry.versions import aliases, live
from services.registry.versions import published as versions
from services.registry.versions.collection import Collected, collect
from services.registry.versions.compare import compare
from services.registry.versions.contract import contract_of
from services.registry.versions.overview import counts
from services.registry.versions.pushed import Measured, check_files, push_version
from services.registry.versions.retention import list_thinned, thinned_counts
from services.registry.watch import Watch


class _Undo(Exception):
    """Ends a transaction that only wanted to see."""


@dataclass(frozen=True)
class CatalogLimits:
    """Bounds and rules; the settings describe each."""

    lease_rules: LeaseRules
    upload_grace_seconds: float
    max_file_bytes: int
    max_watchers: int
    max_parameters: int
    shares: Mapping[str, int]
    """Models, schemas and pushed versions of one principal."""
    heartbeat_seconds: float
    source_hosts: Sequence[str] = ()
    keep_audit_entries: int = 1_000_000
    pack_after_seconds: float = 10.0
    keep_changes: int = KEEP_CHANGES


class Catalog(Decided):
    """Thread-safe. One per data folder: SQLite file, blobs and unfinished uploads live below it."""

    def __init__(
        self,
        data_dir: Path,
        limits: CatalogLimits,
        *,
        clock: Clock = time.time,
        shelf: Shelf | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        """
        Args:
            shelf: where the files are kept, if not in the folder.
            leadership: of a catalog in PostgreSQL, in place of SQLite's file.

        Raises:
            DataLoss, Unavailable.
        """
        self.is_open = True
        """Until the watches are ended; waits for changes look at it."""
        self._limits, self._lease_rules = limits, limits.lease_rules
        self._clock = clock
        self._teams = Teams(clock, self._is_held)
        shelf = shelf or InFolder(data_dir, keeps_patches=limits.pack_after_seconds > 0)
        self.blobs = Blobs(data_dir, max_file_bytes=limits.max_file_bytes, shelf=shelf)
        self._database = (
            Database.in_postgres(leadership, keep_changes=limits.keep_changes, clock=clock)
            if leadership
            else Database.in_file(data_dir / "catalog.sqlite", keep_changes=limits.keep_changes, clock=clock)
        )
        with self._database.write() as transaction:
            line.complete(transaction.connection)
        self.audit = AuditLog(self._database)
        self.observed = Observed(self._database, self.audit, clock)
        self.ended_sessions = EndedSessions(self._database)
        self.jobs = Jobs(self._database, self.audit)
        self._graphs = KnownGraphs()
        self._watch = Watch(
            self._database, heartbeat_seconds=limits.heartbeat_seconds, max_watchers=limits.max_watchers
        )

    @property
    def now(self) -> float:
        """Epoch seconds, as the catalog counts them."""
        return self._clock()

    def end_watches(self) -> None:
        """Ends every watch with Unavailable, so that the doors can close."""
        self.is_open = False
        self._watch.close()

    def close(self) -> None:
        self._watch.close()
        self.audit.close()
        self._database.close()

    # streams and models

    def register_stream(self, name: str, schema_json: str) -> Stream:
        with self.audit.call("register_stream", by="", stream=name) as transaction:
            stream = self._applied(transaction, "", stream=(name, schema_json)).stream
            assert stream is not None
            return stream

    get_stream = reading(streams.get_stream)
    list_streams = reading(streams.list_streams)

    def register_model(self, name: str, *, stream: str, files: Mapping[str, bytes], by: str) -> Model:
        """Raises Conflict also where a layer would start anew that the definition does not name."""
        with self.audit.call("register_model", by=by, model=name, stream=stream, files=sorted(files)) as transaction:
            check_author(by, "")
            model = self._applied(transaction, by, model=(name, files), learns_from=stream).model
            assert model is not None
            return model

    def apply(
        self, *, stream: tuple[str, str] | None, model: tuple[str, Mapping[str, bytes]] | None, by: str, dry_run: bool
    ) -> Applied:
        """Both or neither; `dry_run` only returns the changes."""
        about = {"stream": stream[0] if stream else "", "model": model[0] if model else ""}
        call = Call("apply", by, about, only_changes=dry_run)
        try:
            with self.audit.refusals(call), self.audit.change(call) as transaction:
                check_author(by, "")
                applied = self._applied(transaction, by, stream=stream, model=model)
                call.outcome = {"stream_change": applied.stream_change, "model_change": applied.model_change}
                if dry_run:
                    raise _Undo
        except _Undo:
            pass
        return applied

    def _applied(
        self, transaction: Transaction, by: str, *, stream: tuple[str, str] | None = None,
        model: tuple[str, Mapping[str, bytes]] | None = None, learns_from: str | None = None,
    ) -> Applied:  # fmt: skip
        with within_share(transaction.connection, self._limits.shares):
            applied = apply(transaction, stream=stream, model=model, learns_from=learns_from, by=by)
        if applied.stream is not None:
            streams.check_source(applied.stream, self._limits.source_hosts)
        if applied.model is not None and model is not None:
            most = self._limits.max_parameters
            models.check_parameters(transaction.connection, applied.model.stream, model[1], most=most)
        return applied

    get_model = reading(models.get_model)
    list_models = reading(models.list_models)
    get_definition = reading(models.get_definition)

    # rounds and leases

    def plan_round(self, plan: RoundPlan) -> Round:
        by = str(dict(plan.configuration.get("requested") or {}).get("by", "")) or "trainer"
        about = {"model": plan.model, "sequence": plan.sequence, "trigger": plan.trigger}
        about |= {FIRED: fired} if (fired := plan.configuration.get(FIRED)) else {}
        with self.audit.change(Call("plan_round", by, about, only_changes=True)) as transaction:
            return rounds.plan_round(transaction, plan)

    list_rounds = reading(rounds.list_rounds)
    recent_rounds = reading(rounds.recent_rounds)

    get_round = reading(rounds.get_round_of)

    def resume_point(self, round_id: str) -> ResumePoint | None:
        """The round's newest; None where none was saved. Raises NotFound."""
        with self._database.read() as connection:
            return rounds.resume_point_of(rounds.row_of(connection, round_id))

    def lease_round(
        self, holder: str, *, ttl_seconds: float, models: Sequence[str] = (), secret: str = ""
    ) -> Lease | None:
        leaseholder = leases.Holder(holder, secret)
        if self._teams.is_member(holder):
            return None
        with self._database.write() as transaction:
            return leases.lease_round(
                transaction, holder=leaseholder, ttl_seconds=ttl_seconds, models=models, rules=self._lease_rules
            )

    renew_lease = writing(leases.renew_lease)
    release_round = writing(leases.release_round)

    def offer_help(self, offer: Offer, *, left: str = "") -> Orders:
        return self._teams.offer(offer, left=left)

    def form_team(self, round_id: str, token: int, *, chief: Offer, most: int) -> TeamState:
        return self._teams.form(self._held(round_id, token), chief, most=most)

    def keep_team(self, round_id: str, token: int, *, chief: Offer, team: TeamState) -> TeamState:
        return self._teams.keep(self._held(round_id, token), chief, team)

    _held = reading(leases.held)

    def _is_held(self, lease: Lease) -> bool:
        with self._database.read() as connection:
            return leases.is_held(connection, lease, self._clock())

    def fail_round(self, round_id: str, token: int, *, reason: str, failure: JsonMap | None = None) -> Round:
        call = Call("fail_round", "trainer", {"round_id": round_id, "reason": reason})
        with self.audit.refusals(call), self.audit.change(call) as transaction:
            call.by = rounds.get_round(transaction.connection, round_id).lease_holder
            return leases.fail_round(
                transaction, round_id=round_id, token=token, reason=reason, failure=failure or {},
                rules=self._lease_rules,
            )  # fmt: skip

    def put_resume_point(self, round_id: str, token: int, *, state: JsonMap, files: Sequence[FileEntry]) -> Round:
        check_manifest(files)
        with self._database.write() as transaction:
            self._check_present(files)
            return leases.put_resume_point(transaction, round_id=round_id, token=token, state=state, files=files)

    # versions and aliases

    def register_version(self, round_id: str, token: int, draft: VersionDraft) -> Version:
        call = Call("register_version", "trainer", {"round_id": round_id, "weights_digest": draft.weights_digest})
        with self.audit.refusals(call):
            versions.check_draft(draft)
            self._check_present(draft.files)
            contract = self._contract_of(draft.files)
            with self.audit.change(call) as transaction:
                self._check_present(draft.files)
                call.by = rounds.get_round(transaction.connection, round_id).lease_holder or call.by
                made = versions.register_version(
                    transaction, round_id=round_id, token=token, draft=draft, contract=contract
                )
                call.outcome = _outcome_of(made)
                return made

    def push_version(
        self, model: str, files: Sequence[FileEntry], *, origin: str, by: str, reason: str,
        measured: Measured | None = None, signature: str = "",
    ) -> Version:  # fmt: skip
        """A SavedModel that was made elsewhere, as a version that a person may promote, or the gate where a trainer has
        measured it."""
        call = Call("push_version", by, {"model": model, "origin": origin, "reason": reason})
        with self.audit.refusals(call):
            check_files(files)
            self._check_present(files)
            contract = self._contract_of(files)
            with (
                self.audit.change(call) as transaction,
                within_share(transaction.connection, self._limits.shares, PUSHED),
            ):
                self._check_present(files)
                made = push_version(
                    transaction, model, files=files, contract=contract, origin=origin, by=by, reason=reason,
                    measured=measured, signature=signature,
                )  # fmt: skip
                call.outcome = _outcome_of(made)
                return made

    get_version = reading(versions.get_version)
    list_versions = reading(versions.list_versions)
    count_versions = reading(versions.count_versions)
    versions_of = reading(versions.versions_of)
    configurations = reading(versions.configurations_of)
    compare = reading(compare)

    def rollback_target(self, model: str) -> tuple[int, JsonMap]:
        """Where a rollback would lead now, and Model.rolled_back of then. Raises Conflict: there is nowhere to go."""
        with self._database.read() as connection:
            before = models.get_model(connection, model)
            target = aliases.back_to(connection, before)
            return target, rolled_back.outcome(connection, before, target, "")

    would_forget = reading(forgetting.outcome)
    forgotten_by = reading(models.forgotten_by)
    alias_history = reading(aliases.list_history)

    def history(self, **wanted: Any) -> list[HistoryEntry]:
        """As list_history takes it: the entries alone."""
        return [entry for _, entry in self.history_page(**wanted).entries]

    history_page = reading(list_history)

    # live quality

    get_evidence = reading(live.get_evidence)

    def put_evidence(self, model: str, evidence: Evidence) -> int:
        """Gives the new revision; as live.put_evidence."""
        about = {"version": evidence.back_from, "reason": evidence.reason} if evidence.back_from else evidence.canary
        if not about:
            with self._database.write() as transaction:
                return live.put_evidence(transaction, model, evidence)
        call = Call("judge", aliases.JUDGE, {"model": model, **about})
        with self.audit.change(call) as transaction:
            return live.put_evidence(transaction, model, evidence)

    live_quality = reading(live.live_quality)
    live_measured = reading(live.measured)
    live_evidence = reading(live.evidence_of)

    # files

    def collect(self, *, by: str = BY_REGISTRY) -> Collected:
        """`by`: the author; a run of the registry itself is in the audit log where it removed something."""
        self.audit.prune(self._limits.keep_audit_entries)
        return collect(
            self.audit,
            by,
            self._database,
            self.blobs,
            self._limits.upload_grace_seconds,
            log_starts=self.observed.reports.log_start,
            served=lambda model: {served.version for _, served in self.observed.reports.served(model)},
        )

    def pack(self) -> int:
        """Leaves patches alone of large files that were not read for a while; returns the bytes that this freed."""
        return self.blobs.pack(unused_since=self._clock() - self._limits.pack_after_seconds)

    thinned = reading(list_thinned)
    thinned_counts = reading(thinned_counts)

    # changes

    def watch(self, since_revision: int, *, is_active: Callable[[], bool], client: str = "") -> Iterator[Change]:
        return self._watch.follow(since_revision, is_active=is_active, client=client)

    @property
    def newest_revision(self) -> int:
        """Of the change log; 0 before the first change."""
        return self._watch.newest_revision

    def wake_watchers(self) -> None:
        self._watch.wake()

    # for operators

    @property
    def watcher_count(self) -> int:
        return self._watch.watcher_count

    counts = reading(counts)

    def _contract_of(self, files: Sequence[FileEntry]) -> JsonMap:
        return contract_of(files, lambda digest: b"".join(self.blobs.read(digest)), self._graphs.look_at)

    def _check_present(self, files: Sequence[FileEntry]) -> None:
        """Inside a writing transaction, which garbage collection waits for. Raises InvalidInput."""
        for file in files:
            size = self.blobs.size_of(file.digest)
            if size is None:
                raise InvalidInput(f"file {file.path} ({file.digest}) has not been uploaded")
            if size != file.size_bytes:
                raise InvalidInput(f"file {file.path} should have {file.size_bytes} bytes, it has {size}")


def _outcome_of(made: Version) -> dict[str, Any]:
    """As in the audit log."""
    decision = made.verdict.decision
    return {"model": made.model, "version": made.version, "decision": decision, "signed_by": made.signed_by}
