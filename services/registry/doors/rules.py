"""Rights on the registry's calls, and the calls that need more than a role: a stream that exists already."""

from collections.abc import Mapping

from common.access.guard import ANYBODY, Rule, rule
from common.access.principal import INGEST, current
from common.errors import PermissionDenied
from common.process.rpc import COMMON_RPC_RULES
from common.process.web import COMMON_RULES
from services.registry.catalog import Catalog
from services.registry.pages.rules import PAGE_RULES
from services.registry.store.audit import Call

_VIEWS, _OPERATES = rule("viewer"), rule("operator")
_READS_MODEL, _WRITES_MODEL = rule("viewer", "author:{model}"), rule("author:{model}")
_READS_STREAM = rule("viewer", "author", "ingest:{stream}")
_BY_CONTENT = rule("author", by_door=True)
"""`check_stream`, and `apply` for its model, look at the request."""
_HTTP: Mapping[str, Rule] = {
    "GET /v1/streams": rule("viewer", "author"),
    "GET /v1/streams/{stream}": _READS_STREAM,
    "PUT /v1/streams/{stream}": _BY_CONTENT,
    "POST /v1/streams/{stream}:archive": _OPERATES,
    "POST /v1/streams/{stream}:restore": _OPERATES,
    "DELETE /v1/streams/{stream}": _OPERATES,
    "POST /v1/apply": _BY_CONTENT,
    "GET /v1/models": _VIEWS,
    "GET /v1/models/{model}": _READS_MODEL,
    "PUT /v1/models/{model}": _WRITES_MODEL,
    "DELETE /v1/models/{model}": _OPERATES,
    "GET /v1/models/{model}/rounds": _READS_MODEL,
    "GET /v1/models/{model}/rounds/{round_id}": _READS_MODEL,
    "GET /v1/models/{model}/versions": _READS_MODEL,
    "GET /v1/models/{model}/versions/{version}": _READS_MODEL,
    "GET /v1/models/{model}/account": _READS_MODEL,
    "GET /v1/models/{model}/why": _READS_MODEL,
    "GET /v1/models/{model}/history": _READS_MODEL,
    "GET /v1/models/{model}/live": _READS_MODEL,
    "GET /v1/models/{model}/diff": _READS_MODEL,
    "PUT /v1/models/{model}/aliases/{alias}": _OPERATES,
    "DELETE /v1/models/{model}/aliases/{alias}": _OPERATES,
    "POST /v1/models/{model}:rollback": _OPERATES,
    "POST /v1/models/{model}:pin": _OPERATES,
    "POST /v1/models/{model}:unpin": _OPERATES,
    "POST /v1/models/{model}:archive": _OPERATES,
    "POST /v1/models/{model}:restore": _OPERATES,
    "POST /v1/models/{model}:pause": _WRITES_MODEL,
    "POST /v1/models/{model}:resume": _WRITES_MODEL,
    "POST /v1/models/{model}:push": _WRITES_MODEL,
    "POST /v1/models/{model}/rounds/{round_id}:fail": _WRITES_MODEL,
    "POST /v1/models/{model}/rounds/{round_id}:stop": _WRITES_MODEL,
    "POST /v1/models/{model}/rounds/{round_id}:resume": _WRITES_MODEL,
    "GET /v1/rounds": _VIEWS,
    # By digests, which cannot be guessed.
    "GET /v1/definitions/{digest}": rule("viewer", "author"),
    "GET /v1/files/{digest}": rule("viewer", "author"),
    "POST /v1/gc": _OPERATES,
    "GET /v1/instances": _VIEWS,
    "GET /v1/overview": _VIEWS,
    "GET /v1/series": _VIEWS,
    "GET /v1/history": _VIEWS,
    "GET /v1/audit": _VIEWS,
    "GET /v1/audit/head": _VIEWS,
    "GET /v1/webhooks": _VIEWS,
    "GET /v1/whoami": ANYBODY,
}
_TRAINER, _UPLOADS = rule("service:trainer"), rule("service:trainer", "author")
_RPC: Mapping[str, Rule] = {
    "RegisterStream": _BY_CONTENT,
    "GetStream": rule("service", "viewer", "author", "ingest:{name}"),
    "ListStreams": rule("service", "viewer", "author"),
    "RegisterModel": rule("author:{name}"),
    "GetModel": rule("service", "viewer", "author:{name}"),
    "ListModels": rule("service", "viewer"),
    "GetDefinition": rule("service:trainer", "viewer", "author"),
    "PlanRound": _TRAINER,
    "ListRounds": rule("service:trainer", "viewer", "author:{model}"),
    "LeaseRound": _TRAINER,
    "RenewLease": _TRAINER,
    "ReleaseRound": _TRAINER,
    "FailRound": _TRAINER,
    "PutResumePoint": _TRAINER,
    "OfferHelp": _TRAINER,
    "FormTeam": _TRAINER,
    "KeepTeam": _TRAINER,
    "Report": rule("service:{service}"),
    "AskJob": rule("service:trainer", "author:{model}"),
    "ListJobs": rule("service:trainer", "viewer", "author:{model}"),
    "TakeJob": _TRAINER,
    "TellJob": _TRAINER,
    "MissingFiles": _UPLOADS,
    "GetUpload": _UPLOADS,
    "UploadFile": _UPLOADS,
    "DownloadFile": rule("service:trainer", "service:serving", "viewer", "author"),
    "RegisterVersion": _TRAINER,
    "GetVersion": rule("service", "viewer", "author:{model}"),
    "ListVersions": rule("service", "viewer", "author:{model}"),
    "SetAlias": _OPERATES,
    "Rollback": _OPERATES,
    "ListAliasHistory": _READS_MODEL,
    "Forget": _TRAINER,
    "GetForgotten": _TRAINER,
    "GetEvidence": _TRAINER,
    "PutEvidence": _TRAINER,
    "Watch": rule("service", "viewer"),
}
RULES: Mapping[str, Rule] = {
    **COMMON_RULES,
    **COMMON_RPC_RULES,
    **PAGE_RULES,
    **_HTTP,
    **{f"headrace.RegistryService/{method}": found for method, found in _RPC.items()},
}


def check_stream(catalog: Catalog, name: str, schema_json: str) -> None:
    """An author may register a stream that is new, or as it is. Another schema is its senders' matter. Raises
    PermissionDenied: the schema is another, and the current principal has no `ingest:<stream>`."""
    principal = current()
    if principal.may(INGEST, name):
        return
    with catalog.audit.refusals(Call("register_stream", principal.name, {"stream": name})):
        applied = catalog.apply(stream=(name, schema_json), model=None, by=principal.name, dry_run=True)
        if applied.stream_change == "changed":
            raise PermissionDenied(
                f"{principal.name} has no role ingest for the stream, so the schema of it stays as it is"
            )
