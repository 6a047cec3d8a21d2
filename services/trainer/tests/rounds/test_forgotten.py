"""A round learns nothing of what its plan says is forgotten: whole records, and rows of a record."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from common.registry.catalog import Lease
from common.registry.plan_notes import FORGOTTEN
from services.trainer.plan import lineage
from services.trainer.protocol.messages import Done
from services.trainer.tests.support.small_rounds import LINEAR, Platform, definition, events, rebuilt


def _trained(directory: Path, poison: list[bytes], row: bytes, forgotten: list[Any]) -> tuple[Platform, Lease]:
    """Records of ten events: two of seed 1, one of poison, one of seed 2 whose event 3 is another."""
    platform, last = Platform(directory, exports=False, eager=True), events(10, seed=2)
    platform.append([*events(20, seed=1), *poison, *last[:3], row, *last[4:]])
    lease = platform.lease(definition(**LINEAR))
    plan = lease.round.plan
    digest = lineage.digest_of(plan.configuration)
    plan = replace(plan, configuration={**plan.configuration, FORGOTTEN: forgotten}, configuration_digest=digest)
    lease = replace(lease, round=replace(lease.round, plan=plan))
    assert isinstance(platform.train(lease), Done)
    return platform, lease


def test_weights_do_not_depend_on_what_is_forgotten_and_a_rebuild_leaves_it_out_as_well(tmp_path: Path) -> None:
    places = [[0, 2, 3, []], [0, 3, 4, [3]]]
    one, two = events(10, seed=3), events(10, seed=4)
    found, lease = _trained(tmp_path / "a", one, one[0], places)
    other, _ = _trained(tmp_path / "b", two, two[0], places)
    learned, _ = _trained(tmp_path / "c", two, two[0], [])
    version, twin, whole = (platform.registry.versions[0] for platform in (found, other, learned))
    assert version.weights_digest == twin.weights_digest != whole.weights_digest
    told = [one.events_trained + one.events_held_out + one.events_unusable for one in (version, whole)]
    assert told == [29, 40]
    again = rebuilt(found, lease, 1)
    assert (again.missing, again.differences, again.weights_digest) == ((), (), version.weights_digest)
