"""A real registry as a separate process, with versions registered in it as a trainer would."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

from common.definition.gate import Gate
from common.registry.catalog import OffsetRange, RoundPlan, VersionDraft
from common.registry.client import RegistryClient, manifest_of
from common.registry.signing import Signer
from common.registry.statements import Statement, digests_of
from testing.registry_server import RegistryServer
from testing.waiting import DEADLINE_SECONDS

_SCHEMA = {
    "features": [{"name": "x", "dtype": "float32"}, {"name": "id", "dtype": "int64"}],
    "labels": [{"name": "y", "dtype": "int64"}],
}
_DEFINITION = "name: {name}\nstream: s\nlabel: y\nestimator: linear_classifier\nfeatures: {{x: {{type: numeric}}}}\n"


class RegistryProcess(RegistryServer):
    """With a client, and calls that register models and versions as a trainer would."""

    def start(self) -> None:
        super().start()
        self.client = RegistryClient(self.address, timeout_seconds=DEADLINE_SECONDS)

    def kill(self) -> None:
        self.client.close()
        super().kill()

    def add_model(self, name: str, more: str = "") -> None:
        """`more`: of its model.yaml."""
        self.client.register_stream("s", json.dumps(_SCHEMA))
        text = _DEFINITION.format(name=name) + more
        self.client.register_model(name, stream="s", files={"model.yaml": text.encode()}, by="test")

    def add_version(self, model: str, saved_model: Path, *, signer: Signer | None = None) -> int:
        """Trains, as it were, a version that is this SavedModel; the gate makes it production at once."""
        known = self.client.get_model(model)
        parent = known.aliases.get("production", 0)
        ranges = self.client.get_version(model, parent).ranges if parent else ()
        start = ranges[0].to_offset if ranges else 0
        self.client.plan_round(
            RoundPlan(
                model=model, sequence=known.round_sequence + 1, parent_version=parent, stream="s", schema_version=1,
                ranges=(OffsetRange(0, start, start + 10),), definition_digest=known.definition_digest,
                configuration={"requested": {"allow_signature_change": True}}, configuration_digest="c0",
                code_digest="c1", seed=7, example_count=10, trigger="manual", last_event_at=1.0,
            )
        )  # fmt: skip
        lease = self.client.lease_round("test", ttl_seconds=60.0, models=[model])
        assert lease is not None
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "saved_model").symlink_to(saved_model)
            (Path(folder) / "checkpoint").mkdir()
            (Path(folder) / "checkpoint" / "weights").write_bytes(b"not served")
            files = (*manifest_of(saved_model, "saved_model"), *manifest_of(Path(folder) / "checkpoint", "checkpoint"))
            self.client.upload(Path(folder), files)
        draft = VersionDraft(
            weights_digest="d0", metrics={"candidate": {"auc": 0.9}}, gate=Gate(),
            events_trained=9, events_held_out=1, events_unusable=0, files=files, step=1, timings={}, environment={},
        )  # fmt: skip
        if signer is not None:
            statement = Statement(model, known.newest_version + 1, digests_of(files), {})
            draft = replace(draft, signature=signer.sign(statement))
        return self.client.register_version(lease, draft).version
