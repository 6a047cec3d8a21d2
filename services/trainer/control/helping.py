"""A trainer without a round of its own computes shards of another's: its control's side of it."""

import logging
import math
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.errors import HeadraceError
from common.process.lifecycle import Stop
from common.registry.client import RegistryClient
from common.registry.teams import AGAIN_SECONDS, PRESENCE_SECONDS, Membership
from services.trainer.control.assignments import Assignments
from services.trainer.control.attempt import LOOK_SECONDS
from services.trainer.control.cluster import Cluster
from services.trainer.control.endings import words_of
from services.trainer.control.removing import remove
from services.trainer.control.zygote_client import RoundChild, ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Helped, Progress, Raised, Shrunk
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
_KILL_SECONDS = 10.0


@dataclass
class Helping:
    """A membership, until the round ends, the team is lost, or this trainer stops; for /v1/status too.

    Args:
        assignment: the chief's round, with this trainer's rank.
    """

    membership: Membership
    assignment: RoundAssignment
    progress: Progress = field(default_factory=lambda: Progress("fork"))
    _released: str = ""
    _left: str = ""

    def shown(self) -> dict[str, Any]:
        return {
            "round_id": self.assignment.round.round_id,
            "model": self.assignment.plan.model,
            "rank": self.assignment.rank,
            "workers": self.assignment.workers,
            **self.progress.place(),
        }

    def see_through(
        self, cluster: Cluster, registry: RegistryClient, zygote: ZygoteClient, settings: TrainerSettings, stop: Stop
    ) -> None:
        """Raises Unavailable: the zygote could not fork; the team gets a report."""
        team_id = self.membership.team_id
        try:
            child = zygote.spawn(self.assignment)
        except HeadraceError as error:
            self._report(cluster, registry, left=error.message)
            raise
        heard_at = time.monotonic()
        look_at = 0.0
        leave_by: float | None = None
        try:
            while not child.has_ended and not self._released:  # the next line reports a member that has left
                self._listen(child, zygote)
                now = time.monotonic()
                if stop.is_requested() and leave_by is None:
                    grace_seconds = 0.0 if self.assignment.is_asynchronous else settings.stop_grace_seconds
                    leave_by, look_at = now + grace_seconds, 0.0
                if leave_by is not None and now > leave_by:
                    self._left = "the trainer was stopped"
                    break
                if now < look_at:
                    continue
                look_at = now + PRESENCE_SECONDS
                try:
                    orders = registry.offer_help(cluster.offer(team_id=team_id, is_leaving=leave_by is not None))
                    heard_at = now
                    if not orders.goes_on:
                        self._released = "the round has ended or goes on with another team"
                except HeadraceError as error:
                    if now - heard_at > settings.lease_grace_seconds:
                        self._released = f"the registry does not answer: {error.message}"
            if child.has_ended and not self._released:
                self._listen(child, zygote)
                self._left = self._left or words_of(child.status or 0)
        finally:
            self._end(child, zygote)
        if self._left:
            self._report(cluster, registry, left=self._left)
        cluster.renew_ports()
        details = {"model": self.assignment.plan.model, "rank": self.assignment.rank}
        logger.info("helped with a round", extra={**details, "reason": self._left or self._released})

    def _listen(self, child: RoundChild, zygote: ZygoteClient) -> None:
        for message in zygote.wait(child, LOOK_SECONDS):
            if isinstance(message, Progress):
                self.progress = message
            elif isinstance(message, Helped):
                self.progress = Progress("done", self.progress.examples_done)
            elif isinstance(message, Raised):
                self._left = f"{message.error}: {message.message}"
            elif isinstance(message, Shrunk):
                self._left = message.reason

    def _end(self, child: RoundChild, zygote: ZygoteClient) -> None:
        """Kills the process if it still computes; nothing of it is kept."""
        deadline = time.monotonic() + _KILL_SECONDS
        while not child.has_ended and time.monotonic() < deadline:
            zygote.signal(child, signal.SIGKILL)
            zygote.wait(child, LOOK_SECONDS)
        zygote.forget(child)

    def _report(self, cluster: Cluster, registry: RegistryClient, *, left: str) -> None:
        try:
            registry.offer_help(cluster.offer(team_id=self.membership.team_id), left=left)
        except HeadraceError as error:
            logger.warning("a team does not know that this trainer has left", extra={"error": error.message})


class Helper:
    """Offers this trainer, where it is free, to the others of its cluster.

    Attributes:
        running: the round that it helps with; may be looked at from any thread.
    """

    def __init__(
        self,
        cluster: Cluster,
        registry: RegistryClient,
        zygote: ZygoteClient,
        settings: TrainerSettings,
        assignments: Assignments,
    ) -> None:
        self._cluster, self._registry, self._zygote = cluster, registry, zygote
        self._settings, self._assignments = settings, assignments
        self._offered_at, self._offer_seconds = -math.inf, AGAIN_SECONDS
        self._needed_at = 0.0
        self.running: Helping | None = None

    def has_helped(self, stop: Stop, *, at_once: bool) -> bool:
        """Whether it has helped with a round; unless `at_once`, it is offered now and then only."""
        if not at_once and time.monotonic() < self._offered_at + self._offer_seconds:
            return False
        self._offered_at = time.monotonic()
        try:
            orders = self._registry.offer_help(self._cluster.offer())
        except HeadraceError as error:
            logger.debug("no round can be helped with", extra={"error": error.message})
            return False
        self._offer_seconds = orders.next_seconds
        if orders.membership is not None:
            self._help(orders.membership, stop)
        return orders.membership is not None

    def _help(self, membership: Membership, stop: Stop) -> None:
        processes = max(1, len({*self._cluster.offer().addresses} & {*membership.addresses}))
        assignment = replace(
            self._assignments.of(membership.lease, suffix="-help"), workers=len(membership.addresses),
            addresses=membership.addresses, rank=membership.rank, processes=processes, team_id=membership.team_id,
        )  # fmt: skip
        self.running = Helping(membership, assignment)
        try:
            self.running.see_through(self._cluster, self._registry, self._zygote, self._settings, stop)
        finally:
            self.running, self._needed_at = None, 0.0
            remove(Path(assignment.work_dir))

    def end_if_needless(self, stop: Stop) -> None:
        """A trainer that only helps. It is counted from the moment at which it can."""
        self._needed_at = self._needed_at or time.monotonic()
        most = self._settings.helper_idle_seconds
        if most and time.monotonic() > self._needed_at + most:
            logger.info("no round has needed this trainer", extra={"seconds": most})
            stop.request()
