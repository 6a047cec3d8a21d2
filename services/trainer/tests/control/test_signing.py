"""A trainer with a key signs every version; the round's own process asks and never has the key."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import Conflict, Unavailable
from common.registry.catalog import VersionDraft
from common.registry.client import RegistryClient
from common.registry.signing import make_keys, read_trusted, verify
from common.registry.statements import digests_of, read_envelope
from services.trainer.control.signing import register
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.tests.support.platform_processes import MODEL, Events, TrainerProcess
from testing.waiting import wait_until


def test_versions_of_a_trainer_with_a_key_are_signed_under_their_number(
    trainer: TrainerProcess, registry: RegistryClient, events: Events, tmp_path: Path
) -> None:
    key_id = make_keys(tmp_path / "key.pem")
    trainer.environment["TRAINER_SIGNING_KEY_FILE"] = str(tmp_path / "key.pem")
    trainer.behave("register_and_stay")
    trainer.start()
    assert trainer.status()["signing_key_id"] == key_id
    trusted = read_trusted(tmp_path / "key.pem.pub")
    for number in (1, 2):
        events.add(12)
        wait_until(partial(has_version, registry, number), "the next version")
        made = registry.get_version(MODEL, number)
        files = digests_of(made.files)
        assert verify(made.signature, trusted, model=MODEL, version=number, files=files) == key_id
        about = read_envelope(made.signature).statement().about
        assert (about["round_id"], about["definition_digest"]) == (made.round_id, made.definition_digest)


def test_a_trainer_without_a_key_signs_nothing(
    trainer: TrainerProcess, registry: RegistryClient, events: Events
) -> None:
    trainer.start()
    events.add(12)
    wait_until(lambda: registry.get_model(MODEL).newest_version == 1, "the version")
    assert registry.get_version(MODEL, 1).signed_by == ""
    assert trainer.status()["signing_key_id"] == ""


def test_a_key_file_that_holds_no_key_stops_the_start(trainer: TrainerProcess, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no key")
    trainer.environment["TRAINER_SIGNING_KEY_FILE"] = str(tmp_path / "key.pem")
    with pytest.raises(AssertionError, match="the trainer ended at once"):
        trainer.start()


def has_version(registry: RegistryClient, number: int) -> bool:
    return registry.get_model(MODEL).newest_version == number


class Registry:
    """Refuses so many drafts."""

    def __init__(self, refusals: int) -> None:
        self.drafts: list[VersionDraft] = []
        self._refusals = refusals

    def register_version(self, lease: object, draft: VersionDraft) -> Any:
        self.drafts.append(draft)
        if len(self.drafts) <= self._refusals:
            raise Conflict("no")
        return SimpleNamespace(version=1)


def ended(registry: Registry, numbers: Iterable[int], assignment: RoundAssignment) -> None:
    """Registers an empty draft, as the model's next number goes on."""
    following = iter(numbers)
    signer: Any = SimpleNamespace(sign=lambda *_: f"signed {next(following)}")
    found: Any = SimpleNamespace
    draft = VersionDraft("w", {}, found, 0, 0, 0, (), 0, {}, {})
    register(registry, assignment.lease, draft, signer)  # type: ignore[arg-type]  # the one call that is made


def test_a_version_whose_number_was_taken_is_signed_again(assignment: RoundAssignment) -> None:
    registry = Registry(refusals=1)
    ended(registry, [7, 8], assignment)
    assert [draft.signature for draft in registry.drafts] == ["signed 7", "signed 8"]


def test_another_conflict_ends_the_round_at_once(assignment: RoundAssignment) -> None:
    registry = Registry(refusals=9)
    with pytest.raises(Conflict):
        ended(registry, [7, 7], assignment)
    assert len(registry.drafts) == 1
    with pytest.raises(Unavailable, match="took this number 5 times"):
        ended(registry, range(9), assignment)
