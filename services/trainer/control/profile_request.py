"""A requested trace of a model's next round, held by the trainer that runs the round."""

import logging
import time
from typing import Any, Self

from common.errors import HeadraceError
from common.registry.client import RegistryClient
from common.registry.jobs import Job, JobKind, JobState
from services.trainer.control.endings import Ending, Outcome

logger = logging.getLogger(__name__)


class ProfileRequest:
    """Kept while the round runs, so that another trainer gets it only where this trainer has died."""

    def __init__(self, registry: RegistryClient, job: Job, ttl_seconds: float) -> None:
        self._registry, self._job, self._ttl_seconds = registry, job, ttl_seconds
        self._kept_at = time.monotonic()
        self.first_step, self.steps = int(job.options["first_step"]), int(job.options["steps"])

    @classmethod
    def taken(cls, registry: RegistryClient, holder: str, model: str, *, ttl_seconds: float) -> Self | None:
        """None: no trace of the model is requested, or the registry is away."""
        try:
            job = registry.take_job(holder, JobKind.PROFILE, model=model, ttl_seconds=ttl_seconds)
        except HeadraceError as error:
            logger.debug("no profile can be read", extra={"error": error.message})
            return None
        return None if job is None else cls(registry, job, ttl_seconds)

    def keep(self) -> None:
        """To be called more often than the time to live."""
        if time.monotonic() >= self._kept_at + self._ttl_seconds / 4:
            self._kept_at = time.monotonic()
            self._report(JobState.RUNNING, {})

    def settle(self, ending: Ending) -> None:
        """Done with the version that has the trace; else it waits for the next attempt of any trainer."""
        if ending.outcome is not Outcome.DONE:
            self._report(JobState.WAITING, {})
            return
        last = self.first_step + self.steps - 1
        sentence = f"steps {self.first_step} to {last} of version {ending.version}'s round were traced"
        self._report(JobState.DONE, {"version": ending.version, "sentence": sentence})

    def _report(self, state: JobState, progress: dict[str, Any]) -> None:
        try:
            self._registry.report_job(self._job, state=state, progress=progress, ttl_seconds=self._ttl_seconds)
        except HeadraceError as error:
            logger.warning("a profile cannot be reported", extra={"state": str(state), "error": error.message})
