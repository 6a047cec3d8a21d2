"""python -m services.ingest: settings, two doors in one event loop, the registry and the log in the background."""

import asyncio
import contextlib
import logging
import platform
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial

import uvicorn
import uvloop
from prometheus_client import REGISTRY

from common.access.guard import Guard
from common.errors import DataLoss, HeadraceError, InvalidInput
from common.eventlog.base import EventLog
from common.eventlog.open import open_event_log
from common.process.health import Health
from common.process.http_protocol import protocol_of
from common.process.lifecycle import Stop, close_all, raise_open_files_limit
from common.process.logs import configure_logs
from common.process.memory import keep_giving_back
from common.process.retry import Backoff, Pauses
from common.process.rpc_aio import start_aio_server
from common.process.rpc_client import MAX_MESSAGE_BYTES
from common.process.tls import Tls
from common.process.tracing import Tracing, open_tracing
from common.process.uvicorn_server import Server
from common.process.web import bind, bounds_of, listeners
from common.registry.client import RegistryClient
from common.registry.reporting import Part, Report, Reporter
from protos import ingest_pb2_grpc
from services.ingest.doors.grpc_api import SERVICE_NAME, IngestServicer
from services.ingest.doors.http_api import create_ingest_app
from services.ingest.doors.rules import RULES
from services.ingest.intake.accept import Intake
from services.ingest.once.shared_keys import SharedKeys, SharedWindow
from services.ingest.schemas import Schemas
from services.ingest.settings import IngestSettings

logger = logging.getLogger(__name__)
_REGISTRY_TIMEOUT_SECONDS = 3.0
_LOOK_SECONDS, _AGAIN_SECONDS = 30.0, 1.0
"""Seconds between two looks at the streams without news; and where a stream cannot be opened yet."""
_LOG_BACKOFF = Backoff(first_seconds=0.2, longest_seconds=2.0)
_DRAIN_SECONDS = 10.0
_SEGMENTS = "segments"
"""The condition that there is while a stream's log is damaged."""


def main(open_log: Callable[[str], EventLog] = open_event_log) -> int:
    """Exit status 0 after SIGTERM, 1 when it cannot start, 2 for a setting that is unknown or of another type.

    Args:
        open_log: makes the log that a URL names; the tests put a slow one here.
    """
    started_at = time.monotonic()
    try:
        settings = IngestSettings.from_environment()
    except HeadraceError as error:
        print(f"ingest: {error.message}", file=sys.stderr)
        return 2
    raise_open_files_limit()
    keep_giving_back()
    configure_logs("ingest", log_format=settings.log_format, level=settings.log_level)
    try:
        tracing = open_tracing("ingest", settings.trace_sample)
        uvloop.run(_serve(settings, open_log, started_at, tracing))
        tracing.close()
    except HeadraceError as error:
        logger.error("cannot run: %s", error.message)
        return 1
    return 0


async def _serve(
    settings: IngestSettings, open_log: Callable[[str], EventLog], started_at: float, tracing: Tracing
) -> None:
    service_health = Health("registry", "log")
    guard = Guard(settings.open_access(settings.host), RULES)
    tls = settings.open_tls(service_health)
    registry = RegistryClient(
        settings.registry_address, timeout_seconds=_REGISTRY_TIMEOUT_SECONDS, authorization=settings.authorization(),
        tls=tls,
    )  # fmt: skip
    intake = Intake(
        settings, Schemas(registry), service_health=service_health, shared_keys=_shared_keys(settings), tracing=tracing
    )
    REGISTRY.register(intake.budget)
    stop, stopped = Stop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    sock = bind(settings.host, settings.http_port)
    server, grpc_port = await start_aio_server(
        f"{settings.host}:{settings.grpc_port}",
        lambda server: ingest_pb2_grpc.add_IngestServiceServicer_to_server(IngestServicer(intake), server),
        service_names=(SERVICE_NAME,),
        service_health=service_health,
        max_messages_bytes=max(settings.max_in_flight_bytes, MAX_MESSAGE_BYTES),
        guard=guard,
        shares_of=settings.shares_of_calls,
        tls=tls,
    )
    bounds = bounds_of(
        sock, service="ingest", allowed_hosts=settings.allowed_hosts,
        max_bodies_bytes=settings.max_in_flight_bytes // 2, of_principal=settings.max_connections_per_principal,
    )  # fmt: skip
    web = _WebInLoop(create_ingest_app(intake, service_health, tracing, guard), protocol_of(bounds), tls)
    serving = asyncio.create_task(web.serve(sockets=listeners(sock)))
    follower = threading.Thread(target=intake.schemas.follow, args=(stop, service_health), name="registry", daemon=True)
    follower.start()
    keeper = asyncio.create_task(_keep_log(intake, service_health, open_log))
    logger.info(
        "listening",
        extra={
            "http_port": sock.getsockname()[1],
            "grpc_port": grpc_port,
            "seconds": round(time.monotonic() - started_at, 3),
        },
    )
    Reporter(registry.report, _reports_of(intake, settings, sock.getsockname()[1]), stop).start()
    stop_signal = asyncio.create_task(stopped.wait())
    await asyncio.wait({stop_signal, serving, keeper}, return_when=asyncio.FIRST_COMPLETED)

    logger.info("stopping")
    service_health.stop()
    stop.request()
    keeper.cancel()
    web.should_exit = True
    await asyncio.gather(server.stop(_DRAIN_SECONDS), serving)
    await intake.close_keys()
    await asyncio.to_thread(close_all, intake.close_log, intake.close, registry.close)
    with contextlib.suppress(asyncio.CancelledError):
        await keeper


def _reports_of(intake: Intake, settings: IngestSettings, port: int) -> Callable[[], Report]:
    """What this ingest tells the registry of itself."""
    started_at = time.time()

    def report() -> Report:
        streams = [stream for stream in intake.open_streams() if not stream.is_of_labels]
        return Report(
            instance_id=settings.replica or f"{platform.node()}:{port}",
            service="ingest",
            address=f"{settings.host}:{port}",
            started_at=started_at,
            numbers={
                "accepted_events_total": float(sum(stream.accepted_count for stream in streams)),
                "refused_events_total": float(sum(stream.refused_count for stream in streams)),
                "streams": float(len(streams)),
            },
            parts=tuple(
                Part(
                    stream=stream.name,
                    numbers={
                        "accepted_events_total": float(stream.accepted_count),
                        "refused_events_total": float(stream.refused_count),
                    },
                )
                for stream in streams
            ),
        )

    return report


def _shared_keys(settings: IngestSettings) -> SharedKeys | None:
    """Raises InvalidInput when the URL is none of Redis."""
    if not settings.redis_url:
        return None
    window = SharedWindow(
        settings.key_window_seconds, settings.key_window_count, settings.key_claim_seconds, settings.key_wait_seconds
    )
    incarnation = time.time_ns() // 1000
    # The process that listens on this port of this host is alone: its predecessor is dead. A port that the system chose
    # names no process.
    named = f"{platform.node()}:{settings.http_port}" if settings.http_port else uuid.uuid4().hex
    return SharedKeys(settings.redis_url, window, holder=settings.replica or named, incarnation=incarnation)


class _WebInLoop(Server):
    """uvicorn in the loop that runs already, which has its own signal handlers."""

    def __init__(self, app: object, protocol: type[asyncio.Protocol], tls: Tls | None) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type]  # uvicorn's ASGI alias is narrower than FastAPI's type
                log_config=None,
                log_level="warning",
                access_log=False,
                http=protocol,
                ws="none",
                lifespan="off",
                timeout_graceful_shutdown=int(_DRAIN_SECONDS),
            ),
            tls,
        )

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]  # uvicorn's own is untyped
        yield


async def _keep_log(intake: Intake, service_health: Health, open_log: Callable[[str], EventLog]) -> None:
    """Opens the log and watches it, and opens each stream as it becomes known; until cancelled. Raises InvalidInput:
    the URL names no log."""
    log = await _opened(intake, service_health, open_log)
    intake.attach_log(log)
    news, loop = asyncio.Event(), asyncio.get_running_loop()
    intake.schemas.on_news = partial(_wake, loop, news)
    beside = [asyncio.create_task(intake.watch.run(log)), asyncio.create_task(intake.announce_when_quiet())]
    try:
        while True:
            news.clear()
            are_open = await _open_streams(intake, service_health)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), _LOOK_SECONDS if are_open else _AGAIN_SECONDS)
    finally:
        for task in beside:
            task.cancel()


def _wake(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> None:
    """From any thread."""
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(news.set)


async def _open_streams(intake: Intake, service_health: Health) -> bool:
    """Each by itself; what is damaged is shown by /readyz. Whether all are open. Raises InvalidInput: a setting that is
    wrong stays wrong."""
    damaged: list[str] = []
    are_open = True
    for name in intake.schemas.oldest_first():
        try:
            await intake.open(name)
        except InvalidInput:
            raise
        except DataLoss as error:
            damaged.append(f"stream {name}: {error.message}")
        except HeadraceError as error:
            are_open = False
            logger.debug("a stream cannot be opened yet", extra={"stream": name, "reason": error.message})
    if damaged:
        service_health.fail(_SEGMENTS, "; ".join(damaged))
    elif _SEGMENTS in service_health.names():
        service_health.satisfy(_SEGMENTS)
    return are_open and not damaged


async def _opened(intake: Intake, service_health: Health, open_log: Callable[[str], EventLog]) -> EventLog:
    """Tries until it can be opened. Raises InvalidInput when the URL names no log."""
    pauses = Pauses(_LOG_BACKOFF)
    while True:
        try:
            return await intake.in_thread(open_log, intake.settings.event_log)
        except InvalidInput:
            raise
        except HeadraceError as error:
            intake.log_is_away(error.message)
            service_health.fail("log", error.message)
            logger.warning("the event log cannot be opened", extra={"reason": error.message})
        await asyncio.sleep(pauses.next_seconds())


if __name__ == "__main__":
    sys.exit(main())
