"""Changes that a person decides: the audit log has who and why. `Catalog` inherits them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from common.registry.catalog import PRODUCTION, JsonMap, Model, Round, Stream
from services.registry.lifecycle import decisions as lifecycle
from services.registry.lifecycle import forgetting
from services.registry.observed import Observed
from services.registry.rounds import leases
from services.registry.rounds import plans as rounds
from services.registry.rounds.leases import LeaseRules
from services.registry.store.audit import AuditLog, Call
from services.registry.store.database import Database, Transaction
from services.registry.store.history import check_author, remember
from services.registry.versions import aliases

ModelChange = Literal["pause", "resume", "unpin", "archive", "restore"]
StreamChange = Literal["archive", "restore"]
RoundChange = Literal["fail", "stop", "resume"]


class Decided:
    audit: AuditLog
    observed: Observed
    _database: Database
    _lease_rules: LeaseRules

    @contextmanager
    def _decided(self, action: str, *, by: str, reason: str, **about: Any) -> Iterator[Transaction]:
        """A change that a person decides. Raises InvalidInput: no author is named."""
        with self.audit.call(action, by=by, reason=reason, **about) as transaction:
            check_author(by, reason)
            yield transaction

    def change_round(self, model: str, round_id: str, how: RoundChange, *, by: str, reason: str) -> Round:
        """A person's decision. Raises NotFound, also when the round is another model's; Conflict, InvalidInput."""
        changes: dict[RoundChange, Callable[..., Round]] = {
            "fail": partial(leases.fail_round_by_hand, rules=self._lease_rules),
            "stop": leases.stop_round,
            "resume": leases.resume_round,
        }
        with self._decided(f"{how}_round", by=by, reason=reason, model=model, round_id=round_id) as transaction:
            rounds.get_round_of(transaction.connection, model, round_id)
            return changes[how](transaction, round_id=round_id, by=by, reason=reason)

    def set_alias(self, model: str, alias: str, version: int, *, by: str, reason: str) -> Model:
        about = {"model": model, "alias": alias, "version": version}
        with self._decided("set_alias", by=by, reason=reason, **about) as transaction:
            return aliases.set_alias(transaction, model, alias, version, by=by, reason=reason)

    def rollback(self, model: str, *, by: str, reason: str, events: str = "") -> Model:
        call = Call("rollback", by, {"model": model, "reason": reason, "events": events})
        with self.audit.refusals(call), self.audit.change(call) as transaction:
            check_author(by, reason)
            moved = aliases.rollback(transaction, model, by=by, reason=reason, events=events)
            call.outcome = {"version": moved.aliases.get(PRODUCTION, 0)}
            return moved

    def forget(self, model: str, selection: JsonMap, *, by: str, reason: str) -> JsonMap:
        """As forgetting.forget; of the events the audit log has how many they are."""
        about = {"model": model, "examples": selection.get("examples")}
        with self._decided("forget", by=by, reason=reason, **about) as transaction:
            return forgetting.forget(transaction, model, selection, by=by, reason=reason)

    def note(self, action: str, *, by: str, reason: str, model: str = "", stream: str = "") -> None:
        """Writes a request to another service through this one into the history."""
        with self._decided(f"ask_{action}", by=by, reason=reason, model=model, stream=stream) as transaction:
            remember(transaction, action, by=by, reason=reason, model=model, stream=stream)

    def change_model(self, name: str, how: ModelChange, *, by: str, reason: str) -> Model:
        change = {
            "pause": lifecycle.pause,
            "resume": lifecycle.resume,
            "unpin": lifecycle.unpin,
            "archive": lifecycle.archive_model,
            "restore": lifecycle.restore_model,
        }[how]
        with self._decided(f"{how}_model", by=by, reason=reason, model=name) as transaction:
            return change(transaction, name, by=by, reason=reason)

    def pin(self, name: str, version: int, *, by: str, reason: str) -> Model:
        with self._decided("pin_model", by=by, reason=reason, model=name, version=version) as transaction:
            return lifecycle.pin(transaction, name, version, by=by, reason=reason)

    def change_stream(self, name: str, how: StreamChange, *, by: str, reason: str) -> Stream:
        change = {"archive": lifecycle.archive_stream, "restore": lifecycle.restore_stream}[how]
        with self._decided(f"{how}_stream", by=by, reason=reason, stream=name) as transaction:
            return change(transaction, name, by=by, reason=reason)

    def delete_model(self, name: str, *, by: str, reason: str, dry_run: bool = False) -> None:
        """With dry_run only refuses."""
        users = self.observed.reports.users_of(name)
        if dry_run:
            with self._database.read() as connection:
                lifecycle.check_model_deletable(connection, name, users=users)
            return
        with self._decided("delete_model", by=by, reason=reason, model=name) as transaction:
            lifecycle.delete_model(transaction, name, users=users, by=by, reason=reason)

    def delete_stream(self, name: str, *, by: str, reason: str, dry_run: bool = False) -> None:
        """With dry_run only refuses."""
        if dry_run:
            with self._database.read() as connection:
                lifecycle.check_stream_deletable(connection, name)
            return
        with self._decided("delete_stream", by=by, reason=reason, stream=name) as transaction:
            lifecycle.delete_stream(transaction, name, by=by, reason=reason)
