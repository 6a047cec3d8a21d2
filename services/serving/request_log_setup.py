"""The request log that the settings ask for."""

from common.errors import InvalidInput
from services.serving.request_log import RequestLog
from services.serving.request_log_options import options_of
from services.serving.request_log_places import open_place
from services.serving.settings import ServingSettings


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
