"""How much of a model's traffic is logged: set for a replica, or for one model by its configuration."""

from dataclasses import dataclass

from common.errors import InvalidInput


@dataclass(frozen=True)
class RequestLogOptions:
    """TensorFlow Serving's logging_config, of which the sampling is taken over."""

    sampling_rate: float = 0.0
    """The share of requests that is logged, 0 to 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.sampling_rate <= 1:
            raise InvalidInput(f"the sampling rate of a request log is {self.sampling_rate:g}, expected 0 to 1")


def options_of(text: str) -> tuple[RequestLogOptions, dict[str, RequestLogOptions]]:
    """The default, and what differs per model, of a setting like `0.01` or `0.01,flights=1,digits=0`.

    Raises:
        InvalidInput: it is of another form, or a rate is not one.
    """
    default, of_models = RequestLogOptions(), dict[str, RequestLogOptions]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        model, _, rate = part.rpartition("=")
        try:
            options = RequestLogOptions(float(rate))
        except ValueError as error:
            raise InvalidInput(
                f"SERVING_REQUEST_LOG_SAMPLING has {part!r}, expected a rate from 0 to 1, or model=rate"
            ) from error
        if model:
            of_models[model] = options
        else:
            default = options
    return default, of_models
