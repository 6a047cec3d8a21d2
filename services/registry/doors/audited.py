"""Refusals at the door, before a call has reached the catalog, in the audit log."""

from collections.abc import Callable, Mapping

from common.access.access import Access
from common.access.guard import Guard, Named, Rule
from common.access.principal import Principal
from common.errors import PermissionDenied, Unauthenticated
from services.registry.store.audit import AuditLog, Call

_RPC_READS = ("Get", "List", "Watch", "DownloadFile", "MissingFiles")
_READS = ("GET ", "HEAD ", "OPTIONS ", "grpc.", *(f"headrace.RegistryService/{name}" for name in _RPC_READS))


class AuditedGuard(Guard):
    """Writes refused changes and their authors down."""

    def __init__(self, access: Access, rules: Mapping[str, Rule], audit: AuditLog) -> None:
        super().__init__(access, rules)
        self._audit = audit

    def let_in(self, action: str, identify: Callable[[], Principal]) -> Principal:
        try:
            return super().let_in(action, identify)
        except (Unauthenticated, PermissionDenied) as error:
            self._note(Call(action, ""), error)
            raise

    def check(self, action: str, principal: Principal, named: Named) -> None:
        try:
            super().check(action, principal, named)
        except PermissionDenied as error:
            fields = {field for _, field in self.rules[action].roles if field and not field.startswith("=")}
            self._note(Call(action, principal.name, {field: list(named(field)) for field in sorted(fields)}), error)
            raise

    def _note(self, call: Call, error: Unauthenticated | PermissionDenied) -> None:
        if not call.action.startswith(_READS):
            self._audit.note_denied(call, error)
