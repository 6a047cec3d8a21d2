"""An attempt at a leased round: fork its process, keep the lease, wait for its end, settle it with the registry."""

import logging
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

from common.errors import Conflict, HeadraceError, NotFound, Overloaded, Unavailable
from common.facts import present
from common.process.lifecycle import Stop
from common.process.own_time import OwnClock, Usage, clock_of
from common.registry.client import RegistryClient
from services.trainer import metrics
from services.trainer.control.cluster import TeamWatch
from services.trainer.control.endings import ADVICE, Ending, Outcome, words_of
from services.trainer.control.round_trace import RoundTrace
from services.trainer.control.score_process import ScoreProcess
from services.trainer.control.trusted_half import TrustedHalf
from services.trainer.control.zygote_client import RoundChild, RunsRounds
from services.trainer.protocol import crash_report
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Done, Failed, Message, Progress, Raised, Shrunk, Stopped, Waits
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.2
"""How often an attempt looks whether a stop was requested."""
_SCORE_LOOK_SECONDS = 0.02
"""While its version is registered: the process that scores it reports elsewhere."""
_END_GRACE_SECONDS = 10.0
"""How long a child may take to exit after its last message."""
_MAX_RETRY_INTERVAL_SECONDS = 1.0
MAX_DEATHS = 3
"""A round whose process died this often, in any of the trainers, fails."""
_MOST_WORDS = 500
"""Of how a round's process died, in the round's progress."""


class Activity(StrEnum):
    MOVES = "moves"
    """It has sent something new, or used a core."""
    STARVED = "starved"
    """It wants a core, or the disk, and has had next to none of it."""
    STALLED = "stalled"
    """It has sent nothing, used no core and wants none: it hangs, or waits for something that is away."""


_STARVED_SHARE, _STALLED_SHARE = 0.1, 0.01
"""Of one core over the stall limit: with less, a round that wants more is starved, a silent one is stalled."""


class Attempt:
    """Lives as long as one lease. `run` is called by the thread that owns the zygote; `progress` may be read by any.

    Crash of this process anywhere: the kernel kills the child, the lease runs out or is revoked by the restarted
    trainer, and the next attempt goes on from the newest resume point.
    """

    def __init__(
        self,
        assignment: RoundAssignment,
        *,
        registry: RegistryClient,
        zygote: RunsRounds,
        settings: TrainerSettings,
        company: TeamWatch | None = None,
        end_grace_seconds: float = _END_GRACE_SECONDS,
        trace: RoundTrace | None = None,
        clock_of: Callable[[int], OwnClock] = clock_of,
    ) -> None:
        self._trace, self._clock_of = trace, clock_of
        self.assignment = assignment
        self.progress = Progress("fork")
        self.began_at = time.time()
        self._registry, self._zygote, self._settings = registry, zygote, settings
        self._lease = assignment.lease
        self._deaths = int(assignment.round.progress.get("deaths", 0))
        self._died = str(assignment.round.progress.get("died", ""))
        self._last_word: Message | None = None
        self._lost_because = ""
        self._company, self._regroup_because = company, ""
        self._renew_at = 0.0
        self._valid_until = time.monotonic() + settings.lease_ttl_seconds
        self._kill_at: float | None = None
        self._next_kill_at = 0.0
        self._end_grace_seconds = end_grace_seconds
        self._child: RoundChild | None = None
        self._half: TrustedHalf | None = None
        self._scorer: ScoreProcess | None = None
        self._is_stop_sent = self._is_signalled = False
        self._stopped_because = "the trainer was stopped"
        self._started_at = self._heard_at = time.monotonic()
        self._clock = OwnClock(lambda: Usage(0.0, wants=False), self._started_at)
        self._own_when_heard = 0.0
        self._overdue_because = ""

    def run(self, stop: Stop) -> Ending:
        """Returns when the child has ended and the registry knows of it, or cannot be reached. Raises Unavailable: the
        zygote could not fork; the lease is given back."""
        self.start()
        while True:
            ending = self.step(stop, LOOK_SECONDS)
            if ending is not None:
                return ending

    def start(self) -> None:
        """Forks the child. Raises Unavailable: the zygote could not; the lease is given back."""
        try:
            self._child = self._zygote.spawn(self.assignment)
        except Unavailable as error:
            self._give_back(error.message)
            raise
        self._half = self._child.half
        if self._half is not None:
            limit = self._settings.export_trial_seconds
            self._scorer = ScoreProcess(self._half.scoring, self._zygote, limit_seconds=limit)
        self._started_at = self._heard_at = time.monotonic()
        self._clock = self._clock_of(self._child.pid)
        self._renew_at = self._started_at + self._settings.lease_ttl_seconds / 3

    def step(self, stop: Stop, timeout_seconds: float) -> Ending | None:
        """Waits at most the timeout for messages of the child and takes due steps; the ending, once it has ended."""
        child = self._child
        assert child is not None, "start() comes first"
        try:
            # At least once: a child that has ended may have left words.
            self._look(child, stop, timeout_seconds)
        except BaseException:
            self._zygote.signal(child, signal.SIGKILL)  # nobody would renew its lease
            if self._scorer is not None:
                self._scorer.end()
            self._zygote.forget(child)
            raise
        if not child.has_ended and not child.waits:
            return None
        if self._scorer is not None:
            self._scorer.end()
        self._zygote.forget(child)
        return self._settle(child, is_stop_sent=self._is_stop_sent)

    def look_at_round(self) -> None:
        """The registry reports a change of the round, which is read at the next step. From any thread."""
        self._renew_at = 0.0

    @property
    def silent_seconds(self) -> float:
        """How long the child has sent nothing new."""
        return time.monotonic() - self._heard_at

    @property
    def activity(self) -> Activity:
        """Over the last TRAINER_ROUND_STALL_SECONDS; a younger round moves."""
        lately = self._clock.lately(self._settings.round_stall_seconds)
        if lately is None:
            return Activity.MOVES
        share = lately.cpu_seconds / lately.seconds
        if share < _STARVED_SHARE and lately.starved_seconds > lately.seconds / 2:
            return Activity.STARVED
        is_silent = self.silent_seconds > self._settings.round_stall_seconds
        return Activity.STALLED if is_silent and share < _STALLED_SHARE else Activity.MOVES

    def usage(self) -> dict[str, object]:
        """How the round fares on this machine; for /v1/status, reports, and the round's progress."""
        return {
            "activity": str(self.activity),
            "cpu_seconds": round(self._clock.cpu_seconds, 1),
            "starved_seconds": round(self._clock.starved_seconds, 1),
            "wall_seconds": round(self._clock.wall_seconds, 1),
            "silent_seconds": round(self.silent_seconds, 1),
        }

    def _look(self, child: RoundChild, stop: Stop, timeout_seconds: float) -> None:
        if self._scorer is not None and self.progress.stage == "register":
            timeout_seconds = min(timeout_seconds, _SCORE_LOOK_SECONDS)
        for message in self._zygote.wait(child, timeout_seconds):
            if isinstance(message, Waits):
                self._let_wait(child)
            else:
                self._hear(message)
        now = time.monotonic()
        self._count_own_time(now)
        if self._scorer is not None and self._scorer.step():
            self._own_when_heard = self._clock.own_seconds  # the child waits for it
        if stop.is_requested() and not self._is_stop_sent:
            self._is_stop_sent = True
            self._send_stop(child)
        self._look_at_limits(now)
        if self._company is not None and self._is_open() and not self._is_stop_sent:
            self._look_at_company(child, self._company, now)
        if self._kill_at is not None and now > max(self._kill_at, self._next_kill_at):
            self._next_kill_at = now + LOOK_SECONDS
            self._signal(child, signal.SIGKILL)
        if now >= self._renew_at and not child.has_ended and self._is_open():
            self._renew(child)

    def _count_own_time(self, now: float) -> None:
        clock, model = self._clock, self.assignment.plan.model
        cpu_before, starved_before = clock.cpu_seconds, clock.starved_seconds
        clock.look(now)
        metrics.ROUND_CPU_SECONDS.labels(model).inc(clock.cpu_seconds - cpu_before)
        metrics.ROUND_STARVED_SECONDS.labels(model).inc(max(0.0, clock.starved_seconds - starved_before))

    def _look_at_limits(self, now: float) -> None:
        """A round that takes too long, or is stuck, is killed and fails: it would do the same again. Silence does not
        count the seconds in which the machine kept the round from going on."""
        settings, clock = self._settings, self._clock
        if self._overdue_because or not self._is_open():
            return
        used = f"{clock.cpu_seconds:.1f} CPU seconds in {now - self._started_at:.1f} s"
        where = f"it was in stage {self.progress.stage} after {self.progress.examples_done} examples, with {used}"
        if now - self._started_at > settings.round_timeout_seconds:
            limit = f"{settings.round_timeout_seconds:g} s (TRAINER_ROUND_TIMEOUT_SECONDS)"
            self._overdue_because = f"the round took more than {limit}; {where}"
        elif clock.own_seconds - self._own_when_heard > settings.round_silence_seconds:
            limit = f"{settings.round_silence_seconds:g} s (TRAINER_ROUND_SILENCE_SECONDS)"
            self._overdue_because = f"the round's process made no progress for {limit}; {where}"
        else:
            return
        self._kill_at = now

    def _look_at_company(self, child: RoundChild, company: TeamWatch, now: float) -> None:
        """A lost trainer ends the attempt; a trainer that wants to leave or to join, at the next block's end."""
        if self._regroup_because:
            return
        lost, change = company.look(self.assignment, self.progress, now - self._started_at)
        self._regroup_because = lost or change
        if lost:
            self._kill_at = now
            self._signal(child, signal.SIGKILL)
        elif change:
            self._send_stop(child)

    def _is_open(self) -> bool:
        return not isinstance(self._last_word, Done | Failed | Raised)

    def _hear(self, message: Message) -> None:
        self._heard_at, self._own_when_heard = time.monotonic(), self._clock.own_seconds
        if isinstance(message, Progress):
            self.progress = message
            match message.asynchronous:
                case {"staleness": {"mean": int() | float() as mean}}:
                    metrics.GRADIENT_STALENESS.labels(self.assignment.plan.model).set(mean)
            if self._trace is not None:
                self._trace.hear(message)
            return
        self._last_word = message
        self._kill_by(self._end_grace_seconds)

    def _let_wait(self, child: RoundChild) -> None:
        """A child with a stop sent would stop its next round."""
        if self._is_signalled:
            self._signal(child, signal.SIGKILL)
        else:
            child.waits = True

    def _signal(self, child: RoundChild, number: int) -> None:
        self._is_signalled = True
        self._zygote.signal(child, number)

    def _send_stop(self, child: RoundChild) -> None:
        self._signal(child, signal.SIGTERM)
        self._kill_by(self._settings.stop_grace_seconds)

    def _kill_by(self, grace_seconds: float) -> None:
        self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + grace_seconds)

    def _renew(self, child: RoundChild) -> None:
        ttl = self._settings.lease_ttl_seconds
        sent_at = time.monotonic()
        try:
            renewed = self._registry.renew_lease(self._lease, ttl_seconds=ttl, progress=self._progress_map())
        except (Conflict, NotFound) as error:
            self._on_refused(child, error)
            self._renew_at = sent_at + ttl / 3
        except (Unavailable, Overloaded) as error:
            if sent_at > self._valid_until + self._settings.lease_grace_seconds:
                self._lose(child, f"the registry has not renewed the lease: {error.message}")
            self._renew_at = time.monotonic() + min(ttl / 3, _MAX_RETRY_INTERVAL_SECONDS)
        else:
            self._valid_until = sent_at + ttl
            self._renew_at = sent_at + ttl / 3
            if renewed.round.stopped_by and not self._is_stop_sent:
                self._is_stop_sent = True
                self._stopped_because = f"stopped by {renewed.round.stopped_by}"
                self._send_stop(child)

    def _on_refused(self, child: RoundChild, error: Conflict | NotFound) -> None:
        """The lease is lost, or has just ended with a version, which the child has not reported yet."""
        if self._half is not None and (self._half.registers or self._half.version is not None):
            self._kill_by(self._end_grace_seconds)
            return
        self._lose(child, error.message)

    def _lose(self, child: RoundChild, reason: str) -> None:
        self._lost_because = reason
        self._kill_at = time.monotonic()
        self._signal(child, signal.SIGKILL)

    def _progress_map(self) -> dict[str, object]:
        kept = present(regrouped=self.assignment.round.progress.get("regrouped"), died=self._died)
        return {**asdict(self.progress), "deaths": self._deaths, "began_at": self.began_at, **self.usage(), **kept}

    def _settle(self, child: RoundChild, *, is_stop_sent: bool) -> Ending:
        word, made = self._last_word, self._half.version if self._half is not None else None
        if made is not None:
            done = word if isinstance(word, Done) else Done()
            return Ending(
                Outcome.DONE, "", made.version, str(made.verdict.decision), made.events_trained,
                traces=done.traces, process=done.process,
            )  # fmt: skip
        if self._lost_because:
            return Ending(Outcome.LOST, self._lost_because)
        if self._half is not None and self._half.refused:
            return self._fail(self._half.refused)
        if self._overdue_because and not isinstance(word, Failed | Raised):
            return self._fail(self._overdue_because)
        if self._regroup_because and not is_stop_sent and not isinstance(word, Failed | Raised):
            return Ending(Outcome.REGROUPED, self._regroup_because)
        if isinstance(word, Failed):
            return self._fail(f"{word.kind}: {word.reason}", advice=ADVICE.get(word.kind, ""), not_finite=word.told)
        if isinstance(word, Raised):
            return self._settle_raised(word)
        if isinstance(word, Stopped) or is_stop_sent:
            return self._give_back(self._stopped_because, outcome=Outcome.STOPPED)
        if isinstance(word, Shrunk):
            return Ending(Outcome.SHRUNK, word.reason, workers=word.workers)
        if child.zygote_died:
            return self._give_back("the process that forks rounds died", outcome=Outcome.RETRY)
        return self._die(words_of(child.status or 0), advice=ADVICE.get(child.status or 0, ""))

    def _settle_raised(self, raised: Raised) -> Ending:
        reason = f"{raised.error}: {raised.message}"
        if raised.error in ("InvalidInput", "DataLoss"):
            return self._fail(reason)
        if raised.error in ("Unavailable", "Overloaded"):
            return self._give_back(reason, outcome=Outcome.RETRY)
        return self._die(reason)

    def _die(self, reason: str, *, advice: str = "") -> Ending:
        self._deaths += 1
        reason = f"{reason} (in stage {self.progress.stage} after {self.progress.examples_done} examples)"
        self._died = reason[:_MOST_WORDS]
        if self._deaths >= MAX_DEATHS:
            return self._fail(f"its process died {self._deaths} times, the last time: {reason}", advice=advice)
        try:
            self._registry.renew_lease(
                self._lease, ttl_seconds=self._settings.lease_ttl_seconds, progress=self._progress_map()
            )
        except Conflict as error:
            return Ending(Outcome.LOST, error.message)
        except HeadraceError as error:
            logger.warning("a death could not be counted", extra={"error": error.message})
        return self._give_back(reason, outcome=Outcome.DIED)

    def _fail(self, reason: str, *, advice: str = "", not_finite: Mapping[str, Any] | None = None) -> Ending:
        """`not_finite`: facts of a value that is not finite, which only training makes."""
        left = crash_report.read(Path(self.assignment.work_dir))
        failure = {
            "stage": "train" if not_finite else self.progress.stage,
            "place": crash_report.place_in(reason) or left.place,
            "advice": advice,
            "log": left.lines,
            **present(not_finite={name: fact for name, fact in (not_finite or {}).items() if fact}),
        }
        try:
            self._registry.fail_round(self._lease, reason=reason, failure=failure)
        except Conflict as error:
            return Ending(Outcome.LOST, error.message)
        except HeadraceError as error:
            return Ending(Outcome.RETRY, f"{reason} (the registry could not be reached: {error.message})")
        return Ending(Outcome.FAILED, reason)

    def _give_back(self, reason: str, *, outcome: Outcome = Outcome.RETRY) -> Ending:
        try:
            self._registry.release_round(self._lease, reason=reason)
        except Conflict as error:
            return Ending(Outcome.LOST, error.message)
        except HeadraceError as error:
            logger.warning("a lease runs out instead of being given back", extra={"error": error.message})
        return Ending(outcome, reason)
