"""The building blocks of tests that talk to a registry process through the client."""

import json
from pathlib import Path

from common.registry.catalog import Version, VersionDraft
from common.registry.client import RegistryClient, manifest_of
from services.registry.tests.building import GATE, SCHEMA, definition, next_plan
from testing.saved_models import saved_model


def register_all(client: RegistryClient) -> None:
    """Stream s and model m."""
    client.register_stream("s", json.dumps(SCHEMA))
    client.register_model("m", stream="s", files=definition(), by="test")


def write_version(directory: Path, weights: bytes) -> VersionDraft:
    """A draft whose files lie in the folder."""
    for path, content in (
        ("checkpoint/state", weights),
        ("saved_model/saved_model.pb", saved_model(mark=weights[:100].hex())),
    ):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    metrics = {"candidate": {"auc": 0.7}, "parent": {"auc": 0.7}}
    return VersionDraft("weights", metrics, GATE, 900, 100, 0, manifest_of(directory), 30, {}, {})


def publish(client: RegistryClient, directory: Path) -> Version:
    """Plans, leases, uploads and registers the next version of model m."""
    client.plan_round(next_plan(client))
    return finish(client, directory)


def finish(client: RegistryClient, directory: Path) -> Version:
    """Leases the planned round, uploads and registers its version."""
    lease = client.lease_round("trainer", ttl_seconds=60.0)
    assert lease is not None
    draft = write_version(directory, lease.round.round_id.encode())
    client.upload(directory, draft.files)
    return client.register_version(lease, draft)
