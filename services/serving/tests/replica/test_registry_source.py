"""What a replica learns from its registry, and knows while that is away."""

from pathlib import Path

import pytest

from common.process.pace import UNLIMITED
from services.serving.replica.sources.registry_source import RegistrySource
from services.serving.replica.versions_wanted import Wanted
from services.serving.wire.replica_state import Split
from testing.registry_process import RegistryProcess
from testing.saved_models import saved_model
from testing.waiting import wait_until

_STAGED = """
live: {key: id, wait_seconds: 60}
rollout: {judge: {metric: error_rate}, canary: {share: [10, 50], by: request}}
"""


@pytest.fixture
def staged(registry: RegistryProcess, tmp_path: Path) -> RegistryProcess:
    """Model w whose version 2 is production and whose version 1 is canary at 10 %."""
    registry.add_model("w", _STAGED)
    for mark in ("1", "2"):
        folder = tmp_path / mark
        folder.mkdir()
        (folder / "saved_model.pb").write_bytes(saved_model(mark=mark))
        registry.add_version("w", folder)
    registry.client.set_alias("w", "canary", 1, by="test", reason="")
    return registry


def _wanted(registry: RegistryProcess, folder: Path, *, fetch: bool) -> Wanted:
    """What a replica that starts is to serve of w; with `fetch` it brings the versions to its disk."""
    heard: list[Wanted] = []
    source = RegistrySource(
        registry.address, folder, kept_versions=2, served_models=["w"], pace=UNLIMITED, verify_signature=None,
        post=lambda event: event(), on_wanted=heard.append,
    )  # fmt: skip
    source.start()

    def has_heard() -> bool:
        source.follow([])
        return bool(heard)

    wait_until(has_heard, "the replica knows what it is to serve")
    for _, version in sorted(heard[-1].keys()) if fetch else ():
        source.fetch("w", version)
    source.stop()
    return heard[-1]


def test_a_replica_that_starts_while_the_registry_is_away_sends_the_canary_its_share(
    staged: RegistryProcess, tmp_path: Path
) -> None:
    heard = _wanted(staged, tmp_path / "replica", fetch=True)
    staged.kill()
    kept = _wanted(staged, tmp_path / "replica", fetch=False)
    assert kept.models["w"] == heard.models["w"] == {"production": 2, "predecessor": 1, "canary": 1}
    assert kept.splits == heard.splits == {"w": Split(1, 10.0, "request")}
