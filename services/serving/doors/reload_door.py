"""HandleReloadConfigRequest: another ModelServerConfig for a server that takes its models from folders."""

from typing import Any, Protocol

from protos import tfserving_config_pb2 as config_pb2
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed
from services.serving.wire.replica_state import ReloadResult

_LONGEST_SECONDS = 3600.0


class Reload(Protocol):
    """ManagerProcess.reload."""

    async def __call__(self, config: bytes, *, timeout_seconds: float) -> ReloadResult: ...


class ReloadDoor:
    def __init__(self, reload: Reload | None) -> None:
        self._reload = reload

    async def handle(self, request: config_pb2.ReloadConfigRequest, context: Any) -> config_pb2.ReloadConfigResponse:
        """Answers when the models that are new are available, or could not be made so.

        None of the counters that metric_names may ask for exist here, so no increases are reported.

        Raises:
            RequestFailed: the configuration is refused and changed nothing, or a new model could not be loaded.
            Unavailable: nothing was decided before the client's deadline.
        """
        if self._reload is None:
            raise RequestFailed(
                Code.FAILED_PRECONDITION,
                "this server takes its models from a registry and has no configuration of its own to reload; "
                "move the model's alias in the registry instead",
            )
        remaining = context.time_remaining()
        timeout_seconds = _LONGEST_SECONDS if remaining is None else min(remaining, _LONGEST_SECONDS)
        result = await self._reload(request.config.SerializeToString(), timeout_seconds=timeout_seconds)
        if result.code:
            raise RequestFailed(result.code, result.message)
        response = config_pb2.ReloadConfigResponse()
        response.status.error_code = 0
        return response
