"""Serving's settings, read and checked before a process or a door starts."""

import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from common.access.guard import Guard
from common.errors import InvalidInput
from common.process.tls import Material, Tls
from protos import tfserving_config_pb2 as config_pb2
from services.serving.doors.rules import serving_rules
from services.serving.front.monitoring import read_monitoring_path
from services.serving.options.model_server_config import read_text
from services.serving.options.option_sources import replica_options
from services.serving.options.platform_names import platform_names
from services.serving.options.settings import ServingSettings
from services.serving.replica.sources.configured_models import check_first_labels, starting_config
from services.serving.wire.keys import NEWEST_ALIAS
from services.serving.wire.replica_state import ConfigState, ReplicaState

_MOST_MESSAGE_BYTES = 2**31 - 1
"""Options of gRPC."""


@dataclass(frozen=True)
class Start:
    """The settings and what follows from them."""

    settings: ServingSettings
    guard: Guard
    tls: Tls | None = None
    """Of the doors."""
    calls_tls: Tls | None = None
    """Of calls to the registry."""
    metrics_path: str = ""
    """Of TensorFlow Serving's metrics; "" where there is none."""
    state: ReplicaState | None = None
    """Where folders are served: the state that doors show before the manager's first report."""


def read_start() -> Start:
    """Raises InvalidInput for whatever would not work later."""
    settings = ServingSettings.from_environment()
    calls, doors = _read_tls(settings)
    metrics_path = ""
    if settings.monitoring_config_file:
        if not settings.enable_rest:
            raise InvalidInput("monitoring_config_file needs REST, which is off")
        metrics_path = read_monitoring_path(Path(settings.monitoring_config_file))
    grpc_options(settings)
    replica_options(settings)
    guard = Guard(settings.open_access(settings.host), serving_rules(metrics_path))
    if not settings.is_standalone():
        return Start(settings, guard, doors, calls, metrics_path)
    config = starting_config(settings, platforms=platform_names())
    check_first_labels(config, allow_unavailable=settings.allow_version_labels_for_unavailable_models)
    if settings.queue_namespace is None:
        namespace = f"{socket.gethostname()}:{settings.grpc_port or os.getpid()}"
        settings = settings.model_copy(update={"queue_namespace": namespace})
        os.environ["SERVING_QUEUE_NAMESPACE"] = namespace
    models = {model.name: dict(model.version_labels) for model in config.model_config_list.config}
    state = ReplicaState("", {}, models, (), default_alias=NEWEST_ALIAS, config=ConfigState({}))
    return Start(settings, guard, doors, calls, metrics_path, state)


def _read_tls(settings: ServingSettings) -> tuple[Tls | None, Tls | None]:
    """For calls to the registry, and for the doors. Raises InvalidInput."""
    files, path = settings.tls_files(), settings.ssl_config_file
    if files and path:
        raise InvalidInput("SERVING_SSL_CONFIG_FILE and SERVING_TLS_CERTIFICATE_FILE are set; take one away")
    calls = Tls.of(files) if files else None
    return calls, Tls(lambda: read_tls_config(Path(path)), (path,)) if path else calls


def grpc_options(settings: ServingSettings) -> list[tuple[str, str | int]]:
    """The limits of messages, as of REST bodies, and --grpc_channel_arguments. Raises InvalidInput."""
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", min(settings.max_body_bytes, _MOST_MESSAGE_BYTES)),
        ("grpc.max_send_message_length", -1),  # An answer is as large as the model makes it, over REST too.
    ]
    for part in filter(None, settings.grpc_channel_arguments.split(",")):
        name, equals, value = part.partition("=")
        if not name or not equals:
            raise InvalidInput(f"grpc_channel_arguments has {part!r}, expected name=value")
        options.append((name, int(value) if value.lstrip("-").isdecimal() else value))
    return options


def read_tls_config(path: Path) -> Material:
    """Reads and checks an SSLConfig file. Raises InvalidInput: it cannot be read, or lacks a field that the others
    need."""
    given = read_text(path, config_pb2.SSLConfig(), "an SSLConfig")
    if not given.server_key or not given.server_cert:
        raise InvalidInput(f"{path} has no {'server_cert' if given.server_key else 'server_key'}")
    if given.client_verify and not given.custom_ca:
        raise InvalidInput(f"{path} has client_verify but no custom_ca to verify clients with")
    pems = (given.server_cert.encode(), given.server_key.encode(), given.custom_ca.encode())
    material = Material(*pems, "required" if given.client_verify else "none")
    material.context(ssl.PROTOCOL_TLS_SERVER)
    return material
