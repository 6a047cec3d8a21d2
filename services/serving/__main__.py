"""`python -m services.serving`: the front, and below it the manager with the runners.

Takes TensorFlow Serving's flags (flags.py): with --model_base_path or --model_config_file it serves folders by itself,
with nothing but a Redis beside it; else the versions that a registry names.
"""

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop
from prometheus_client import REGISTRY

from common.errors import HeadraceError
from common.process.health import Health
from common.process.http_door import HttpBounds
from common.process.lifecycle import Stop, raise_open_files_limit
from common.process.logs import configure_logs
from common.process.memory import keep_giving_back
from common.process.rpc_aio import start_aio_server
from common.process.tracing import Tracing, open_tracing
from common.process.uvicorn_server import Server
from common.process.web import bind, bounds_of, listeners
from common.registry.client import RegistryClient
from common.registry.reporting import Reporter
from services.serving.doors import grpc_api
from services.serving.doors.http_api import create_serving_app, web_config
from services.serving.doors.large_messages import LargeMessages
from services.serving.doors.model_doors import add_model_doors
from services.serving.doors.rest_predict import RestPredict
from services.serving.front import core as front_core
from services.serving.front.async_predictions import AsyncPredictions, async_limits
from services.serving.front.core import Front
from services.serving.front.front_metrics import FrontMetrics
from services.serving.front.journal import Journal
from services.serving.front.load_trace import LoadTrace
from services.serving.front.monitoring import add_metrics_route
from services.serving.front.reload_jitter import ReloadJitter
from services.serving.front.reports import ReplicaReports
from services.serving.front.request_counts import ApiLatency, RequestCounts
from services.serving.front.request_log import following, open_request_log
from services.serving.front.shadow import Shadow
from services.serving.options.flags import read_flags, usage
from services.serving.options.model_priorities import priorities_of
from services.serving.replica import manager_process
from services.serving.replica.manager_process import ManagerProcess
from services.serving.start import Start, grpc_options, read_start
from services.serving.wire.limits import Limits

logger = logging.getLogger(__name__)

_GC_THRESHOLD = 50_000
"""Nothing on the request path makes cycles; the default would stop the loop a hundred times more often."""

_BODIES = 8
"""As many of the largest bodies may be under way at a time."""
_LAST_ANSWERS_SECONDS = 1.0
_REPORT_TIMEOUT_SECONDS = 3.0
_LAST_RECORDS_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections: a connection that the server closes just as it is used fails a request."""


class _WebServer(Server):
    """uvicorn without its signal handlers: this process stops in an order of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_data_dir(data_dir: Path) -> None:
    """For its owner only: others could change what is loaded. A process that cannot write there fails when it has
    to."""
    with contextlib.suppress(OSError):
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        flags = read_flags(sys.argv[1:] if arguments is None else arguments)
        if flags.prints_version or flags.prints_help:
            print(usage() if flags.prints_help else f"Headrace serving {_version()}")
            return 0
        # The manager, a child, reads the same variables.
        os.environ.update({f"SERVING_{name.upper()}": value for name, value in flags.variables.items()})
        start = read_start()
    except HeadraceError as error:
        print(f"serving: {error.message}", file=sys.stderr)
        return 2
    settings = start.settings
    raise_open_files_limit()
    keep_giving_back()
    configure_logs("serving", log_format=settings.log_format, level=settings.log_level)
    make_data_dir(settings.data_dir)
    try:
        sock = bind(settings.host, settings.http_port) if settings.enable_rest else None
        tracing = open_tracing("serving", settings.trace_sample)
        uvloop.run(_serve(start, sock, tracing))
        tracing.close()
    except HeadraceError as error:
        logger.error("cannot serve: %s", error.message)
        return 1
    return 0


def _version() -> str:
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:
        return "(not installed)"


async def _serve(start: Start, sock: socket.socket | None, tracing: Tracing) -> None:
    """Wires the front and runs it until SIGTERM or SIGINT, or until a part of it fails."""
    settings = start.settings
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    health = Health(front_core.CONDITION, manager_process.CONDITION)
    if start.tls is not None:
        start.tls.show_in(health)
    front = _make_front(start, health)
    asynchronous = AsyncPredictions(settings.redis_url, queue_limit=settings.queue_limit, limits=async_limits(settings))
    REGISTRY.register(asynchronous)
    request_log = open_request_log(settings)
    if request_log is not None:
        REGISTRY.register(request_log)
        request_log.start()
    latency = ApiLatency() if start.metrics_path else None
    counts = _counts_of(front, settings.reload_p99_factor)
    shadow = Shadow(front, request_log.offer) if request_log is not None else None
    if shadow is not None:
        REGISTRY.register(shadow)
    journal = Journal(counts, request_log, latency, tracing, shadow)
    large = LargeMessages(front.limits)
    predict = RestPredict(front, journal, large, timeout_seconds=settings.rest_timeout_seconds)
    bounds = None if sock is None else bounds_of(
        sock, service="serving", allowed_hosts=settings.allowed_hosts,
        max_bodies_bytes=_BODIES * settings.max_body_bytes, of_principal=settings.max_connections_per_principal,
        any_origin=settings.enable_cors,
    )  # fmt: skip
    web_server = _web_server(start, front, predict, asynchronous, health, latency, bounds, tracing)
    update = LoadTrace(tracing, front.update) if tracing.is_on else front.update
    manager = ManagerProcess(on_state=following(update, request_log, settings), health=health)
    front.cold.request_loads = manager.request_loads
    await manager.start()
    grpc_server, grpc_port = await _start_grpc(start, front, journal, large, manager, health)
    web: asyncio.Task[Any] = loop.create_task(web_server.serve(listeners(sock)) if sock is not None else stop.wait())
    others = [loop.create_task(front.queue_clients.run()), loop.create_task(manager.run())]
    logger.info("serving", extra={"http_port": sock.getsockname()[1] if sock else None, "grpc_port": grpc_port})
    stop_reports = _start_reports(start, front, counts, sock)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)

    await asyncio.wait([loop.create_task(stop.wait()), web, *others], return_when=asyncio.FIRST_COMPLETED)
    logger.info("stopping", extra={"open_requests": front.open_count})
    health.stop()
    stop_reports()
    asynchronous.waiting.stop()
    stop.set()
    web_server.should_exit = True
    await _drain(front, [web, loop.create_task(grpc_server.stop(settings.drain_seconds))], settings.drain_seconds)
    await manager.stop(settings.drain_seconds)
    await asynchronous.close()
    if request_log is not None:
        await asyncio.to_thread(request_log.stop, timeout_seconds=_LAST_RECORDS_SECONDS)
    await _end(web, others)


def _make_front(start: Start, health: Health) -> Front:
    settings = start.settings
    front = Front(
        redis_url=settings.redis_url,
        front_id=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        queue_limit=settings.queue_limit,
        in_flight_limit=settings.in_flight_limit,
        timeout_seconds=max(settings.request_timeout_seconds, settings.rest_timeout_seconds or 0.0),
        health=health,
        namespace=settings.namespace(),
        limits=Limits(settings.max_body_bytes, settings.max_rows, settings.max_lists),
        priorities=priorities_of(settings.model_priorities),
    )
    if start.state is not None:
        front.update(start.state)
    return front


def _counts_of(front: Front, reload_p99_factor: float) -> RequestCounts:
    """The counts of a front's requests; with its own they are shown to Prometheus."""
    counts = RequestCounts(lambda: front.open_count)
    front.reloads = ReloadJitter(counts, reload_p99_factor)
    REGISTRY.register(counts)
    REGISTRY.register(front.reloads)
    REGISTRY.register(FrontMetrics(front))
    return counts


def _start_reports(start: Start, front: Front, counts: RequestCounts, sock: socket.socket | None) -> Callable[[], None]:
    """Reports to the registry every few seconds; returns the function that ends it. Folders have no registry."""
    settings = start.settings
    if settings.is_standalone():
        return lambda: None
    registry = RegistryClient(
        settings.registry_address, timeout_seconds=_REPORT_TIMEOUT_SECONDS, authorization=settings.authorization(),
        tls=start.calls_tls,
    )  # fmt: skip
    stop = Stop()
    address = f"{settings.host}:{sock.getsockname()[1]}" if sock is not None else ""
    make = ReplicaReports(
        lambda: front.routing.state,
        counts,
        queues=lambda: {target: route.queue.depth for target, route in tuple(front.routing.routes.items())},
        queue_faults=lambda: front.queue_clients.faults,
        instance_id=settings.replica or f"{socket.gethostname()}-{os.getpid()}",
        address=address,
        started_at=time.time(),
    )
    Reporter(registry.report, make, stop).start()

    def end() -> None:
        stop.request()
        registry.close()

    return end


async def _start_grpc(
    start: Start, front: Front, journal: Journal, large: LargeMessages, manager: ManagerProcess, health: Health
) -> tuple[grpc.aio.Server, int]:
    """The server of the gRPC door, and its port."""
    settings = start.settings
    return await start_aio_server(
        f"{settings.host}:{settings.grpc_port}",
        lambda server: grpc_api.add_services(
            server, front, journal, large, reload=manager.reload if settings.is_standalone() else None
        ),
        service_names=grpc_api.SERVICE_NAMES, service_health=health, tls=start.tls, guard=start.guard,
        socket_path=settings.grpc_socket_path, options=grpc_options(settings),
        max_messages_bytes=_BODIES * settings.max_body_bytes, shares_of=settings.shares_of_calls,
    )  # fmt: skip


async def _end(web: asyncio.Task[Any], others: list[asyncio.Task[None]]) -> None:
    """Ends the tasks beside the web server; raises the first failure."""
    for task in others:
        task.cancel()
    for result in await asyncio.gather(web, *others, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def _web_server(
    start: Start,
    front: Front,
    predict: RestPredict,
    asynchronous: AsyncPredictions,
    health: Health,
    latency: ApiLatency | None,
    bounds: HttpBounds | None,
    tracing: Tracing,
) -> _WebServer:
    settings = start.settings
    options: dict[str, Any] = {
        "max_body_bytes": settings.max_body_bytes, "enable_cors": settings.enable_cors, "guard": start.guard,
    }  # fmt: skip
    app = create_serving_app(front, predict, asynchronous, health, tracing=tracing, **options)
    add_model_doors(app, front)
    add_metrics_route(app, start.metrics_path, latency)
    config = web_config(
        app, predict, bounds=bounds, keep_alive_seconds=_KEEP_ALIVE_SECONDS,
        graceful_seconds=math.ceil(settings.drain_seconds + _LAST_ANSWERS_SECONDS), **options,
    )  # fmt: skip
    return _WebServer(config, start.tls if settings.rest_tls else None)


async def _drain(front: Front, doors: list[asyncio.Task[Any]], drain_seconds: float) -> None:
    """Lets the doors, which take nothing new, finish their requests; in the end the rest is answered with 503."""
    await asyncio.wait(doors, timeout=drain_seconds)
    if left := front.give_up():
        logger.warning("requests were not finished in time", extra={"count": left})
        await asyncio.wait(doors, timeout=_LAST_ANSWERS_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
