"""The roles that calls of a trainer need."""

from collections.abc import Mapping

from common.access.guard import Rule, rule
from common.process.rpc import COMMON_RPC_RULES
from common.process.web import COMMON_RULES

_TRAINS = rule("author:{model}", "service:registry")
_READS = rule("viewer", "author", "service")
RULES: Mapping[str, Rule] = {
    **COMMON_RULES,
    **COMMON_RPC_RULES,
    "POST /v1/models/{model}:train": _TRAINS,
    "POST /v1/models/{model}/versions/{version}:rebuild": _TRAINS,
    "POST /v1/models/{model}:forget": _TRAINS,
    "POST /v1/models/{model}/triggers:replay": _TRAINS,
    "POST /v1/models/{model}:measure": _TRAINS,
    "POST /v1/models/{model}:profile": _TRAINS,
    # By ids, which the answer to the request gives.
    "GET /v1/rebuilds/{rebuild_id}": _READS,
    "GET /v1/measurements/{measurement_id}": _READS,
    "GET /v1/rounds/{round_id}/events": rule("viewer", "service"),
    "GET /v1/status": rule("viewer", "service"),
}
