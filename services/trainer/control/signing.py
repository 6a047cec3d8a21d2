"""Signs a round's version. The key stays in this process; the round's own, in which authors' code runs, asks for it."""

from dataclasses import dataclass

from common.registry.catalog import Round
from common.registry.client import RegistryClient
from common.registry.signing import Signer
from common.registry.statements import Statement
from services.trainer.protocol.messages import ToSign


@dataclass(frozen=True)
class VersionSigner:
    """`holder` is the trainer's name, which the statement says."""

    signer: Signer
    registry: RegistryClient
    holder: str

    def sign(self, made_by: Round, asked: ToSign) -> str:
        """The envelope of the number that is the model's next. Raises the six, as the registry is asked for it."""
        plan = made_by.plan
        version = self.registry.get_model(plan.model).newest_version + 1
        about = {
            "round_id": made_by.round_id,
            "parent_version": plan.parent_version,
            "definition_digest": plan.definition_digest,
            "configuration_digest": plan.configuration_digest,
            "code_digest": plan.code_digest,
            "weights_digest": asked.weights_digest,
            "signer": self.holder,
        }
        return self.signer.sign(Statement(plan.model, version, asked.files, about))
