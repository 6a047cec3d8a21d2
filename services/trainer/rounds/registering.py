"""The end of a round: its draft becomes a version, signed by control where there is a key."""

from dataclasses import replace

from common.errors import Conflict, Unavailable
from common.registry.catalog import Version, VersionDraft
from common.registry.client import RegistryClient
from common.registry.statements import digests_of
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Report, ToSign

_SIGNINGS = 5
"""Of one draft: versions that people push may take its number meanwhile."""


def register(assignment: RoundAssignment, registry: RegistryClient, report: Report, draft: VersionDraft) -> Version:
    """Raises as RegistryClient.register_version, and Unavailable: it cannot be signed now."""
    if not assignment.is_signed:
        return registry.register_version(assignment.lease, draft)
    asked = ToSign(digests_of(draft.files), draft.weights_digest)
    signature = report(asked) or ""
    for _ in range(_SIGNINGS):
        try:
            return registry.register_version(assignment.lease, replace(draft, signature=signature))
        except Conflict:
            before, signature = signature, report(asked) or ""
            if signature == before:  # of the same number, so the conflict is another one
                raise
    raise Unavailable(f"other versions took the number of this one {_SIGNINGS} times while it was signed")
