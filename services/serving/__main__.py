"""`python -m services.serving`: the front, and below it the manager with the runners."""

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterator

import uvicorn
import uvloop
from prometheus_client import REGISTRY

from common.errors import HeadraceError
from common.health import Health
from common.logs import configure_logs
from common.rpc_aio import start_aio_server
from common.web import bind
from services.serving import front as front_core
from services.serving import grpc_api, manager_process
from services.serving.fast_http import protocol_for
from services.serving.front import Front
from services.serving.http_api import CORS_HEADERS, create_serving_app
from services.serving.journal import Journal
from services.serving.manager_process import ManagerProcess
from services.serving.rest_predict import RestPredict
from services.serving.settings import ServingSettings
from services.serving.statistics import Statistics

logger = logging.getLogger(__name__)

_GC_THRESHOLD = 50_000
"""Nothing on the request path makes cycles; the default would stop the loop a hundred times more often."""

_LAST_ANSWERS_SECONDS = 1.0
_KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections: a connection that the server closes just as it is used fails a request."""


class _WebServer(uvicorn.Server):
    """uvicorn without its signal handlers: this process stops in an order of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> int:
    try:
        settings = ServingSettings.from_environment()
    except HeadraceError as error:
        print(f"serving: {error.message}", file=sys.stderr)
        return 2
    configure_logs("serving", log_format=settings.log_format, level=settings.log_level)
    try:
        sock = bind(settings.host, settings.http_port)
        uvloop.run(_serve(settings, sock))
    except HeadraceError as error:
        logger.error("cannot serve: %s", error.message)
        return 1
    return 0


async def _serve(settings: ServingSettings, sock: socket.socket) -> None:
    """Wires the front and runs it until SIGTERM or SIGINT, or until a part of it fails."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    health = Health(front_core.CONDITION, manager_process.CONDITION)
    front = Front(
        redis_url=settings.redis_url,
        front_id=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        queue_limit=settings.queue_limit,
        in_flight_limit=settings.in_flight_limit,
        timeout_seconds=settings.request_timeout_seconds,
        health=health,
    )
    statistics = Statistics(lambda: front.open_count)
    REGISTRY.register(statistics)
    journal = Journal(statistics)
    web_server = _web_server(settings, front, RestPredict(front, journal), health)
    manager = ManagerProcess(on_state=front.update, health=health)
    await manager.start()
    grpc_server, grpc_port = await start_aio_server(
        f"{settings.host}:{settings.grpc_port}",
        lambda server: grpc_api.add_services(server, front, journal),
        service_names=grpc_api.SERVICE_NAMES,
        service_health=health,
    )
    web = loop.create_task(web_server.serve([sock]))
    others = [loop.create_task(front.queue_client.run()), loop.create_task(manager.run())]
    logger.info("serving", extra={"http_port": sock.getsockname()[1], "grpc_port": grpc_port})
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)

    await asyncio.wait([loop.create_task(stop.wait()), web, *others], return_when=asyncio.FIRST_COMPLETED)
    logger.info("stopping", extra={"open_requests": front.open_count})
    health.stop()
    web_server.should_exit = True
    await _drain(front, [web, loop.create_task(grpc_server.stop(settings.drain_seconds))], settings.drain_seconds)
    await manager.stop(settings.drain_seconds)
    for task in others:
        task.cancel()
    for result in await asyncio.gather(web, *others, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def _web_server(settings: ServingSettings, front: Front, predict: RestPredict, health: Health) -> _WebServer:
    config = uvicorn.Config(
        create_serving_app(
            front, predict, health, max_body_bytes=settings.max_body_bytes, enable_cors=settings.enable_cors
        ),
        http=protocol_for(
            predict,
            max_body_bytes=settings.max_body_bytes,
            extra_headers=CORS_HEADERS if settings.enable_cors else None,
        ),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds + _LAST_ANSWERS_SECONDS),
    )
    return _WebServer(config)


async def _drain(front: Front, doors: list[asyncio.Task[None]], drain_seconds: float) -> None:
    """Lets the doors, which take nothing new, finish what they took; in the end the rest is answered with 503."""
    await asyncio.wait(doors, timeout=drain_seconds)
    if left := front.give_up():
        logger.warning("requests were not finished in time", extra={"count": left})
        await asyncio.wait(doors, timeout=_LAST_ANSWERS_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
