"""docs/reference/settings.md, from the services' settings classes."""

from pydantic.fields import FieldInfo

from common.process.settings import ServiceSettings
from services.ingest.settings import IngestSettings
from services.registry.settings import RegistrySettings
from services.serving.options.settings import ServingSettings
from services.trainer.settings import TrainerSettings

_SERVICES: tuple[type[ServiceSettings], ...] = (IngestSettings, RegistrySettings, TrainerSettings, ServingSettings)
# The same in every service, said once.
_SHARED = {
    "host": "Address that both doors listen on.",
    "http_port": "HTTP; 0 takes a free port.",
    "grpc_port": "gRPC; 0 takes a free port.",
    "log_format": "text or json, one line per event on standard error.",
    "log_level": "DEBUG, INFO, WARNING or ERROR.",
    "data_dir": "Folder of what the service keeps.",
    "registry_address": "The registry's gRPC door, host:port.",
    "event_log": "`segments:/absolute/dir` or `kafka:host:port[,host:port]`.",
    "redis_url": "`redis://host:port/0` or `unix:///path`.",
}
_HEAD = """# Settings

Environment variables, read once at the start. A variable with a service's prefix that the service does not know
stops the start, and so does a value outside its bounds. Written by `make docs`; do not edit.
"""


def _row(prefix: str, name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else f"`{field.default}`"
    bounds = ", ".join(
        f"{symbol} {getattr(part, attribute)}"
        for part in field.metadata
        for attribute, symbol in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if getattr(part, attribute, None) is not None
    )
    text = " ".join((_SHARED.get(name) or field.description or "").split()).replace("|", "\\|")
    return f"| `{prefix}{name.upper()}` | {default} | {bounds} | {text} |"


def document() -> str:
    parts = [_HEAD]
    for service in _SERVICES:
        prefix = str(service.model_config.get("env_prefix", ""))
        rows = [_row(prefix, name, field) for name, field in service.model_fields.items()]
        parts.append(
            f"## {prefix.rstrip('_').lower()}\n\n| variable | default | bounds | |\n|---|---|---|---|\n"
            + "\n".join(rows)
        )
    return "\n\n".join(part.strip() for part in parts) + "\n"
