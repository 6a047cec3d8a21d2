"""Every REGISTRY_* setting."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.definition.identity import MAX_PARAMETERS
from common.process.settings import ServiceSettings
from common.registry.reporting import QUIET_SECONDS


class RegistrySettings(ServiceSettings):
    """The registry's settings; environment variables with the prefix REGISTRY_."""

    model_config = SettingsConfigDict(env_prefix="REGISTRY_")

    http_port: int = Field(8701, ge=0, le=65535)
    """HTTP, for people; 0 takes a free port."""
    grpc_port: int = Field(8700, ge=0, le=65535)
    """gRPC, for services; 0 takes a free port."""
    data_dir: Path = Path("data/registry")
    """Folder of the catalog, the files and unfinished uploads; one registry at a time."""

    database: str = ""
    """postgresql://user@host:port/database of the catalog; empty: SQLite in `data_dir`. Several registries may name one
    database: one leads, the others stand by. The files must be at `blobs` then."""
    database_password_file: Path | None = None
    """File with the password of that user; empty: as libpq finds it."""
    blobs: str = ""
    """URL of the folder that holds the files (s3://bucket/registry), for a new registry; empty: `data_dir`. The catalog
    and unfinished uploads stay in `data_dir`."""

    presigned_seconds: int = Field(0, ge=0, le=604_800)
    """For how long a replica or trainer may read a file from `blobs` (s3, gs, az) by a signed URL; at least 60.
    0: the bytes pass through the registry."""

    ingest_url: str = "http://127.0.0.1:8601"
    """Ingest's HTTP door, which the pages ask for dead letters; empty: they do without."""
    trainer_url: str = "http://127.0.0.1:8801"
    """A trainer's HTTP door, which the pages ask for rounds; empty: they do without."""
    serving_url: str = "http://127.0.0.1:8501"
    """Serving's HTTP door, which the pages ask for predictions to try; empty: they do without."""

    webhooks: Path | None = None
    """File that names the receivers of versions, verdicts, promotions, rollbacks and failures; empty: none."""

    max_file_bytes: int = Field(16 * 1024**3, gt=0)
    """Largest file taken."""
    max_parameters: int = Field(MAX_PARAMETERS, ge=1)
    """Most parameters that an estimator's definition may ask for; one of more is refused when it is applied."""
    source_hosts: str = ""
    """Hosts that the sources of streams may name, for their Kafka and their schema registry, separated by commas; `*`
    stands for any characters: `kafka-*.example.org`. Empty: any."""
    max_models_per_principal: int = Field(1_000, ge=1)
    """Models that one principal may create, where identity is on; deleted models do not count."""
    max_schemas_per_principal: int = Field(1_000, ge=1)
    """Streams, and newer versions of their schemas, that one principal may register, where identity is on."""
    max_versions_per_principal: int = Field(1_000, ge=1)
    """Versions that one principal may have pushed, where identity is on; those of deleted models do not count."""
    backoff_first_seconds: float = Field(2.0, gt=0)
    """How long no round is planned after a model's first failed round; doubled with each further failure in a row, up
    to 600 s."""
    upload_grace_seconds: float = Field(3600.0, ge=0)
    """How long a file stays that nothing refers to."""
    pack_after_seconds: float = Field(10.0, ge=0)
    """Of a file of 4 MiB or more that a trainer sent as a patch of another file, the registry keeps the patch. When the
    file is read it is put together and stays whole for this time after its last read. 0: all such files stay whole."""
    keep_audit_entries: int = Field(1_000_000, ge=1000)
    """Newest entries of the audit log that are kept, and up to a tenth more. Export older entries before."""
    max_watchers: int = Field(64, ge=1, le=1000)
    """Watchers at once; each holds one thread."""
    heartbeat_seconds: float = Field(QUIET_SECONDS, gt=0, le=QUIET_SECONDS)
    """A watcher hears at least this often."""

    @classmethod
    def _renamed(cls) -> Mapping[str, str]:
        return {
            "REGISTRY_KEEP_VERSIONS": "`retention: {keep_newest}` of model.yaml",
            "REGISTRY_KEEP_VERSIONS_EVERY_SECONDS": "`retention: {keep_hourly_days, keep_daily_days}` of model.yaml",
        }
