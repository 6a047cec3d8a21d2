"""Jobs for the next free trainer: requested, taken under a time to live, reported on, ended.

A trainer that dies is not heard of until the time is over; then another takes the job, MAX_ATTEMPTS times in all.
"""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update

from common.errors import Conflict, InvalidInput, NotFound, Overloaded
from common.registry.catalog import ChangeKind, JsonMap
from common.registry.jobs import Job, JobKind, JobState, measured_files
from common.registry.plan_notes import PUSHED
from common.registry.wire import json_text
from services.registry.definitions.models import get_model
from services.registry.rounds.plans import get_round
from services.registry.store.audit import AuditLog
from services.registry.store.database import Database, Transaction
from services.registry.store.history import check_author, remember
from services.registry.store.manifest import check_manifest
from services.registry.store.tables import jobs, read_row, versions

MAX_OPEN, MAX_ENDED, MAX_ATTEMPTS = 50, 200, 5
MAX_OPTIONS_BYTES, MAX_REPORT_BYTES, MAX_ENDED_BYTES = 256 * 1024, 1024 * 1024, 16 * 1024 * 1024
_MAX_TTL_SECONDS = 86_400
_MAX_WORD, _MAX_HOLDER = 1000, 256
OPEN_JOBS = (str(JobState.WAITING), str(JobState.RUNNING))
_OPTIONS: Mapping[JobKind, Mapping[str, tuple[int, int]]] = {
    JobKind.REBUILD: {},
    JobKind.PROFILE: {"first_step": (0, 1_000_000), "steps": (1, 100)},
}
"""Whole numbers from and to."""
_NOTED = (JobKind.REBUILD, JobKind.PROFILE)
"""Kinds with a separate entry in the history; a measured version is pushed then."""


class Jobs:
    """Thread-safe: the catalog's database is."""

    def __init__(self, database: Database, audit: AuditLog) -> None:
        self._database, self._audit = database, audit

    def request(
        self, kind: str, *, model: str, version: int = 0, options: JsonMap | None = None, by: str, reason: str
    ) -> Job:
        """Returns the open job where an equal job is open.

        Raises:
            InvalidInput: an unknown kind or option. NotFound. Overloaded: MAX_OPEN are open.
            Conflict: the version was pushed; the model's next round is to be traced already; nothing to measure by.
        """
        with self._audit.call("ask_job", by=by, kind=kind, model=model, version=version, reason=reason) as transaction:
            check_author(by, reason)
            if kind not in set(JobKind):
                raise InvalidInput(f"a job is one of {', '.join(JobKind)}, got {kind[:50]!r}")
            wanted = Job(uuid.uuid4().hex, JobKind(kind), model, version, by, reason, 0.0, options=options or {})
            _check_options(wanted.kind, wanted.options)
            if not get_model(transaction.connection, model).head_version and wanted.kind is JobKind.MEASURE:
                raise Conflict(f"no round of {model} has made a version yet, so nothing is held out to judge by")
            if wanted.kind is JobKind.REBUILD:
                _check_was_trained(transaction.connection, model, version)
            return _requested(transaction, replace(wanted, asked_at=transaction.now))

    def listed(self, *, model: str = "", job_id: str = "") -> list[Job]:
        """The newest first. Raises NotFound when the named job does not exist."""
        with self._database.read() as connection:
            return _listed(connection, model=model, job_id=job_id)

    def take(self, holder: str, kind: str, *, model: str = "", ttl_seconds: float) -> Job | None:
        """The oldest free job; a job that was taken too often fails instead. Trainers call it every second."""
        _check_holding(holder, ttl_seconds)
        with self._database.read() as connection:
            if connection.execute(_takeable(holder, kind, model, self._database.now)).first() is None:
                return None
        with self._database.write() as transaction:
            return _taken(transaction, holder, kind, model, ttl_seconds=ttl_seconds)

    def report(
        self, job_id: str, holder: str, attempts: int, *, state: str, progress: JsonMap, ttl_seconds: float
    ) -> Job:
        """Renews, ends or gives back a job. Raises Conflict when it is no longer the caller's."""
        if state not in set(JobState):
            raise InvalidInput(f"a job's state is one of {', '.join(JobState)}, got {state[:50]!r}")
        _check_holding(holder, ttl_seconds)
        if not job_id:
            raise InvalidInput("job_id must name the job")
        if len(json_text(progress)) > MAX_REPORT_BYTES:
            raise InvalidInput(f"a job's report may have {MAX_REPORT_BYTES} bytes, got {len(json_text(progress))}")
        with self._database.write() as transaction:
            (job,) = _listed(transaction.connection, job_id=job_id)
            if (job.state, job.holder, job.attempts) != (JobState.RUNNING, holder, attempts):
                raise Conflict(
                    f"job {job_id} is no longer {holder}'s: it is {job.state}, {job.holder or 'nobody'} had it"
                )
            until = transaction.now + ttl_seconds
            return _change(transaction, job, state=JobState(state), progress=progress, until=until)


def _requested(transaction: Transaction, job: Job) -> Job:
    open_jobs = _listed(transaction.connection, only_open=True)
    if any(known.kind is job.kind is JobKind.PROFILE and known.model == job.model for known in open_jobs):
        raise Conflict(f"the next round of {job.model} is to be traced already; wait until it is done")
    named = (job.kind, job.model, job.version, job.options)
    for known in open_jobs:
        if (known.kind, known.model, known.version, known.options) == named:
            return known
    if len(open_jobs) >= MAX_OPEN:
        raise Overloaded(f"{MAX_OPEN} jobs wait for trainers already", retry_after_seconds=10)
    transaction.connection.execute(
        insert(jobs).values(
            job_id=job.job_id, kind=str(job.kind), model=job.model, version=job.version,
            options_json=json_text(job.options), asked_by=job.by, reason=job.reason, asked_at=job.asked_at,
            state=str(job.state),
        )
    )  # fmt: skip
    if job.kind in _NOTED:
        remember(transaction, str(job.kind), by=job.by, reason=job.reason, model=job.model, version=job.version)
    transaction.record(ChangeKind.MODEL, job.model)
    return job


def _listed(connection: Connection, *, model: str = "", job_id: str = "", only_open: bool = False) -> list[Job]:
    named = {jobs.c.model: model, jobs.c.job_id: job_id}
    query = select(jobs).where(*(column == value for column, value in named.items() if value))
    if only_open:
        query = query.where(jobs.c.state.in_(OPEN_JOBS))
    found = [_job_of(row) for row in connection.execute(query.order_by(jobs.c.asked_at.desc()))]
    if job_id and not found:
        raise NotFound(f"there is no job {job_id}; of those that have ended the newest {MAX_ENDED} are kept")
    return found


def _taken(transaction: Transaction, holder: str, kind: str, model: str, *, ttl_seconds: float) -> Job | None:
    while (row := transaction.connection.execute(_takeable(holder, kind, model, transaction.now)).first()) is not None:
        job = _job_of(row)
        if job.attempts < MAX_ATTEMPTS:
            until = transaction.now + ttl_seconds
            taken = replace(job, holder=holder, attempts=job.attempts + 1)
            return _change(transaction, taken, state=JobState.RUNNING, progress={}, until=until)
        why = f"it was taken {MAX_ATTEMPTS} times and never ended; {job.holder} had it last"
        _change(transaction, job, state=JobState.FAILED, progress={"reason": why}, until=0.0)
    return None


def _change(transaction: Transaction, job: Job, *, state: JobState, progress: JsonMap, until: float) -> Job:
    after = replace(job, state=state, told=progress)
    after = after if after.is_open else replace(after, ended_at=transaction.now)
    transaction.connection.execute(
        update(jobs).where(jobs.c.job_id == job.job_id).values(
            state=str(state), told_json=json_text(progress), held_until=until, ended_at=after.ended_at,
            holder=after.holder, attempts=after.attempts,
        )
    )  # fmt: skip
    if not after.is_open:
        _forget_oldest(transaction.connection)
    if not after.is_open and job.kind in _NOTED:
        word = str(progress.get("sentence") or progress.get("reason") or state)[:_MAX_WORD]
        number = job.version or _number(progress.get("version"))
        remember(transaction, f"{job.kind}_ended", by=job.holder, reason=word, model=job.model, version=number)
    if state is not job.state:
        transaction.record(ChangeKind.MODEL, job.model)
    return after


def _number(value: object) -> int:
    """Of the version that a holder names; 0 where it names none."""
    return value if isinstance(value, int) and 0 < value < 2**63 else 0


def _takeable(holder: str, kind: str, model: str, now: float) -> Any:
    running = jobs.c.state == str(JobState.RUNNING)
    free = or_(
        jobs.c.state == str(JobState.WAITING), and_(running, or_(jobs.c.held_until < now, jobs.c.holder == holder))
    )
    of_model = (jobs.c.model == model,) if model else ()
    return select(jobs).where(jobs.c.kind == kind, free, *of_model).order_by(jobs.c.asked_at).limit(1)


def _check_holding(holder: str, ttl_seconds: float) -> None:
    if not 0 < len(holder) <= _MAX_HOLDER or not 0 < ttl_seconds <= _MAX_TTL_SECONDS:
        raise InvalidInput(
            f"a holder of at most {_MAX_HOLDER} characters and up to {_MAX_TTL_SECONDS} s are needed, got "
            f"{holder[:50]!r}, {ttl_seconds:g} s"
        )


def _check_was_trained(connection: Connection, model: str, version: int) -> None:
    query = select(versions.c.round_id).where(versions.c.model == model, versions.c.version == version)
    found = connection.execute(query).first()
    if found is None:
        raise NotFound(f"there is no version {version} of {model}")
    if get_round(connection, found.round_id).plan.trigger == PUSHED:
        pushed = f"{model}@{version} was pushed and not trained here"
        raise Conflict(f"{pushed}, so there is nothing to train it again from")


def _check_options(kind: JobKind, options: Mapping[str, Any]) -> None:
    if len(json_text(options)) > MAX_OPTIONS_BYTES:
        raise InvalidInput(f"a job's options may have {MAX_OPTIONS_BYTES} bytes, got {len(json_text(options))}")
    if kind is JobKind.MEASURE:
        if set(options) != {"files"} or not options["files"]:
            raise InvalidInput("to measure a SavedModel its files are needed, and nothing else")
        check_manifest(measured_files(options))
        return
    known = _OPTIONS[kind]
    if set(options) != set(known):
        raise InvalidInput(
            f"a {kind} takes the options {', '.join(known) or 'none'}, got {', '.join(options) or 'none'}"
        )
    for name, (least, most) in known.items():
        value = options[name]
        if type(value) is not int or not least <= value <= most:
            raise InvalidInput(f"{name} is {value!r}, expected a whole number from {least} to {most}")


def _forget_oldest(connection: Connection) -> None:
    """Keeps the newest MAX_ENDED of those that have ended, as far as MAX_ENDED_BYTES hold them: lists read all."""
    size = func.length(jobs.c.told_json) + func.length(jobs.c.options_json)
    ended = select(jobs.c.job_id, size).where(jobs.c.state.not_in(OPEN_JOBS)).order_by(jobs.c.ended_at.desc())
    room, forgotten = MAX_ENDED_BYTES, []
    for place, (job_id, size_bytes) in enumerate(connection.execute(ended)):
        room -= size_bytes
        if place >= MAX_ENDED or (room < 0 and place):
            forgotten.append(job_id)
    connection.execute(delete(jobs).where(jobs.c.job_id.in_(forgotten)))


def _job_of(row: Row[Any]) -> Job:
    return read_row(row._mapping, Job, kind=JobKind(row.kind), by=row.asked_by, state=JobState(row.state))
