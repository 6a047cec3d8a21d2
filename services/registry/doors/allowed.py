"""What takes more than a role: a stream that is there already."""

from common.access.principal import INGEST, current
from common.errors import PermissionDenied
from services.registry.catalog import Catalog
from services.registry.store.audit import Call

_CHANGED = "changed"


def check_stream(catalog: Catalog, name: str, schema_json: str) -> None:
    """An author may register a stream that is new, or as it is. Another schema is its senders' matter.

    Raises:
        PermissionDenied: the schema is another one, and the current principal has no `ingest:<stream>`.
    """
    principal = current()
    if principal.may(INGEST, name):
        return
    with catalog.audit.refusals(Call("register_stream", principal.name, {"stream": name})):
        applied = catalog.apply(stream=(name, schema_json), model=None, by=principal.name, dry_run=True)
        if applied.stream_change == _CHANGED:
            raise PermissionDenied(
                f"{principal.name} has no role ingest for the stream, so the schema of it stays as it is"
            )
