"""Registers a round's version, signed where this trainer has a key. The key stays in this process; the round's own, in
which authors' code runs, has no way to it."""

from dataclasses import dataclass, replace

from common.errors import Conflict, Unavailable
from common.registry.catalog import Lease, Round, Version, VersionDraft
from common.registry.client import RegistryClient
from common.registry.signing import Signer
from common.registry.statements import Statement, digests_of

_SIGNINGS = 5
"""Of a draft: versions that people push may take its number meanwhile."""


@dataclass(frozen=True)
class VersionSigner:
    """`holder` is the trainer's name, which stands in the statement."""

    signer: Signer
    registry: RegistryClient
    holder: str

    def sign(self, made_by: Round, draft: VersionDraft) -> str:
        """The envelope of the number that is the model's next. Raises the six, as the registry is called."""
        plan = made_by.plan
        version = self.registry.get_model(plan.model).newest_version + 1
        about = {
            "round_id": made_by.round_id,
            "parent_version": plan.parent_version,
            "definition_digest": plan.definition_digest,
            "configuration_digest": plan.configuration_digest,
            "code_digest": plan.code_digest,
            "weights_digest": draft.weights_digest,
            "signer": self.holder,
        }
        return self.signer.sign(Statement(plan.model, version, digests_of(draft.files), about))


def register(registry: RegistryClient, lease: Lease, draft: VersionDraft, signer: VersionSigner | None) -> Version:
    """Raises as RegistryClient.register_version, and Unavailable: it cannot be signed now."""
    if signer is None:
        return registry.register_version(lease, draft)
    signature = signer.sign(lease.round, draft)
    for _ in range(_SIGNINGS):
        try:
            return registry.register_version(lease, replace(draft, signature=signature))
        except Conflict:
            before, signature = signature, signer.sign(lease.round, draft)
            if signature == before:  # of the same number, so the conflict is another
                raise
    raise Unavailable(f"other versions took this number {_SIGNINGS} times while it was signed")
