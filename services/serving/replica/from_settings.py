"""The manager's parts, by its settings: the source of models, the limits, and the models to load."""

from collections.abc import Callable
from pathlib import Path

from common.process.pace import Pace
from common.process.pressure import YieldingRate
from common.process.tls import Tls
from services.serving.options.model_priorities import ModelPriority, priorities_of
from services.serving.options.platform_names import platform_names
from services.serving.options.settings import SLOWEST_DOWNLOAD, ServingSettings
from services.serving.replica.loads import ReplicaLimits
from services.serving.replica.on_demand import OnDemand
from services.serving.replica.sources.configured_models import ConfiguredModels
from services.serving.replica.sources.registry_source import RegistrySource
from services.serving.replica.sources.signed_versions import verifier
from services.serving.replica.sources.source import ModelSource
from services.serving.replica.versions_wanted import Wanted


def source_of(
    settings: ServingSettings,
    *,
    post: Callable[[Callable[[], None]], None],
    on_wanted: Callable[[Wanted], None],
    is_serving: Callable[[], bool],
) -> ModelSource:
    """Raises InvalidInput: the trusted keys cannot be read."""
    verify_signature = verifier(Path(settings.trusted_keys_file)) if settings.require_signed else None
    if settings.is_standalone():
        return ConfiguredModels(
            settings, platforms=platform_names(), verify_signature=verify_signature, post=post, on_wanted=on_wanted
        )
    rate = YieldingRate(settings.download_bytes_per_second, SLOWEST_DOWNLOAD)
    # Replicas may share a data directory when they have names; a replica without a name has a folder of its own.
    return RegistrySource(
        settings.registry_address,
        settings.data_dir / Path(settings.replica or "replica"),
        kept_versions=settings.kept_versions,
        served_models=[name.strip() for name in settings.models.split(",") if name.strip()],
        pace=Pace(lambda: rate() if settings.download_bytes_per_second and is_serving() else 0.0),
        verify_signature=verify_signature,
        authorization=settings.authorization(),
        tls=Tls.of(files) if (files := settings.tls_files()) else None,
        post=post,
        on_wanted=on_wanted,
    )


def on_demand_of(settings: ServingSettings) -> OnDemand | None:
    """None where all models are loaded."""
    if not settings.model_memory_bytes:
        return None
    priorities = priorities_of(settings.model_priorities)
    return OnDemand(settings.model_memory_bytes, priorities, models_per_runner=settings.models_per_runner)


def limits_of(settings: ServingSettings) -> ReplicaLimits:
    priorities = priorities_of(settings.model_priorities)
    return ReplicaLimits(
        parallel_loads=settings.parallel_loads,
        load_timeout_seconds=settings.load_timeout_seconds,
        load_attempts=settings.load_attempts,
        idle_load_seconds=settings.idle_load_seconds,
        run_timeout_seconds=settings.run_timeout_seconds,
        parallel_unloads=settings.parallel_unloads,
        load_retry_seconds=settings.load_retry_seconds,
        models_per_runner=settings.models_per_runner,
        low_models=frozenset(name for name, priority in priorities.items() if priority is ModelPriority.LOW),
    )
