"""The lease loop: take a round, run it in a process of its own, settle it, take the next.

One round at a time; more trainers take more. Beside rounds that are stalled another is taken, TRAINER_ROUNDS_AT_ONCE in
all; beside one that uses a core, or is starved of it, none is: it would only be slower. A holder's name and secret are
kept over restarts, so that a restarted trainer gets its own round back at once instead of waiting for the lease to run
out.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from common.errors import Conflict, HeadraceError, NotFound, Unavailable
from common.process.beat import until_next
from common.process.health import Health
from common.process.lifecycle import Stop
from common.process.tracing import OFF, Tracing
from common.registry.catalog import Lease
from common.registry.client import RegistryClient
from common.registry.signing import Signer
from services.trainer import metrics
from services.trainer.control.assignments import Assignments
from services.trainer.control.attempt import LOOK_SECONDS, Activity, Attempt
from services.trainer.control.cluster import Cluster, TeamWatch
from services.trainer.control.endings import Ending, ModelPauses, Outcome
from services.trainer.control.helping import Helper, Helping
from services.trainer.control.processes import Processes
from services.trainer.control.profile_request import ProfileRequest
from services.trainer.control.rebuilds import Rebuilds
from services.trainer.control.round_trace import RoundTrace
from services.trainer.control.running import RunningRound, in_front
from services.trainer.control.sandboxing import check_machine, confining, environment_of
from services.trainer.control.signing import VersionSigner
from services.trainer.control.trusted_half import OpenRegistry, TrustedHalves
from services.trainer.control.zygote_client import ZygoteClient
from services.trainer.protocol.assignment import LIVE_EVENTS
from services.trainer.sandbox import confine
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
IDLE_SECONDS = 1.0
"""How often to request a round while a round is open (another trainer's lease may have run out)."""
_QUIET_SECONDS, _LOOK_SECONDS = 15.0, 2.5
"""How often while none is, since the watch reports a new round, at this period's multiples (beat.py); how often it is
looked then whether that is due, and whether the zygote is there."""
_MOST_LIVE_BYTES = 64 * 1024 * 1024
_GOES_ON = (Outcome.SHRUNK, Outcome.REGROUPED)


class RoundLoop:
    """`run` is the loop, in a thread that lives as long as the service (the zygote's life hangs on it).

    Args:
        holder, secret: the name under which rounds are leased, and its proof (identity.py).
        open_registry: for calls on behalf of rounds' processes.
        rebuilds: versions to train again; each takes its turn before the next round.
        known_models: the existing models; read only while some of them are backing off.
        has_open_rounds: whether a model has a round that is planned or runs, as far as this trainer has heard.
        on_ended: called after each attempt, so that the next round is planned at once.
        cluster: other trainers; None where this trainer computes its rounds alone.
        signer: of every version; None where none is signed.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        holder: str,
        secret: str,
        registry: RegistryClient,
        open_registry: OpenRegistry,
        round_function: str,
        health: Health,
        rebuilds: Rebuilds,
        known_models: Callable[[], Sequence[str]],
        has_open_rounds: Callable[[], bool],
        on_ended: Callable[[], None],
        cluster: Cluster | None = None,
        tracing: Tracing = OFF,
        signer: Signer | None = None,
    ) -> None:
        self.holder, self._tracing = holder, tracing
        self.signing_key_id = signer.key_id if signer else ""
        self._halves = TrustedHalves(
            open_registry, VersionSigner(signer, registry, holder) if signer else None, settings
        )
        self.running: tuple[RunningRound, ...] = ()
        """Oldest first; for /v1/status too."""
        self._secret, self._cluster = secret, cluster
        self._settings, self._registry, self._health = settings, registry, health
        self._rebuilds, self._on_ended = rebuilds, on_ended
        self._known_models, self._has_open_rounds = known_models, has_open_rounds
        self._assignments = Assignments(settings)
        self._zygote = ZygoteClient(
            round_function,
            nice=settings.nice,
            scheduling=settings.scheduling,
            log_format=settings.log_format,
            log_level=settings.log_level,
            environment=environment_of(settings),
            confined=confining(settings, registry),
            trusted_half=self._halves.of,
        )
        self.not_confined = check_machine(settings.sandbox, confine.not_confined())
        self._remark = f"rounds are not confined in {'; '.join(self.not_confined)}" if self.not_confined else ""
        if self._remark:
            logger.warning(self._remark)
        self._processes = Processes(settings, self._zygote)
        self._pauses = ModelPauses()
        self._has_rebuilt = False  # rounds and rebuilds take turns
        self._wake = threading.Event()
        self._looked_at = -_QUIET_SECONDS
        self._helper = Helper(cluster, registry, self._zygote, settings, self._assignments) if cluster else None

    def look_at_round(self, round_id: str) -> None:
        """It has changed in the registry. From any thread."""
        for running in self.running:
            if running.lease.round.round_id == round_id:
                running.attempt.look_at_round()

    def wake(self) -> None:
        """There may be a round to take, or the service stops. From any thread."""
        self._wake.set()

    def run(self, stop: Stop) -> None:
        """Until the stop; then the running rounds are given back and the zygote ended."""
        self._assignments.remove_old()
        while not stop.is_requested():
            try:
                self._turn(stop)
            except Exception:
                logger.exception("the lease loop failed unexpectedly")
                stop.wait(IDLE_SECONDS)
        while self.running:
            self._tend(stop)
        self._zygote.stop()
        self._processes.close()
        self._halves.close()

    @property
    def helping(self) -> Helping | None:
        """With a round of another trainer; for /v1/status."""
        return None if self._helper is None else self._helper.running

    @property
    def attempt(self) -> Attempt | None:
        """Of the round that this trainer is busy with."""
        front = in_front(self.running)
        return None if front is None else front.attempt

    def doing(self) -> dict[str, Any]:
        """The running attempt, or a stalled attempt, for reports; {} for none."""
        running, helping = self.running, self.helping
        if not running:
            return {} if helping is None else {"helps": True, **helping.shown()}
        attempt = (in_front(running) or running[0]).attempt
        return {
            "round_id": attempt.assignment.round.round_id,
            "model": attempt.assignment.plan.model,
            "attempt": attempt.assignment.round.attempts,
            "began_at": attempt.began_at,
            "workers": attempt.assignment.workers,
            "trainers": list(attempt.assignment.trainers),
            "rounds": len(running),
            **asdict(attempt.progress),
            **attempt.usage(),
        }

    def live_events(self, round_id: str) -> bytes:
        """The running round's events for TensorBoard so far; empty before its first block. Raises NotFound: this
        trainer does not run that round."""
        lease = next((running.lease for running in self.running if running.lease.round.round_id == round_id), None)
        if lease is None:
            raise NotFound(f"this trainer does not run round {round_id}")
        path = self._assignments.work_dir(lease) / LIVE_EVENTS
        if not path.is_file():
            return b""
        with path.open("rb") as file:  # The author's code can make it larger.
            return file.read(_MOST_LIVE_BYTES)

    def zygote_status(self) -> dict[str, Any]:
        return {
            "pid": self._zygote.pid,
            "ready": self._zygote.is_ready,
            "starts": self._zygote.start_count,
            "import_seconds": self._zygote.import_seconds,
            "warm": self._processes.shown(),
        }

    def _turn(self, stop: Stop) -> None:
        """Looks after running rounds, then takes as many as there is room for."""
        if self.running:
            self._tend(stop)
        if stop.is_requested() or not self._has_room() or not self._zygote_is_ready():
            return
        if self._helper is not None:
            self._helper.end_if_needless(stop)
        if not self._is_due():
            if not self.running and not self._has_helped(stop, at_once=False):
                self._wake.wait(until_next(_LOOK_SECONDS) if self._is_quiet() else IDLE_SECONDS)
            return
        self._wake.clear()
        self._looked_at = time.monotonic()
        if self.running:
            self._take_round(stop)
            return
        rebuild = None if self._has_rebuilt else self._rebuilds.take()
        if rebuild is not None:
            self._rebuilds.run(rebuild, self._zygote, stop)
        has_worked = rebuild is not None or self._take_round(stop)
        has_worked = has_worked or self._has_helped(stop, at_once=True)
        if has_worked or self._has_rebuilt:
            self._wake.set()
        else:
            self._wake.wait(IDLE_SECONDS)
        self._has_rebuilt = rebuild is not None

    def _has_helped(self, stop: Stop, *, at_once: bool) -> bool:
        return self._helper is not None and self._helper.has_helped(stop, at_once=at_once)

    def _is_due(self) -> bool:
        """Whether to request work of the registry."""
        now = time.monotonic()
        if self._is_quiet():
            return self._wake.is_set() or now // _QUIET_SECONDS != self._looked_at // _QUIET_SECONDS
        return self._wake.is_set() or now >= self._looked_at + IDLE_SECONDS

    def _is_quiet(self) -> bool:
        return not self._has_open_rounds() and not self._pauses.waiting(time.monotonic())

    def _has_room(self) -> bool:
        are_stalled = all(running.attempt.activity is Activity.STALLED for running in self.running)
        return are_stalled and len(self.running) < self._settings.usable_rounds_at_once()

    def _take_round(self, stop: Stop) -> bool:
        lease = self._lease() if self._cluster is None or self._cluster.leads else None
        if lease is not None:
            self._begin(lease, stop)
        return lease is not None

    def _zygote_is_ready(self) -> bool:
        starts = self._zygote.start_count
        ready = self._zygote.wait_until_ready(0.2)
        self._processes.tend()
        if ready:
            self._health.satisfy("zygote", but=self._remark)
        else:
            self._health.fail("zygote", "importing TensorFlow")
        metrics.ZYGOTE_STARTS.inc(self._zygote.start_count - starts)
        return ready

    def _lease(self) -> Lease | None:
        models: Sequence[str] = ()
        waiting = self._pauses.waiting(time.monotonic()) | {running.model for running in self.running}
        if waiting:
            models = [model for model in self._known_models() if model not in waiting]
            if not models:
                return None
        try:
            return self._registry.lease_round(
                self.holder, ttl_seconds=self._settings.lease_ttl_seconds, models=tuple(models), secret=self._secret
            )
        except HeadraceError as error:
            logger.debug("no round can be leased", extra={"error": error.message})
            return None

    def _begin(self, lease: Lease, stop: Stop) -> None:
        """An attempt under the lease."""
        try:
            running = self._prepared(lease, stop)
        except (Conflict, NotFound, Unavailable) as error:
            logger.warning("a lease was lost before its round began", extra={"error": error.message})
            return
        plan = lease.round.plan
        logger.info("round taken", extra={**running.named, "examples": plan.example_count, "trigger": plan.trigger})
        try:
            running.attempt.start()
        except Unavailable as error:
            self._end(running, Ending(Outcome.RETRY, error.message))
            return
        self.running = (*self.running, running)

    def _prepared(self, lease: Lease, stop: Stop) -> RunningRound:
        """Raises Conflict, NotFound: the lease has ended. Unavailable: the registry is away."""
        model, ttl_seconds = lease.round.plan.model, self._settings.lease_ttl_seconds
        profile = ProfileRequest.taken(self._registry, self.holder, model, ttl_seconds=ttl_seconds)
        trace = RoundTrace(self._tracing, lease) if self._tracing.is_on else None
        assignment, company = self._assignments.of(lease), None
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
            zygote=self._processes,
            settings=self._settings,
            company=company,
            trace=trace,
        )
        return RunningRound(lease, attempt, trace, profile)

    def _tend(self, stop: Stop) -> None:
        """Keeps the leases and limits of running rounds, and settles their ends; waits a little for the newest round's
        messages.

        A round that goes on with other processes is begun again here and now, whether it was stalled or not.
        """
        for running in self.running:
            try:
                ending = running.step(stop, LOOK_SECONDS if running is self.running[-1] else 0.0)
            except BaseException:
                self._leave(running)
                raise
            if ending is None:
                self._note_activity(running)
                continue
            self._leave(running)
            self._end(running, ending)
            lease = self._kept(running.lease, ending, stop) if ending.outcome in _GOES_ON else None
            if lease is not None:
                self._begin(lease, stop)
        self._count_activities()

    def _leave(self, running: RunningRound) -> None:
        self.running = tuple(other for other in self.running if other is not running)
        self._count_activities()

    def _count_activities(self) -> None:
        found = Counter(running.attempt.activity for running in self.running)
        for activity in Activity:
            metrics.RUNNING_ROUNDS.labels(str(activity)).set(found[activity])

    def _note_activity(self, running: RunningRound) -> None:
        activity, before = running.attempt.activity, running.activity
        running.activity = activity
        if activity is not before:
            details = {**running.named, "stage": running.attempt.progress.stage, **running.attempt.usage()}
            level = logging.INFO if activity is Activity.MOVES else logging.WARNING
            logger.log(
                level, f"a round is {activity}" if level == logging.WARNING else "a round moves again", extra=details
            )

    def _kept(self, lease: Lease, ending: Ending, stop: Stop) -> Lease | None:
        """The lease with its newest resume point, for the next attempt under it."""
        if stop.is_requested():
            self._hand_back(lease, "the trainer was stopped")
            return None
        before = lease.round.progress.get("regrouped", {})
        regrouped = {"times": int(before.get("times", 0)) + 1, "because": ending.reason}
        progress = {**lease.round.progress, "regrouped": regrouped}
        try:
            return self._registry.renew_lease(lease, ttl_seconds=self._settings.lease_ttl_seconds, progress=progress)
        except (Conflict, NotFound, Unavailable) as error:
            logger.warning("a lease was lost between two attempts", extra={"error": error.message})
            return None

    def _end(self, running: RunningRound, ending: Ending) -> None:
        running.settle(ending)
        self._note(running, ending)
        details = {"version": ending.version, "decision": ending.decision} if ending.version else {}
        reason = {"reason": ending.reason} if ending.reason else {}
        logger.info("round ended", extra={**running.named, "outcome": str(ending.outcome), **details, **reason})
        self._on_ended()

    def _note(self, running: RunningRound, ending: Ending) -> None:
        lease, model = running.lease, running.model
        metrics.ROUNDS.labels(model, str(ending.outcome)).inc()
        if ending.outcome is Outcome.DONE:
            metrics.ROUND_SECONDS.labels(model).observe(running.seconds)
            metrics.EXAMPLES_TRAINED.labels(model).inc(ending.events_trained)
            is_warm, because = bool(ending.process.get("warm")), str(ending.process.get("because", ""))
            metrics.ROUND_STARTS.labels(model, "warm" if is_warm else "cold", because).inc()
        if ending.outcome is Outcome.SHRUNK:
            self._assignments.note_workers(lease.round.round_id, ending.workers)
        if ending.outcome in _GOES_ON and self._cluster is not None and running.attempt.assignment.trainers:
            self._cluster.note_ended(running.attempt.assignment, running.attempt.progress)
        if ending.outcome in (Outcome.RETRY, Outcome.DIED):
            self._pauses.after_trouble(model, time.monotonic())
        if ending.outcome in (Outcome.DONE, Outcome.FAILED):
            if self._cluster is not None:
                self._cluster.forget(lease.round.round_id)
            self._pauses.forget(model)
            self._assignments.forget(lease)

    def _hand_back(self, lease: Lease, reason: str) -> None:
        try:
            self._registry.release_round(lease, reason=reason)
        except HeadraceError as error:
            logger.warning("a lease runs out instead of being given back", extra={"error": error.message})
