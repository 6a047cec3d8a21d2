"""docs/reference/settings.md, from the services' settings classes."""

from pydantic.fields import FieldInfo

from common.process.settings import ServiceSettings
from docs.generate.markdown import bullet, page, paragraph
from services.ingest.settings import IngestSettings
from services.registry.settings import RegistrySettings
from services.serving.options.settings import ServingSettings
from services.trainer.settings import TrainerSettings

_SERVICES: tuple[type[ServiceSettings], ...] = (IngestSettings, RegistrySettings, TrainerSettings, ServingSettings)
# The same in every service, said once.
_SHARED = {
    "http_port": "HTTP; 0 takes a free port.",
    "grpc_port": "gRPC; 0 takes a free port.",
    "data_dir": "Folder of what the service keeps.",
    "registry_address": "The registry's gRPC door, host:port.",
    "event_log": "`segments:/absolute/dir` or `kafka:host:port[,host:port]`.",
    "redis_url": "`redis://host:port/0` or `unix:///path`.",
}
_INTRODUCTION = """\
Environment variables, read once at the start. A variable with a service's prefix that the service does not know stops
the start, and so does a value outside its bounds."""


def _row(prefix: str, name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else f"`{field.default}`" if field.default != "" else "empty"
    bounds = ", ".join(
        f"{symbol} {getattr(part, attribute)}"
        for part in field.metadata
        for attribute, symbol in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if getattr(part, attribute, None) is not None
    )
    facts = "; ".join(fact for fact in (f"default {default}" if default != "required" else default, bounds) if fact)
    return bullet(f"`{prefix}{name.upper()}` ({facts}): {_SHARED.get(name) or field.description or ''}")


def document() -> str:
    parts: list[str] = []
    for service in _SERVICES:
        prefix = str(service.model_config.get("env_prefix", ""))
        rows = [_row(prefix, name, field) for name, field in service.model_fields.items()]
        parts += [f"## {prefix.rstrip('_').lower()}", "\n".join(rows)]
    return page("Settings", __name__, paragraph(_INTRODUCTION), *parts)
