"""A version's signature as it is stored and handed out. The registry checks that it is of this version's files; the
holders of the trusted keys verify it.
"""

from sqlalchemy import Connection, insert, select

from common.errors import Conflict, InvalidInput
from common.registry.catalog import VersionDraft
from common.registry.statements import digests_of, read_envelope
from services.registry.store.tables import signatures


def add_signature(connection: Connection, model: str, version: int, draft: VersionDraft) -> str:
    """Stores the draft's signature, if it has one; the ids of its keys, separated by commas.

    Raises:
        Conflict: it is of another version number; the caller signs again.
        InvalidInput: it is of another model or other files, or no signature.
    """
    if not draft.signature:
        return ""
    envelope = read_envelope(draft.signature)
    statement = envelope.statement()
    if statement.model == model and statement.version != version:
        raise Conflict(f"the signature is of version {statement.version} of {model}, and this one becomes {version}")
    if difference := statement.difference(model, version, digests_of(draft.files)):
        raise InvalidInput(difference)
    connection.execute(insert(signatures).values(model=model, version=version, envelope=draft.signature))
    return ",".join(envelope.signatures)


def signature_of(connection: Connection, model: str, version: int) -> str:
    """ "" where there is none."""
    chosen = (signatures.c.model == model) & (signatures.c.version == version)
    return connection.execute(select(signatures.c.envelope).where(chosen)).scalar_one_or_none() or ""
