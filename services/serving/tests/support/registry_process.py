"""A real registry as a process of its own, with versions registered in it as a trainer would."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from common.definition.gate import Gate
from common.registry.catalog import OffsetRange, RoundPlan, VersionDraft
from common.registry.client import RegistryClient, manifest_of

_DEADLINE_SECONDS = 30.0
_SCHEMA = {"features": [{"name": "x", "dtype": "float32"}], "labels": [{"name": "y", "dtype": "int64"}]}
_DEFINITION = "name: {name}\nstream: s\nlabel: y\nestimator: linear_classifier\nfeatures: {{x: {{type: numeric}}}}\n"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class RegistryProcess:
    """`python -m services.registry`; its data survives kill() and start()."""

    data_dir: Path
    grpc_port: int = field(default_factory=_free_port)
    http_port: int = field(default_factory=_free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def start(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.registry"],
            env=inherited
            | {
                "REGISTRY_DATA_DIR": str(self.data_dir),
                "REGISTRY_GRPC_PORT": str(self.grpc_port),
                "REGISTRY_HTTP_PORT": str(self.http_port),
                "REGISTRY_HEARTBEAT_SECONDS": "0.5",
                "REGISTRY_LOG_LEVEL": "WARNING",
            },
        )
        self.client = RegistryClient(self.address, timeout_seconds=_DEADLINE_SECONDS)
        self.client.list_models()

    def kill(self) -> None:
        assert self.process is not None
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=_DEADLINE_SECONDS)

    def add_model(self, name: str) -> None:
        self.client.register_stream("s", json.dumps(_SCHEMA))
        self.client.register_model(
            name, stream="s", files={"model.yaml": _DEFINITION.format(name=name).encode()}, by="test"
        )

    def add_version(self, model: str, saved_model: Path) -> int:
        """Trains, as it were, a version that is this SavedModel; the gate makes it production at once."""
        known = self.client.get_model(model)
        parent = known.aliases.get("production", 0)
        ranges = self.client.get_version(model, parent).ranges if parent else ()
        start = ranges[0].to_offset if ranges else 0
        self.client.plan_round(
            RoundPlan(
                model=model, sequence=known.round_sequence + 1, parent_version=parent, stream="s", schema_version=1,
                ranges=(OffsetRange(0, start, start + 10),), definition_digest=known.definition_digest,
                configuration={}, configuration_digest="c0", code_digest="c1", seed=7, example_count=10,
                trigger="manual", last_event_at=1.0,
            )
        )  # fmt: skip
        lease = self.client.lease_round("test", ttl_seconds=60.0, models=[model])
        assert lease is not None
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "saved_model").symlink_to(saved_model)
            (Path(folder) / "checkpoint").mkdir()
            (Path(folder) / "checkpoint" / "weights").write_bytes(b"not served")
            files = (
                *manifest_of(saved_model, "saved_model"),
                *manifest_of(Path(folder) / "checkpoint", "checkpoint"),
            )
            self.client.upload(Path(folder), files)
        draft = VersionDraft(
            weights_digest="d0", metrics={"candidate": {"auc": 0.9}}, gate=Gate(),
            events_trained=9, events_held_out=1, events_unusable=0, files=files, step=1, timings={}, environment={},
        )  # fmt: skip
        return self.client.register_version(lease, draft).version
