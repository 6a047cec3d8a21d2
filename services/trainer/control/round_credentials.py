"""What a round's process shows the registry: a token for its round alone. The trainer's token, and the key of its
certificate where clients need not show one, are not in that process's reach."""

from collections.abc import Callable
from dataclasses import replace

from common.errors import HeadraceError, Unavailable
from common.registry.client import RegistryClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.settings import TrainerSettings

_ROUNDS_LAST = 2.0
"""A token lasts this many times a round's or rebuild's limit, in which seconds without a core do not count."""


def credentialing(settings: TrainerSettings, registry: RegistryClient) -> Callable[[RoundAssignment], RoundAssignment]:
    """Gives an assignment its token and its TLS files. It raises Unavailable: the registry is away, or gives none."""
    files = settings.tls_files()
    if files is not None and files.clients != "required":
        files = replace(files, certificate="", key="")
    # A trainer without a token may be known by its certificate.
    asks = settings.service_token_file is not None or settings.tls_certificate_file is not None
    seconds = _ROUNDS_LAST * max(settings.round_timeout_seconds, settings.rebuild_timeout_seconds)

    def credentialed(assignment: RoundAssignment) -> RoundAssignment:
        if not asks:
            return assignment
        plan = assignment.plan
        warm_start = dict(plan.configuration.get("warm_start", {}))
        models = filter(None, (plan.model, str(warm_start.get("model", ""))))
        try:
            token = registry.round_token(assignment.round.round_id, tuple(models), lasts_seconds=seconds)
        except Unavailable:
            raise
        except HeadraceError as error:
            raise Unavailable(f"the registry gives the round no token: {error.message}") from error
        return replace(assignment, registry_token=token, tls=files)

    return credentialed
