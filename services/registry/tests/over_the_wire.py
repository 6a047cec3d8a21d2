"""The building blocks of tests that talk to a registry process through the client."""

import json
from pathlib import Path

from common.registry.catalog import PRODUCTION, OffsetRange, RoundPlan, Version, VersionDraft
from common.registry.client import RegistryClient, manifest_of
from services.registry.tests.building import GATE, SCHEMA, definition
from testing.saved_models import saved_model


def register_all(client: RegistryClient) -> None:
    """Stream s and model m."""
    client.register_stream("s", json.dumps(SCHEMA))
    client.register_model("m", stream="s", files=definition(), by="test")


def next_plan(client: RegistryClient) -> RoundPlan:
    """The plan of model m that is due: ten records from where production ended."""
    model = client.get_model("m")
    parent = model.aliases.get(PRODUCTION, 0)
    start = client.get_version("m", parent).end_position[0] if parent else 0
    return RoundPlan(
        model="m",
        sequence=model.round_sequence + 1,
        parent_version=parent,
        stream="s",
        schema_version=1,
        ranges=(OffsetRange(0, start, start + 10),),
        definition_digest=model.definition_digest,
        configuration={"batch_size": 32},
        configuration_digest="c0ffee",
        code_digest="c0de",
        seed=7,
        example_count=1000,
        trigger="manual",
        last_event_at=1.0,
    )


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
