"""Starts the trainer: `python -m services.trainer`, settings TRAINER_*. This process never imports TensorFlow."""

import logging
import sys
import threading
import time
from collections.abc import Callable

from common.access.guard import Guard
from common.errors import HeadraceError
from common.eventlog.open import open_event_log
from common.eventlog.sourced_log import SourcedLog
from common.process import rpc
from common.process.health import Health
from common.process.lifecycle import Stop, close_all, raise_open_files_limit
from common.process.logs import configure_logs
from common.process.memory import keep_giving_back
from common.process.tracing import open_tracing
from common.process.web import WebServer, bind, bounds_of
from common.registry.catalog import Change, ChangeKind
from common.registry.client import RegistryClient
from common.registry.follow import follow
from common.registry.reporting import Part, Report, Reporter
from common.registry.signing import read_signer
from services.trainer.control.cluster import Cluster, place_of
from services.trainer.control.identity import holder_id, holder_secret, own_data_dir
from services.trainer.control.lease import RoundLoop
from services.trainer.control.rebuilds import Rebuilds
from services.trainer.http_api import MAX_BODY_BYTES, create_http_app
from services.trainer.live.watch import LiveWatch
from services.trainer.plan.forgetting import Forgetting
from services.trainer.plan.lineage import code_digest
from services.trainer.plan.planner import Planner
from services.trainer.plan.replay import Replays
from services.trainer.rules import RULES
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
ROUND_FUNCTION = "services.trainer.rounds.process:run_round"
_GRPC_STOP_SECONDS = 2.0
_MAX_BODIES_BYTES = 64 * MAX_BODY_BYTES
_MAX_REGISTRY_CALL_SECONDS = 5.0
_MAX_ROUND_CALL_SECONDS = 30.0
"""A registry that restarts within this time costs a round nothing but the wait."""


def main(round_function: str = ROUND_FUNCTION) -> int:
    """Exit status 0 after a stop that was asked for, 1 when the trainer cannot start, 2 for a setting that is wrong.

    Args:
        round_function: "module:function", what a round's process runs; the tests put their own here.
    """
    try:
        settings = TrainerSettings.from_environment()
    except HeadraceError as error:
        print(f"trainer: {error.message}", file=sys.stderr)
        return 2
    raise_open_files_limit()
    keep_giving_back()
    stop = Stop()
    stop.listen_for_signals()
    try:
        configure_logs("trainer", log_format=settings.log_format, level=settings.log_level)
        _run(settings, round_function, stop)
    except HeadraceError as error:
        print(f"trainer: {error.message}", file=sys.stderr)
        return 1
    return 0


def _run(settings: TrainerSettings, round_function: str, stop: Stop) -> None:
    health = Health("registry", "event_log", "zygote")
    guard = Guard(settings.open_access(settings.host), RULES)
    tracing = open_tracing("trainer", settings.trace_sample)
    signer = read_signer(settings.signing_key_file) if settings.signing_key_file else None
    own_data_dir(settings.data_dir)
    log = SourcedLog(open_event_log(settings.event_log), settings.event_log)
    tls = settings.open_tls(health)
    call_seconds = min(_MAX_REGISTRY_CALL_SECONDS, settings.lease_ttl_seconds / 3)

    def open_registry(traceparent: str = "", timeout_seconds: float = _MAX_ROUND_CALL_SECONDS) -> RegistryClient:
        return RegistryClient(
            settings.registry_address, timeout_seconds=timeout_seconds, traceparent=traceparent,
            authorization=settings.authorization(), tls=tls,
        )  # fmt: skip

    registry = open_registry(timeout_seconds=call_seconds)
    planner = Planner(settings, registry=registry, log=log, health=health, on_planned=lambda: rounds.wake())
    holder, place = holder_id(settings.data_dir, settings.id), place_of(settings)
    rebuilds = Rebuilds(settings, registry, holder=holder)
    cluster = Cluster(settings, registry, place, holder=holder, code_digest=code_digest()) if place else None
    rounds = RoundLoop(
        settings,
        holder=holder,
        secret=holder_secret(settings.data_dir),
        registry=registry,
        open_registry=open_registry,
        round_function=round_function,
        health=health,
        rebuilds=rebuilds,
        known_models=planner.known_models,
        has_open_rounds=planner.has_open_rounds,
        on_ended=planner.wake,
        cluster=cluster,
        tracing=tracing,
        signer=signer,
    )

    live = LiveWatch(registry, log)

    def on_change(change: Change) -> None:
        planner.mark_stale(change.kind, change.name)
        if change.kind is ChangeKind.ROUND:
            rounds.look_at_round(change.detail)
        if change.kind in (ChangeKind.MODEL, ChangeKind.ALIAS, ChangeKind.STREAM, ChangeKind.RESET):
            live.wake()
        rounds.wake()

    def on_away(reason: str) -> None:
        """The planner asks the registry again, and says that it is not ready while there is no answer."""
        planner.mark_stale(ChangeKind.RESET, "")
        rounds.wake()

    sock = bind(settings.host, settings.http_port)
    bounds = bounds_of(
        sock, service="trainer", allowed_hosts=settings.allowed_hosts, max_bodies_bytes=_MAX_BODIES_BYTES,
        of_principal=settings.max_connections_per_principal,
    )  # fmt: skip
    app = create_http_app(
        planner,
        Forgetting(registry, log, planner),
        Replays(registry, log, planner, time.time),
        rounds,
        rebuilds,
        health,
        settings,
        registry,
        tracing,
        guard,
    )
    web = WebServer(app, sock, bounds, tls)
    grpc_server, grpc_port = rpc.start_server(
        f"{settings.host}:{settings.grpc_port}",
        lambda server: None,
        service_names=(),
        service_health=health,
        max_workers=4,
        guard=guard,
        shares_of=settings.shares_of_calls,
        tls=tls,
    )
    web.start()
    report = _reports_of(planner, rounds, address=f"{settings.host}:{web.port}")
    Reporter(registry.report, report, stop).start()
    logger.info("trainer started", extra={"http_port": web.port, "grpc_port": grpc_port, "trainer": rounds.holder})
    threading.Thread(
        target=lambda: follow(registry, on_change, stop=stop, on_away=on_away), name="watch", daemon=True
    ).start()
    threading.Thread(target=live.run, args=(stop,), name="live", daemon=True).start()
    _work_until(stop, planner, rounds, health)

    def stop_grpc() -> None:
        grpc_server.stop(_GRPC_STOP_SECONDS).wait(_GRPC_STOP_SECONDS)

    close_all(web.stop, stop_grpc, registry.close, log.close, tracing.close)
    logger.info("trainer stopped")


def _reports_of(planner: Planner, rounds: RoundLoop, *, address: str) -> Callable[[], Report]:
    """What this trainer tells the registry of itself, each time it is called."""
    started_at = time.time()

    def report() -> Report:
        status = planner.status()
        return Report(
            instance_id=rounds.holder,
            service="trainer",
            address=address,
            started_at=started_at,
            does=rounds.doing(),
            faults=tuple(f"{model}: {reason}" for model, reason in planner.faults().items()),
            numbers={
                "lag_examples": float(sum(model["lag_examples"] for model in status)),
                "running_rounds": float(len(rounds.running)),
                "helped_rounds": float(rounds.helping is not None),
                "ready_to_train": float(rounds.zygote_status()["ready"]),
            },
            parts=tuple(
                Part(model=model["model"], numbers={"lag_examples": float(model["lag_examples"])}) for model in status
            ),
            models=planner.counted(),
        )

    return report


def _work_until(stop: Stop, planner: Planner, rounds: RoundLoop, health: Health) -> None:
    """Plans and runs rounds, in a thread each; returns when both have ended."""
    threads = [
        threading.Thread(target=rounds.run, args=(stop,), name="rounds"),
        threading.Thread(target=planner.run, args=(stop,), name="planner"),
    ]
    for thread in threads:
        thread.start()
    while not stop.wait(60.0):
        pass
    health.stop()
    rounds.wake()
    planner.wake()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
