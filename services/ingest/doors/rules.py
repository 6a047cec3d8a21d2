"""Who may call what of ingest."""

from collections.abc import Mapping

from common.access.guard import Rule, rule
from common.process.rpc import COMMON_RPC_RULES
from common.process.web import COMMON_RULES

_SENDS = rule("ingest:{stream}")
_READS = rule("ingest:{stream}", "viewer", "service:registry")
RULES: Mapping[str, Rule] = {
    **COMMON_RULES,
    **COMMON_RPC_RULES,
    "POST /v1/streams/{stream}/events": _SENDS,
    "POST /v1/streams/{stream}/labels": _SENDS,
    "POST /v1/streams/{stream}/deadletters:replay": rule("ingest:{stream}", "service:registry"),
    "GET /v1/streams": rule("viewer"),
    "GET /v1/streams/{stream}": _READS,
    "GET /v1/streams/{stream}/deadletters": _READS,
    "GET /v1/streams/{stream}/events": rule("viewer", "service:registry"),
    "GET /v1/streams/{stream}/statistics": rule("viewer", "service:registry"),
    "GET /v1/streams/{stream}/requests": rule("viewer", "service:registry"),
    "headrace.IngestService/Append": _SENDS,
    "headrace.IngestService/AppendStream": _SENDS,
    "headrace.IngestService/AppendLabels": _SENDS,
}
