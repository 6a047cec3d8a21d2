"""python -m services.ingest: settings, two doors in one event loop, the registry and the log in the background."""

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import time

import uvicorn
import uvloop

from common.errors import HeadraceError, InvalidInput, NotFound
from common.eventlog.base import EventLog
from common.eventlog.open import open_event_log
from common.health import Health
from common.lifecycle import Stop, close_all
from common.logs import configure_logs
from common.registry_client import RegistryClient
from common.rpc_aio import start_aio_server
from common.web import bind
from protos import ingest_pb2_grpc
from services.ingest.grpc_api import SERVICE_NAME, IngestServicer
from services.ingest.http_api import create_ingest_app
from services.ingest.intake import Intake
from services.ingest.schemas import Schemas
from services.ingest.settings import IngestSettings
from services.ingest.streams import examples_topic

logger = logging.getLogger(__name__)
_REGISTRY_TIMEOUT_SECONDS = 3.0
_LOG_RETRY_SECONDS = 1.0
_LOG_CHECK_SECONDS = 2.0
_DRAIN_SECONDS = 10.0


def main() -> int:
    """Exit status 0 after SIGTERM, 1 when it cannot start."""
    started_at = time.monotonic()
    try:
        settings = IngestSettings.from_environment()
    except HeadraceError as error:
        print(f"ingest: {error.message}", file=sys.stderr)
        return 1
    configure_logs("ingest", log_format=settings.log_format, level=settings.log_level)
    try:
        uvloop.run(_serve(settings, started_at))
    except HeadraceError as error:
        logger.error("cannot run: %s", error.message)
        return 1
    return 0


async def _serve(settings: IngestSettings, started_at: float) -> None:
    service_health = Health("registry", "log")
    registry = RegistryClient(settings.registry_address, timeout_seconds=_REGISTRY_TIMEOUT_SECONDS)
    intake = Intake(settings, Schemas(registry))
    stop, stopped = Stop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    sock = bind(settings.host, settings.http_port)
    server, grpc_port = await start_aio_server(
        f"{settings.host}:{settings.grpc_port}",
        lambda server: ingest_pb2_grpc.add_IngestServiceServicer_to_server(IngestServicer(intake), server),
        service_names=(SERVICE_NAME,),
        service_health=service_health,
    )
    web = _WebInLoop(create_ingest_app(intake, service_health))
    serving = asyncio.create_task(web.serve(sockets=[sock]))
    follower = threading.Thread(target=intake.schemas.follow, args=(stop, service_health), name="registry", daemon=True)
    follower.start()
    keeper = asyncio.create_task(_keep_log(intake, service_health, settings.event_log))
    logger.info(
        "listening",
        extra={
            "http_port": sock.getsockname()[1],
            "grpc_port": grpc_port,
            "seconds": round(time.monotonic() - started_at, 3),
        },
    )
    stop_signal = asyncio.create_task(stopped.wait())
    await asyncio.wait({stop_signal, serving, keeper}, return_when=asyncio.FIRST_COMPLETED)

    logger.info("stopping")
    service_health.stop()
    stop.request()
    keeper.cancel()
    web.should_exit = True
    await asyncio.gather(server.stop(_DRAIN_SECONDS), serving)
    await asyncio.to_thread(_close, intake, registry)
    with contextlib.suppress(asyncio.CancelledError):
        await keeper


def _close(intake: Intake, registry: RegistryClient) -> None:
    close_all(intake.close, registry.close, *([intake.log.close] if intake.has_log else []))


class _WebInLoop(uvicorn.Server):
    """uvicorn in the loop that runs already, which has its own signal handlers."""

    def __init__(self, app: object) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]  # uvicorn's ASGI alias is narrower than FastAPI's type
                log_config=None,
                log_level="warning",
                access_log=False,
                http="httptools",
                lifespan="off",
                timeout_graceful_shutdown=int(_DRAIN_SECONDS),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]  # uvicorn's own is untyped
        yield


async def _keep_log(intake: Intake, service_health: Health, url: str) -> None:
    """Opens the log, opens each stream as it becomes known, and tells whether the log answers; until cancelled.

    Raises:
        InvalidInput: the URL names no log.
    """
    while True:
        try:
            if not intake.has_log:
                intake.attach_log(await intake.in_thread(open_event_log, url))
            names = intake.schemas.names()
            for name in names:
                await intake.open(name)
            await intake.in_thread(_probe, intake.log, examples_topic(names[0] if names else "none"))
            service_health.satisfy("log")
            pause = _LOG_CHECK_SECONDS
        except InvalidInput:  # a setting that is wrong stays wrong
            raise
        except HeadraceError as error:
            intake.log_is_away(error.message)
            service_health.fail("log", error.message)
            logger.warning("the event log is away", extra={"reason": error.message})
            pause = _LOG_RETRY_SECONDS
        await asyncio.sleep(pause)


def _probe(log: EventLog, topic: str) -> None:
    """Raises Unavailable when the log does not answer."""
    with contextlib.suppress(NotFound):
        log.end_position(topic)


if __name__ == "__main__":
    sys.exit(main())
