"""Versions that are trained again for a comparison, and models made elsewhere that are measured: jobs of the registry,
one at a time, between two rounds, under no round's lease.

The registry keeps the request and the result: of several trainers any may take it, and if that trainer dies
another does.
"""

import logging
import signal
import time
from dataclasses import asdict
from typing import Any

from common.errors import Conflict, HeadraceError
from common.process.lifecycle import Stop
from common.process.own_time import clock_of
from common.registry.catalog import PRODUCTION, Lease, Version
from common.registry.client import RegistryClient
from common.registry.jobs import Job, JobKind, JobState, measured_files
from services.trainer.control.removing import remove
from services.trainer.control.zygote_client import RoundChild, ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Failed, Figures, Message, Progress, Raised, Rebuilt
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
_LOOK_SECONDS = 0.2
_STOPPED = "the trainer was stopped"
_TAKEN = "another trainer has it"
_KINDS = (JobKind.REBUILD, JobKind.MEASURE)


class Rebuilds:
    """Of the lease loop's thread; `job` may be looked at from others."""

    def __init__(self, settings: TrainerSettings, registry: RegistryClient, *, holder: str) -> None:
        self._settings, self._registry, self._holder = settings, registry, holder
        self.job: Job | None = None
        """The job that runs here."""

    def take(self) -> Job | None:
        """None: there is nothing to do, or the registry is away."""
        try:
            ttl_seconds = self._settings.lease_ttl_seconds
            taken = (self._registry.take_job(self._holder, kind, ttl_seconds=ttl_seconds) for kind in _KINDS)
            return next(filter(None, taken), None)
        except HeadraceError as error:
            logger.debug("no job can be taken", extra={"error": error.message})
            return None

    def run(self, job: Job, zygote: ZygoteClient, stop: Stop) -> None:
        """In the thread that owns the zygote; returns once the job has ended, well or not."""
        self.job, began = job, time.monotonic()
        work_dir = self._settings.data_dir.absolute() / "rebuilds" / job.job_id
        named = {"model": job.model, "version": job.version}
        logger.info("job begins", extra={**named, "kind": str(job.kind)})
        state, report = JobState.FAILED, dict[str, Any]()
        try:
            work_dir.mkdir(parents=True)
            version = self._version(job)
            assignment = self._assignment(job, version, str(work_dir))
            child, word, killed_because = self._accompany(assignment, zygote, stop)
            if isinstance(word, Rebuilt):
                state, report = JobState.DONE, report_of(word, version, seconds=time.monotonic() - began)
            elif isinstance(word, Figures):
                seconds = round(time.monotonic() - began, 3)
                state, report = JobState.DONE, {"figures": asdict(word), "version": version.version, "seconds": seconds}
            else:
                report = {"reason": _why(child, word, killed_because)}
                state = JobState.WAITING if killed_because == _STOPPED else JobState.FAILED
        except (HeadraceError, OSError) as error:
            report = {"reason": f"its process could not be run: {error}"}
        finally:
            remove(work_dir)
        logger.info("job ended", extra={**named, "state": str(state), "reason": report.get("reason", "")})
        self._report(state, report)
        self.job = None

    def _report(self, state: JobState, report: dict[str, Any]) -> bool:
        """Whether the job is this trainer's yet, as far as the registry can be reached."""
        assert self.job is not None, "only a running job is reported"
        try:
            self.job = self._registry.report_job(
                self.job, state=state, progress=report, ttl_seconds=self._settings.lease_ttl_seconds
            )
        except Conflict as error:
            logger.warning("a job is no longer this trainer's", extra={"error": error.message})
            return False
        except HeadraceError as error:
            logger.warning("a job cannot be reported", extra={"error": error.message})
        return True

    def _version(self, job: Job) -> Version:
        """The version to train again, or the live version, beside which a model made elsewhere is measured."""
        if job.kind is JobKind.REBUILD:
            return self._registry.get_version(job.model, job.version)
        known = self._registry.get_model(job.model)
        return self._registry.get_version(job.model, known.aliases.get(PRODUCTION, 0) or known.head_version)

    def _assignment(self, job: Job, version: Version, work_dir: str) -> RoundAssignment:
        candidate = measured_files(job.options)
        last = version
        if candidate:
            last = self._registry.get_version(job.model, self._registry.get_model(job.model).head_version)
        its_round = self._registry.get_round(job.model, last.round_id)
        configuration = its_round.plan.configuration
        return RoundAssignment(
            lease=Lease(its_round, token=0, expires_at=0.0),
            event_log=self._settings.log_of_rounds,
            work_dir=work_dir,
            cache_dir=f"{work_dir}/cache",
            intra_op_threads=int(configuration["intra_op_threads"]),
            inter_op_threads=int(configuration["inter_op_threads"]),
            resume_interval_seconds=self._settings.resume_interval_seconds,
            readers=self._settings.readers,
            max_parameters=self._settings.max_parameters,
            rebuild_of=0 if candidate else version.version,
            candidate=candidate,
            against=version.version if candidate else 0,
        )

    def _accompany(
        self, assignment: RoundAssignment, zygote: ZygoteClient, stop: Stop
    ) -> tuple[RoundChild, Message | None, str]:
        """Until the child has ended: the child, its last word, and why it was killed where it was."""
        child = zygote.spawn(assignment)
        clock = clock_of(child.pid)
        reported_at, last_word, killed_because = 0.0, None, ""
        progress = Progress("fork")
        try:
            while True:  # At least once: a child that has ended may have left words.
                for message in zygote.wait(child, _LOOK_SECONDS):
                    if isinstance(message, Progress):
                        progress = message
                    else:
                        last_word = message
                clock.look(time.monotonic())
                if stop.is_requested():
                    killed_because = _STOPPED
                elif clock.own_seconds > self._settings.rebuild_timeout_seconds:
                    limit = f"{self._settings.rebuild_timeout_seconds:g} s (TRAINER_REBUILD_TIMEOUT_SECONDS)"
                    killed_because = f"it took longer than {limit}, with {clock.cpu_seconds:.1f} CPU seconds"
                elif not child.has_ended and time.monotonic() > reported_at + self._settings.lease_ttl_seconds / 4:
                    reported_at = time.monotonic()
                    killed_because = "" if self._report(JobState.RUNNING, progress.place()) else _TAKEN
                if killed_because:
                    zygote.signal(child, signal.SIGKILL)
                if child.has_ended:
                    return child, last_word, killed_because
        except BaseException:
            zygote.signal(child, signal.SIGKILL)
            raise
        finally:
            zygote.forget(child)


def report_of(found: Rebuilt, version: Version, *, seconds: float) -> dict[str, Any]:
    """The report that the registry keeps, and pages and commands show."""
    is_equal = not found.missing and not found.differences
    name = f"{version.model}@{version.version}"
    sentence = f"{name} is equal to the result of its lineage: weights {found.weights_digest[:12]}"
    if not found.reproducible:
        sentence = f"{name} was trained asynchronously; the result of its lineage has metrics within its tolerance"
    if not is_equal:
        why = (*found.missing, *found.differences)
        sentence = f"{name} is not equal to the result of its lineage: {why[0]}"
    facts = {name: value for name, value in asdict(found).items() if name != "weights_digest"}
    return {
        **facts,
        "equal": is_equal,
        "sentence": sentence,
        "expected_digest": version.weights_digest,
        "rebuilt_digest": found.weights_digest,
        "seconds": round(seconds, 3),
    }


def _why(child: RoundChild, word: Message | None, killed_because: str) -> str:
    if killed_because:
        return killed_because
    if isinstance(word, Raised):
        return f"{word.error}: {word.message}"
    if isinstance(word, Failed):
        return f"{word.kind}: {word.reason}"
    return f"its process ended with status {child.status} and without a result"
