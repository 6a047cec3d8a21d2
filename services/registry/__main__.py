"""python -m services.registry: settings, catalog, two doors, then wait."""

import fcntl
import logging
import os
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import grpc
from prometheus_client import REGISTRY
from starlette.types import ASGIApp

from common.access.guard import Guard
from common.errors import HeadraceError, InvalidInput, Unavailable
from common.process import scheduling
from common.process.health import Health
from common.process.lifecycle import Stop, close_all, raise_open_files_limit
from common.process.logs import configure_logs
from common.process.memory import keep_giving_back
from common.process.retry import Backoff
from common.process.rpc import start_server
from common.process.tls import Tls
from common.process.tracing import open_tracing
from common.process.web import WebServer, bind, bounds_of, create_app
from common.storage import place_of
from protos import registry_pb2_grpc
from services.registry.catalog import Catalog, CatalogLimits
from services.registry.doors.audited import AuditedGuard
from services.registry.doors.grpc_api import SERVICE_NAME, RegistryServicer
from services.registry.doors.http_api import MAX_BODY_BYTES, create_registry_app
from services.registry.doors.rules import RULES
from services.registry.doors.stands_by import StandsBy
from services.registry.metrics import CatalogMetrics
from services.registry.pages.forms import read_secret
from services.registry.pages.service_links import ServiceLinks
from services.registry.rounds.leases import LeaseRules
from services.registry.settings import RegistrySettings
from services.registry.store.postgres import Leadership, lead, open_engine, url_of
from services.registry.store.shelf import claim
from services.registry.webhooks.hooks import read_webhooks
from services.registry.webhooks.sender import PlacesInFiles, Webhooks

logger = logging.getLogger(__name__)
# Calls other than watches that run at once; an upload counts from its first to its last byte.
_CALLS = 32
_GRPC_GRACE_SECONDS = 5.0
_MAX_BODIES_BYTES = 8 * MAX_BODY_BYTES
_MOST_LOST_LEASES = 100
_LONGEST_BACKOFF_SECONDS = 600.0
_COLLECT_SECONDS = 600.0
"""Between garbage collections, which thin versions, too."""


def main() -> int:
    """Exit status 0 after SIGTERM, 1 when it cannot start, 2 for a setting that is unknown or of another type."""
    started_at = time.monotonic()
    try:
        settings = RegistrySettings.from_environment()
    except HeadraceError as error:
        print(f"registry: {error.message}", file=sys.stderr)
        return 2
    configure_logs("registry", log_format=settings.log_format, level=settings.log_level)
    raise_open_files_limit()
    # A version costs 60 ms of a core here. Where serving shares the machine, predictions go first.
    scheduling.stay_in_background(scheduling.LoadPriority.NICE)
    keep_giving_back()
    stop = Stop()
    stop.listen_for_signals()
    try:
        with _lock_of(settings.data_dir):
            is_superseded = _serve(settings, stop, started_at)
    except HeadraceError as error:
        logger.error("cannot run: %s", error.message)
        return 1
    if is_superseded:  # as the same process: a supervisor that counts starts waits longer before each
        logger.warning("another registry leads; this registry begins anew and stands by")
        os.execv(sys.executable, [sys.executable, "-m", "services.registry"])  # noqa: S606
    return 0


def _serve(settings: RegistrySettings, stop: Stop, started_at: float) -> bool:
    """Until it is stopped, or no longer leads; whether it no longer leads."""
    service_health = Health("catalog")
    access = settings.open_access(settings.host)
    tls = settings.open_tls(service_health)
    tracing = open_tracing("registry", settings.trace_sample)
    leadership = _led(settings, stop, service_health, Guard(access, RULES), tls) if settings.database else None
    shelf = claim(
        settings.data_dir, settings.blobs,
        owner=leadership.owner if leadership else "", presigned_seconds=settings.presigned_seconds,
    )  # fmt: skip
    catalog = Catalog(settings.data_dir, _limits_of(settings), shelf=shelf, leadership=leadership)
    guard = AuditedGuard(access, RULES, catalog.audit)
    REGISTRY.register(CatalogMetrics(catalog, data_dir=settings.data_dir))
    service_health.satisfy("catalog")
    service_links = ServiceLinks(
        settings.ingest_url, settings.trainer_url, settings.serving_url, settings.authorization(), tls
    )
    secret = leadership.secret if leadership else read_secret(settings.data_dir / "pages.secret")
    servicer = RegistryServicer(catalog)
    hooks = read_webhooks(settings.webhooks) if settings.webhooks else ()
    places = leadership or PlacesInFiles(settings.data_dir / "webhooks")
    webhooks = Webhooks(hooks, catalog, places, stop=stop)
    app = create_registry_app(
        catalog, service_health, service_links=service_links, secret=secret, webhooks=webhooks.listed, tracing=tracing,
        guard=guard,
    )  # fmt: skip
    web = _web(app, settings, tls)
    server, grpc_port = start_server(
        f"{settings.host}:{settings.grpc_port}",
        lambda server: registry_pb2_grpc.add_RegistryServiceServicer_to_server(servicer, server),
        service_names=(SERVICE_NAME,),
        service_health=service_health,
        max_workers=settings.max_watchers + _CALLS,
        tracing=tracing,
        guard=guard,
        shares_of=settings.shares_of_calls,
        tls=tls,
    )
    web.start()
    webhooks.start()
    logger.info(
        "ready",
        extra={
            "http_port": web.port,
            "grpc_port": grpc_port,
            "data_dir": str(settings.data_dir),
            "blobs": settings.blobs or str(settings.data_dir),
            "seconds": round(time.monotonic() - started_at, 3),
        },
    )
    if settings.pack_after_seconds:
        given = (catalog, stop, settings.pack_after_seconds)
        threading.Thread(target=_pack, args=given, name="pack", daemon=True).start()
    while not stop.wait(_COLLECT_SECONDS):
        _collect(catalog)
    logger.info("stopping")
    service_health.stop()
    catalog.end_watches()
    close_all(
        lambda: _stop_grpc(server), web.stop, catalog.close, *([leadership.close] if leadership else []), tracing.close
    )
    return bool(leadership and leadership.lost.is_set())


def _led(settings: RegistrySettings, stop: Stop, service_health: Health, guard: Guard, tls: Tls | None) -> Leadership:
    """Once this registry leads; until then its HTTP door gives the reason. Raises InvalidInput, Unavailable."""
    if not settings.blobs:
        raise InvalidInput("REGISTRY_DATABASE needs REGISTRY_BLOBS: another registry would not find files in a folder")
    engine = open_engine(url_of(settings.database, settings.database_password_file))
    web = _web(StandsBy(create_app("registry", service_health, guard=guard)), settings, tls)
    web.start()
    try:
        with suppress(Unavailable):  # To have met the store while it stands by saves a failover a second.
            place_of(settings.blobs).exists()
        leadership = lead(
            engine, uuid.uuid4().hex, is_stopped=stop.wait, report=lambda reason: service_health.fail("catalog", reason)
        )
    finally:
        web.stop()

    def step_down() -> None:
        service_health.fail("catalog", "another registry leads")
        stop.request()

    leadership.watch(step_down)
    return leadership


def _web(app: ASGIApp, settings: RegistrySettings, tls: Tls | None) -> WebServer:
    sock = bind(settings.host, settings.http_port)
    bounds = bounds_of(
        sock, service="registry", allowed_hosts=settings.allowed_hosts, max_bodies_bytes=_MAX_BODIES_BYTES,
        of_principal=settings.max_connections_per_principal,
    )  # fmt: skip
    return WebServer(app, sock, bounds, tls)


def _stop_grpc(server: grpc.Server) -> None:
    """No new calls; those that run have a while to finish."""
    server.stop(_GRPC_GRACE_SECONDS).wait(_GRPC_GRACE_SECONDS + 1)


def _collect(catalog: Catalog) -> None:
    try:
        collected = catalog.collect()
    except Exception:  # outermost loop: the next run may succeed
        logger.exception("garbage collection failed")
        return
    if collected.removed_files or collected.archived_versions:
        logger.info("collected", extra={"files": collected.removed_files, "freed_bytes": collected.freed_bytes})


def _pack(catalog: Catalog, stop: Stop, every_seconds: float) -> None:
    while not stop.wait(max(1.0, every_seconds / 2)):
        try:
            if freed := catalog.pack():
                logger.info("packed", extra={"freed_bytes": freed})
        except Exception:  # outermost loop: the next run may succeed
            logger.exception("packing failed")


def _limits_of(settings: RegistrySettings) -> CatalogLimits:
    return CatalogLimits(
        lease_rules=LeaseRules(_MOST_LOST_LEASES, Backoff(settings.backoff_first_seconds, _LONGEST_BACKOFF_SECONDS)),
        upload_grace_seconds=settings.upload_grace_seconds,
        pack_after_seconds=settings.pack_after_seconds,
        max_file_bytes=settings.max_file_bytes,
        max_watchers=settings.max_watchers,
        max_parameters=settings.max_parameters,
        shares={
            "model": settings.max_models_per_principal,
            "schema": settings.max_schemas_per_principal,
            "version": settings.max_versions_per_principal,
        },
        source_hosts=settings.source_hosts.replace(",", " ").lower().split(),
        heartbeat_seconds=settings.heartbeat_seconds,
        keep_audit_entries=settings.keep_audit_entries,
    )


def _lock_of(data_dir: Path) -> TextIO:
    """Holds the folder for this process until it ends, however it ends. Raises Unavailable: another registry has it, or
    it cannot be made."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (data_dir / "lock").open("a")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Unavailable(f"another registry runs on {data_dir}") from error
    except OSError as error:
        raise Unavailable(f"the data folder {data_dir} cannot be used: {error.strerror}") from error
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


if __name__ == "__main__":
    sys.exit(main())
