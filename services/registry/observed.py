"""What instances report, and what follows: who serves what, what production lacks, when a version has to go."""

import logging
from collections.abc import Mapping
from dataclasses import asdict

from common.errors import Conflict
from common.registry.catalog import CANARY, PRODUCTION, JsonMap, Model
from common.registry.live import BACK
from common.registry.reporting import Report
from services.registry.definitions import models
from services.registry.reports import NEXT_SECONDS, Reports, Serving
from services.registry.rounds.account import account, why
from services.registry.series import Series
from services.registry.store.audit import BY_REGISTRY, AuditLog, Call
from services.registry.store.database import Clock, Database, Transaction
from services.registry.versions import aliases, canaries, live, stages
from services.registry.versions.overview import overview

logger = logging.getLogger(__name__)
_MAX_REASON = 1500


class Observed:
    """Thread-safe. Reports are in memory: after a restart instances fill it again."""

    def __init__(self, database: Database, audit: AuditLog, clock: Clock) -> None:
        self._database, self._audit, self._clock = database, audit, clock
        self.reports = Reports(clock)
        self.series = Series(clock)

    def report(self, report: Report, *, peer: str = "") -> float:
        """Takes a report; returns the seconds until its next. Production leaves a version that no replica can load.

        Args:
            peer: the machine that it came from.
        """
        self.reports.take(report, peer)
        self.series.take(report)
        for model in {served.model for served in report.serves if served.given_up}:
            self._leave_if_unloadable(model)
        for model in {served.model for served in report.serves if served.given_up or CANARY in served.aliases}:
            self._take_back_if_unfit(model, report)
        return NEXT_SECONDS

    def instances(self) -> list[JsonMap]:
        now = self._clock()
        return [instance.to_mapping(now) for instance in self.reports.instances()]

    def overview(self) -> list[JsonMap]:
        """As GET /v1/overview shows it: every model, in a fixed number of questions to the store."""
        with self._database.read() as connection:
            found = overview(connection, self._clock())
        return [self._glance(model, moved_at, known) for model, moved_at, known in found]

    def _glance(self, model: Model, moved_at: float, known: JsonMap) -> JsonMap:
        counted = self.reports.counted(model.name)
        serving = self.reports.serving(model.name, model.aliases.get(PRODUCTION, 0), moved_at=moved_at)
        return {
            **asdict(model),
            **known,
            "serving": asdict(serving),
            "waiting_examples": counted["waiting"] if counted is not None else None,
            "why": why(model, counted, serving.failed),
        }

    def serving(self, model: Model) -> Serving:
        with self._database.read() as connection:
            moved_at = aliases.moved_at(connection, model.name)
        return self.reports.serving(model.name, model.aliases.get(PRODUCTION, 0), moved_at=moved_at)

    def served_by(self, model: str) -> dict[int, list[JsonMap]]:
        """{version: [{"instance_id", "state", "since", "aliases", "reason", "given_up"}]}, as replicas report."""
        found: dict[int, list[JsonMap]] = {}
        for instance, served in self.reports.served(model):
            shown = {key: value for key, value in asdict(served).items() if key not in ("model", "version")}
            found.setdefault(served.version, []).append({"instance_id": instance.report.instance_id, **shown})
        return found

    def _leave_if_unloadable(self, name: str) -> None:
        with self._database.read() as connection:
            if not models.is_registered(connection, name):
                return
            model, moved_at = models.get_model(connection, name), aliases.moved_at(connection, name)
        if model.pinned_version or not self.reports.unloadable(model, moved_at=moved_at):
            return
        call = Call("leave_unloadable", BY_REGISTRY, {"model": name}, only_changes=True)
        with self._audit.change(call) as transaction:
            model = models.get_model(transaction.connection, name)
            failed = self.reports.unloadable(model, moved_at=aliases.moved_at(transaction.connection, name))
            if failed:
                call.outcome = {"left_version": model.aliases[PRODUCTION]}
                self._leave(transaction, model, failed)

    def _take_back_if_unfit(self, name: str, report: Report) -> None:
        """The canary that this replica cannot load, or that takes more memory than its guard allows."""
        with self._database.read() as connection:
            known = models.is_registered(connection, name)
            canary = models.get_model(connection, name).canary if known else {}
        if not stages.is_open(canary) or not (reason := canaries.unfit(canary, name, report)):
            return
        decided = {"version": canary["version"], "stage": canary["stage"], "decision": BACK, "reason": reason}
        with self._audit.change(Call("judge", aliases.JUDGE, {"model": name, **decided})) as transaction:
            live.decide_canary(transaction, name, decided)

    def _leave(self, transaction: Transaction, model: Model, failed: Mapping[str, str]) -> None:
        version = model.aliases[PRODUCTION]
        reasons = "; ".join(sorted(set(failed.values())))[:_MAX_REASON]
        reason = f"no replica can load version {version} ({', '.join(sorted(failed))[:200]}): {reasons}"
        try:
            target = aliases.leave(transaction, model, by=BY_REGISTRY, reason=reason)
        except Conflict:
            return  # the first version, or nothing is left to go back to: its state names the fault
        logger.error("production went back", extra={"model": model.name, "version": target, "reason": reason})

    def account(self, name: str) -> JsonMap:
        with self._database.read() as connection:
            return account(connection, name, self.reports.counted(name))

    def why(self, name: str) -> JsonMap:
        with self._database.read() as connection:
            model = models.get_model(connection, name)
        return why(model, self.reports.counted(name), self.serving(model).failed)
