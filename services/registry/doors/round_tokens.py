"""Tokens for the processes of rounds, in which authors' code runs: each is for one round and the models that it reads.

A token is `hrr_`, what it says as base64, and its HMAC by this registry's secret; nothing of it is stored. It ends at
its time, and before that with the trainer that asked for it, when the access file names that trainer no more.
"""

import base64
import hmac
import json
import time
from collections.abc import Iterable

from common.access.access import Access
from common.access.principal import ROUND, SOURCE, Principal, current
from common.errors import InvalidInput, Unauthenticated

_PREFIX = "hrr_"
_MOST_SECONDS = 30 * 86_400.0
_MOST_MODELS = 100


class RoundTokens:
    """Makes them, and has the access know them."""

    def __init__(self, access: Access, secret: bytes) -> None:
        self._access, self._secret = access, secret
        access.take_own_tokens(self._principal_of)

    def issue(self, round_id: str, models: Iterable[str], *, lasts_seconds: float) -> str:
        """Of the current principal, which is a trainer. Raises InvalidInput."""
        roles = [f"{ROUND}:{round_id}", *(f"{SOURCE}:{model}" for model in dict.fromkeys(models))]
        if not 0 < lasts_seconds <= _MOST_SECONDS:
            raise InvalidInput(f"lasts_seconds must be above 0 and at most {_MOST_SECONDS:.0f}, got {lasts_seconds}")
        if len(roles) > _MOST_MODELS or any(set("*?[") & set(role) for role in roles):
            raise InvalidInput(f"a round's token names one round and at most {_MOST_MODELS - 1} models, by their names")
        said = {"by": current().name, "roles": roles, "expires_at": time.time() + lasts_seconds}
        encoded = base64.urlsafe_b64encode(json.dumps(said).encode()).decode()
        return f"{_PREFIX}{encoded}.{self._signature(encoded)}"

    def _principal_of(self, token: str) -> Principal | None:
        """None for other tokens. Raises Unauthenticated."""
        if not token.startswith(_PREFIX):
            return None
        encoded, _, signature = token.removeprefix(_PREFIX).partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(encoded).encode()):
            raise Unauthenticated("the token is none of this registry's for a round")
        said = json.loads(base64.urlsafe_b64decode(encoded))
        if said["expires_at"] < time.time() or not self._access.may_have_service("trainer", said["by"]):
            raise Unauthenticated("the token of the round has ended")
        return Principal(said["by"], frozenset(said["roles"]), expires_at=said["expires_at"])

    def _signature(self, encoded: str) -> str:
        return hmac.new(self._secret, f"round {encoded}".encode(errors="surrogatepass"), "sha256").hexdigest()
