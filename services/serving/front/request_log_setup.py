"""The request log that the settings ask for, and what TensorFlow Serving's configuration says of it per model."""

from collections.abc import Callable, Mapping
from typing import Any

from common.errors import InvalidInput
from services.serving.front.request_log import RequestLog
from services.serving.front.request_log_places import open_place
from services.serving.options.request_log_options import RequestLogOptions, options_of
from services.serving.options.settings import ServingSettings
from services.serving.wire.replica_state import ReplicaState


def open_request_log(settings: ServingSettings) -> RequestLog | None:
    """None where nothing is to be logged.

    Raises:
        InvalidInput: the sampling or the place is none. Unavailable: the place cannot be opened.
    """
    default, of_models = options_of(settings.request_log_sampling)
    if not settings.request_log:
        if settings.request_log_sampling:
            raise InvalidInput("SERVING_REQUEST_LOG_SAMPLING is set, but SERVING_REQUEST_LOG does not say where to log")
        return None
    request_log = RequestLog(
        open_place(settings.request_log), default=default, buffer_bytes=settings.request_log_buffer_bytes
    )
    request_log.use(of_models)
    return request_log


def following(
    update: Callable[[ReplicaState], None], request_log: RequestLog | None, settings: ServingSettings
) -> Callable[[ReplicaState], None]:
    """`update`, and the sampling that a configuration names with it; for its models it wins over the settings."""
    _, of_models = options_of(settings.request_log_sampling)

    def follow(state: ReplicaState) -> None:
        update(state)
        if request_log is not None and state.config is not None:
            request_log.use(of_models | configured_options(state.config.config))

    return follow


def configured_options(config: Mapping[str, Any]) -> dict[str, RequestLogOptions]:
    """The logging_config of each model of a ModelServerConfig that has one (the configuration was checked before)."""
    models = config.get("model_config_list", {}).get("config", ())
    return {
        model["name"]: RequestLogOptions(model["logging_config"].get("sampling_config", {}).get("sampling_rate", 0.0))
        for model in models
        if "logging_config" in model
    }
