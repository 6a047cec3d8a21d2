"""The lease loop: take a round, run it in a process of its own, settle it, take the next.

One round at a time; more trainers take more. A holder's name and secret are kept over restarts, so that a restarted
trainer gets its own round back at once instead of waiting for the lease to run out.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.errors import Conflict, HeadraceError, NotFound, Unavailable
from common.process.health import Health
from common.process.lifecycle import Stop
from common.process.tracing import OFF, Tracing
from common.registry.catalog import Lease
from common.registry.client import RegistryClient
from services.trainer import metrics
from services.trainer.control import work_dirs
from services.trainer.control.attempt import LOOK_SECONDS, Attempt, Ending, Outcome
from services.trainer.control.cluster import Cluster, TeamWatch
from services.trainer.control.helping import Helping
from services.trainer.control.pauses import ModelPauses
from services.trainer.control.profile_request import ProfileRequest
from services.trainer.control.rebuilds import Rebuilds
from services.trainer.control.round_trace import RoundTrace
from services.trainer.control.zygote_client import ZygoteClient
from services.trainer.protocol.assignment import LIVE_EVENTS, RoundAssignment
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
IDLE_SECONDS = 1.0
"""How often to ask for a round when nobody says that there is one (another trainer's lease may have run out)."""
_MOST_SET_ASIDE = 3
_GOES_ON = (Outcome.SHRUNK, Outcome.REGROUPED)
_KEPT_VERSIONS = 3


class RoundLoop:
    """`run` is the loop, in a thread that lives as long as the service (the zygote's life hangs on it).

    Args:
        holder, secret: the name under which rounds are leased, and what proves it (identity.py).
        rebuilds: versions to train again; each takes its turn before the next round.
        known_models: the models that there are; asked only while some of them are backing off.
        on_ended: told after each attempt, so that the next round is planned at once.
        cluster: other trainers; None where this one computes its rounds alone.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        holder: str,
        secret: str,
        registry: RegistryClient,
        round_function: str,
        health: Health,
        rebuilds: Rebuilds,
        known_models: Callable[[], Sequence[str]],
        on_ended: Callable[[], None],
        cluster: Cluster | None = None,
        tracing: Tracing = OFF,
    ) -> None:
        self.holder, self._tracing = holder, tracing
        self.attempt: Attempt | None = None
        """The one that is running; for /v1/status."""
        self.helping: Helping | None = None
        """With a round of another trainer; for /v1/status."""
        self._secret, self._cluster = secret, cluster
        self._settings, self._registry, self._health = settings, registry, health
        self._rebuilds, self._known_models, self._on_ended = rebuilds, known_models, on_ended
        self._zygote = ZygoteClient(
            round_function,
            nice=settings.nice,
            scheduling=settings.scheduling,
            log_format=settings.log_format,
            log_level=settings.log_level,
        )
        self._pauses = ModelPauses()
        self._workers_left = dict[str, int]()  # by round that has lost some
        self._has_rebuilt = False  # rounds and rebuilds take turns
        self.set_aside: tuple[_Running, ...] = ()
        """Rounds whose processes are silent before they have trained anything; others run meanwhile."""
        self._wake = threading.Event()

    def wake(self) -> None:
        """There may be a round to take, or the service stops. From any thread."""
        self._wake.set()

    def run(self, stop: Stop) -> None:
        """Until the stop; then the running round is given back and the zygote ended."""
        work_dirs.remove_old(self._rounds_dir)
        shutil.rmtree(self._settings.data_dir / "rebuilds", ignore_errors=True)
        while not stop.is_requested():
            try:
                self._turn(stop)
            except Exception:
                logger.exception("the lease loop failed unexpectedly")
                stop.wait(IDLE_SECONDS)
        while self.set_aside:
            self._tend_set_aside(stop, LOOK_SECONDS)
        self._zygote.stop()

    def doing(self) -> dict[str, Any]:
        """The running attempt, or one that was set aside, for reports; {} while there is none."""
        attempt, helping = self.attempt, self.helping
        if attempt is None and helping is None and self.set_aside:
            attempt = self.set_aside[0].attempt
        if attempt is None:
            return {} if helping is None else {"helps": True, **helping.shown()}
        return {
            "round_id": attempt.assignment.round.round_id,
            "model": attempt.assignment.plan.model,
            "attempt": attempt.assignment.round.attempts,
            "began_at": attempt.began_at,
            "workers": attempt.assignment.workers,
            "trainers": list(attempt.assignment.trainers),
            **asdict(attempt.progress),
        }

    def live_events(self, round_id: str) -> bytes:
        """What the running round has written for TensorBoard so far; empty before its first block.

        Raises:
            NotFound: this trainer does not run that round.
        """
        running = [self.attempt, *(other.attempt for other in self.set_aside)]
        if not any(attempt and attempt.assignment.round.round_id == round_id for attempt in running):
            raise NotFound(f"this trainer does not run round {round_id}")
        path = self._rounds_dir / round_id / LIVE_EVENTS
        return path.read_bytes() if path.is_file() else b""

    def zygote_status(self) -> dict[str, Any]:
        return {
            "pid": self._zygote.pid,
            "ready": self._zygote.is_ready,
            "starts": self._zygote.start_count,
            "import_seconds": self._zygote.import_seconds,
        }

    def _turn(self, stop: Stop) -> None:
        if not self._zygote_is_ready():
            return
        self._wake.clear()
        self._tend_set_aside(stop, 0.0)
        rebuild = self._rebuilds.take() if not self.set_aside and not self._has_rebuilt else None
        self._has_rebuilt = rebuild is not None
        if rebuild is not None:
            self._rebuilds.run(rebuild, self._zygote, stop)
            return
        lease = self._lease() if self._cluster is None or self._cluster.leads else None
        if lease is None:
            if self._cluster is not None and not self.set_aside and self._help(self._cluster, stop):
                return
            self._wake.wait(LOOK_SECONDS if self.set_aside else IDLE_SECONDS)
            return
        self._run(lease, stop)

    def _help(self, cluster: Cluster, stop: Stop) -> bool:
        """Offers this trainer to the others; whether it has helped one."""
        try:
            membership = self._registry.offer_help(cluster.offer()).membership
        except HeadraceError as error:
            logger.debug("no round can be helped with", extra={"error": error.message})
            return False
        if membership is None:
            return False
        processes = max(1, len({*cluster.offer().addresses} & {*membership.addresses}))
        assignment = replace(
            self._assignment(membership.lease, suffix="-help"), workers=len(membership.addresses),
            addresses=membership.addresses, rank=membership.rank, processes=processes, team_id=membership.team_id,
        )  # fmt: skip
        self.helping = Helping(membership, assignment)
        try:
            self.helping.see_through(cluster, self._registry, self._zygote, self._settings, stop)
        finally:
            self.helping = None
            shutil.rmtree(assignment.work_dir, ignore_errors=True)
        return True

    def _zygote_is_ready(self) -> bool:
        starts = self._zygote.start_count
        ready = self._zygote.wait_until_ready(0.2)
        if ready:
            self._health.satisfy("zygote")
        else:
            self._health.fail("zygote", "importing TensorFlow")
        metrics.ZYGOTE_STARTS.inc(self._zygote.start_count - starts)
        return ready

    def _lease(self) -> Lease | None:
        models: Sequence[str] = ()
        waiting = self._pauses.waiting(time.monotonic()) | {running.model for running in self.set_aside}
        if waiting:
            models = [model for model in self._known_models() if model not in waiting]
            if not models:
                return None
        try:
            lease = self._registry.lease_round(
                self.holder,
                ttl_seconds=self._settings.lease_ttl_seconds,
                models=tuple(models),
                secret=self._secret,
            )
        except HeadraceError as error:
            logger.debug("no round can be leased", extra={"error": error.message})
            return None
        return lease

    def _run(self, lease: Lease, stop: Stop) -> None:
        """Attempt after attempt under one lease, until the round has ended or somebody else may have it."""
        found: Lease | None = lease
        while found is not None:
            try:
                found = self._run_once(found, stop)
            except (Conflict, NotFound, Unavailable) as error:
                logger.warning("a lease was lost between two attempts", extra={"error": error.message})
                return

    def _run_once(self, lease: Lease, stop: Stop) -> Lease | None:
        """The lease with its newest resume point, where the round goes on at once.

        Raises:
            Conflict, NotFound: the lease has ended meanwhile.
            Unavailable: the registry is away; the lease runs out, or comes back to this trainer.
        """
        plan, ttl_seconds = lease.round.plan, self._settings.lease_ttl_seconds
        profile = ProfileRequest.taken(self._registry, self.holder, plan.model, ttl_seconds=ttl_seconds)
        trace = RoundTrace(self._tracing, lease) if self._tracing.is_on else None
        assignment, company = self._assignment(lease), None
        if profile is not None:
            assignment = replace(assignment, profile_first=profile.first_step, profile_steps=profile.steps)
        if trace is not None:
            assignment = replace(assignment, traceparent=trace.traceparent)
        if self._cluster is not None:
            assignment, team = self._cluster.gathered(assignment, stop)
            company = TeamWatch(self._cluster, team, regroup_seconds=self._settings.cluster_regroup_seconds)
        attempt = Attempt(
            assignment,
            registry=self._registry,
            zygote=self._zygote,
            settings=self._settings,
            company=company,
            trace=trace,
        )
        named = {"model": plan.model, "round": lease.round.round_id, "attempt": lease.round.attempts}
        logger.info("round taken", extra={**named, "examples": plan.example_count, "trigger": plan.trigger})
        running = _Running(lease, attempt, trace, profile)
        self.attempt = attempt
        try:
            attempt.start()
            ending = self._see_through(running, stop)
        except Unavailable as error:
            ending = Ending(Outcome.RETRY, error.message)
        finally:
            self.attempt = None
        if ending is None:
            return None
        self._end(running, ending)
        return self._kept(lease, ending, stop) if ending.outcome in _GOES_ON else None

    def _kept(self, lease: Lease, ending: Ending, stop: Stop) -> Lease | None:
        if stop.is_requested():
            self._hand_back(lease, "the trainer was stopped")
            return None
        before = lease.round.progress.get("regrouped", {})
        regrouped = {"times": int(before.get("times", 0)) + 1, "because": ending.reason}
        progress = {**lease.round.progress, "regrouped": regrouped}
        return self._registry.renew_lease(lease, ttl_seconds=self._settings.lease_ttl_seconds, progress=progress)

    def _see_through(self, running: "_Running", stop: Stop) -> Ending | None:
        """Until it has ended; None when it is set aside, as it is silent before it has trained anything."""
        while True:
            ending = running.step(stop, LOOK_SECONDS)
            if ending is not None:
                return ending
            self._tend_set_aside(stop, 0.0)
            if self._may_be_set_aside(running) and not stop.is_requested():
                self.set_aside = (*self.set_aside, running)
                stage, silent = running.attempt.progress.stage, round(running.attempt.silent_seconds, 1)
                details = {"model": running.model, "stage": stage, "silent_seconds": silent}
                logger.warning("a round makes no progress; others go on beside it", extra=details)
                return None

    def _may_be_set_aside(self, running: "_Running") -> bool:
        attempt = running.attempt
        is_stuck = (
            attempt.silent_seconds > self._settings.round_set_aside_seconds and not attempt.progress.examples_done
        )
        return is_stuck and len(self.set_aside) < _MOST_SET_ASIDE

    def _tend_set_aside(self, stop: Stop, timeout_seconds: float) -> None:
        """Keeps their leases and limits, and hears of their ends."""
        for running in self.set_aside:
            ending = running.step(stop, timeout_seconds)
            if ending is not None:
                self.set_aside = tuple(other for other in self.set_aside if other is not running)
                self._end(running, ending)
                if ending.outcome in _GOES_ON:
                    self._hand_back(running.lease, ending.reason)

    def _end(self, running: "_Running", ending: Ending) -> None:
        lease = running.lease
        if running.profile is not None:
            running.profile.settle(ending)
        self._note(running, ending, seconds=time.time() - running.attempt.began_at)
        if running.trace is not None:
            running.trace.end(
                version=ending.version, decision=ending.decision, traces=ending.traces,
                error="" if ending.version else f"{ending.outcome}: {ending.reason}",
            )  # fmt: skip
        details = {"version": ending.version, "decision": ending.decision} if ending.version else {}
        reason = {"reason": ending.reason} if ending.reason else {}
        named = {"model": running.model, "round": lease.round.round_id, "attempt": lease.round.attempts}
        logger.info("round ended", extra={**named, "outcome": str(ending.outcome), **details, **reason})
        self._on_ended()

    def _note(self, running: "_Running", ending: Ending, *, seconds: float) -> None:
        lease, model = running.lease, running.model
        metrics.ROUNDS.labels(model, str(ending.outcome)).inc()
        if ending.outcome is Outcome.DONE:
            metrics.ROUND_SECONDS.labels(model).observe(seconds)
            metrics.EXAMPLES_TRAINED.labels(model).inc(ending.events_trained)
        if ending.outcome is Outcome.SHRUNK:
            self._workers_left[lease.round.round_id] = ending.workers
        if ending.outcome in _GOES_ON and self._cluster is not None and running.attempt.assignment.trainers:
            self._cluster.note_ended(running.attempt.assignment, running.attempt.progress)
        if ending.outcome in (Outcome.RETRY, Outcome.DIED):
            self._pauses.after_trouble(model, time.monotonic())
        if ending.outcome in (Outcome.DONE, Outcome.FAILED):
            self._workers_left.pop(lease.round.round_id, None)
            if self._cluster is not None:
                self._cluster.forget(lease.round.round_id)
            self._pauses.forget(model)
            shutil.rmtree(self._rounds_dir / lease.round.round_id, ignore_errors=True)
            work_dirs.keep_newest(self._cache_dir / model, _KEPT_VERSIONS)

    def _assignment(self, lease: Lease, *, suffix: str = "") -> RoundAssignment:
        work_dir = self._rounds_dir / (lease.round.round_id + suffix)
        work_dir.mkdir(parents=True, exist_ok=True)
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        configuration = lease.round.plan.configuration
        assignment = RoundAssignment(
            lease=lease,
            registry_address=self._settings.registry_address,
            event_log=self._settings.event_log,
            work_dir=str(work_dir),
            cache_dir=str(self._cache_dir),
            intra_op_threads=int(configuration["intra_op_threads"]),
            inter_op_threads=int(configuration["inter_op_threads"]),
            resume_interval_seconds=self._settings.resume_interval_seconds,
            devices=self._settings.devices,
            straggler_seconds=self._settings.straggler_seconds,
            exchange=self._settings.exchange,
            readers=self._settings.readers,
            max_parameters=self._settings.max_parameters,
            evaluator=self._settings.evaluator,
        )
        workers = min(self._workers_left.get(lease.round.round_id, self._settings.workers), assignment.shards)
        return replace(assignment, workers=workers, processes=workers)

    def _hand_back(self, lease: Lease, reason: str) -> None:
        try:
            self._registry.release_round(lease, reason=reason)
        except HeadraceError as error:
            logger.warning("a lease runs out instead of being given back", extra={"error": error.message})

    @property
    def _rounds_dir(self) -> Path:
        return self._settings.data_dir.absolute() / "rounds"

    @property
    def _cache_dir(self) -> Path:
        return self._settings.data_dir.absolute() / "cache"


@dataclass(frozen=True, eq=False)
class _Running:
    """A round under way."""

    lease: Lease
    attempt: Attempt
    trace: RoundTrace | None = None
    profile: ProfileRequest | None = None

    def step(self, stop: Stop, timeout_seconds: float) -> Ending | None:
        if self.profile is not None:
            self.profile.keep()
        return self.attempt.step(stop, timeout_seconds)

    @property
    def model(self) -> str:
        return self.lease.round.plan.model
