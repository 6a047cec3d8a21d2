"""Versions made elsewhere: registered, judged by nobody, promoted by a person; the line of trained versions goes on."""

from dataclasses import replace
from typing import Any

import pytest

from common.definition.gate import Gate
from common.errors import Conflict, InvalidInput, NotFound
from common.registry.catalog import Decision, Version, VersionStatus
from common.registry.plan_notes import PUSHED
from services.registry.catalog import Catalog
from services.registry.tests.building import publish, store
from services.registry.versions.pushed import Measured
from testing.rows import each_row
from testing.saved_models import saved_model


def push(
    catalog: Catalog,
    content: bytes | None = None,
    *,
    path: str = "saved_model/saved_model.pb",
    measured: Measured | None = None,
) -> Version:
    files = [replace(store(catalog, content if content is not None else saved_model(mark="elsewhere")), path=path)]
    return catalog.push_version("m", files, origin="laptop:/models/theirs", by="ada", reason="trial", measured=measured)


@pytest.mark.covers("fmt-savedmodel")
def test_a_pushed_version_is_on_record_and_live_when_a_person_says_so(catalog: Catalog) -> None:
    publish(catalog)
    pushed = push(catalog)
    assert (pushed.version, pushed.verdict.decision) == (2, Decision.HOLD)
    assert pushed.environment[PUSHED]["by"] == "ada"
    assert pushed.environment[PUSHED]["origin"] == "laptop:/models/theirs"
    assert len(pushed.environment[PUSHED]["digest"]) == 64
    assert catalog.get_model("m").aliases == {"production": 1}
    catalog.set_alias("m", "production", 2, by="ada", reason="")
    model = catalog.get_model("m")
    assert (model.aliases["production"], model.head_version) == (2, 1), "rounds go on from what was trained"
    assert {entry.action for entry in catalog.history(model="m", by="ada")} == {"promote", "push"}


def test_the_next_round_follows_the_trained_version_and_its_range(catalog: Catalog) -> None:
    first = publish(catalog)
    catalog.set_alias("m", "production", push(catalog).version, by="ada", reason="")
    third = publish(catalog)
    assert (third.version, third.parent_version, third.verdict.decision) == (3, 1, Decision.PROMOTE)
    assert third.ranges[0].from_offset == first.ranges[0].to_offset
    rolled_back = catalog.rollback("m", by="ada", reason="")
    assert (rolled_back.aliases["production"], rolled_back.head_version) == (2, 1)
    assert catalog.observed.account("m")["adds_up"] in (True, False)


def measured(auc: float, **said: Any) -> Measured:
    sides = {"candidate": {"auc": auc}, "parent": {"auc": 0.8}}
    return Measured(**{"against": 1, "gate": Gate("auc", max_regression=0.01), "metrics": sides, "evaluation": {},
                       "held_out": 40, **said})  # fmt: skip


def test_the_gate_promotes_or_refuses_what_a_trainer_has_measured(catalog: Catalog) -> None:
    publish(catalog)
    worse, better = push(catalog, measured=measured(0.7)), push(catalog, measured=measured(0.9))
    assert (worse.verdict.decision, worse.status) == (Decision.REJECT, VersionStatus.REJECTED)
    assert worse.verdict.reasons[-1] == "auc 0.7 is 0.1 worse than the parent's 0.8, 0.01 worse is allowed"
    assert (better.verdict.decision, better.verdict.outcomes[0]["outcome"]) == (Decision.PROMOTE, "passed")
    assert (better.metrics["candidate"]["auc"], better.events_held_out) == (0.9, 40)
    assert better.environment[PUSHED]["against"] == 1
    model = catalog.get_model("m")
    assert (model.aliases["production"], model.head_version) == (better.version, 1)
    moved = push(catalog, measured=measured(0.9))
    assert moved.verdict.decision is Decision.HOLD
    assert "production was moved from version 1 to 3" in moved.verdict.reasons[-1]
    canary = push(catalog, measured=measured(0.9, against=3, gate=Gate("auc", max_regression=0.01, canary=True)))
    assert catalog.get_model("m").aliases == {"production": 3, "canary": canary.version}
    catalog.pin("m", 0, by="ada", reason="")
    assert push(catalog, measured=measured(0.9, against=3)).verdict.decision is Decision.HOLD
    changed = push(
        catalog, saved_model(inputs={"image": ("DT_UINT8", (-1, 28, 28))}), measured=measured(0.9, against=3)
    )
    assert changed.verdict.decision is Decision.REJECT
    assert catalog.get_model("m").aliases["production"] == 3


@pytest.mark.covers("fmt-signatures")
def test_other_signatures_than_productions_are_named(catalog: Catalog) -> None:
    publish(catalog)
    pushed = push(catalog, saved_model(inputs={"image": ("DT_UINT8", (-1, 28, 28))}))
    assert "its signatures are not those of version 1" in pushed.verdict.reasons[1]
    assert "input x (float32 [n]) is gone" in pushed.verdict.reasons[1]


@each_row(
    ("content", "path", "words"),
    [
        (b"no graph", "saved_model/saved_model.pb", "is not a SavedModel"),
        (saved_model(operations=("PyFunc",)), "saved_model/saved_model.pb", "calls Python"),
        (saved_model(), "checkpoint/weights.npz", "no others"),
        (saved_model(), "saved_model/../x", "not a relative path"),
    ],
)
def test_wrong_files_of_a_version_are_refused(catalog: Catalog, content: bytes, path: str, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        push(catalog, content, path=path)
    assert words in refused.value.message
    assert catalog.list_versions("m") == []


def test_only_a_known_model_takes_a_pushed_version(catalog: Catalog) -> None:
    files = [replace(store(catalog, saved_model()), path="saved_model/saved_model.pb")]
    with pytest.raises(NotFound):
        catalog.push_version("nobody", files, origin="", by="ada", reason="")
    with pytest.raises(InvalidInput, match="has not been uploaded"):
        catalog.push_version("m", [replace(files[0], digest="0" * 64)], origin="", by="ada", reason="")
    catalog.change_model("m", "archive", by="ada", reason="")
    with pytest.raises(Conflict, match="archived"):
        catalog.push_version("m", files, origin="", by="ada", reason="")
