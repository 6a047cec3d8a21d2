"""What people decide about a whole model or stream: paused, pinned, archived, deleted; refused while it is used."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from common.errors import Conflict, HeadraceError, InvalidInput, NotFound
from common.registry.catalog import CANARY, PRODUCTION, Decision, RoundState
from services.registry.catalog import Catalog
from services.registry.tests.building import GATE, SCHEMA, Clock, definition, draft, lease, leased, next_plan, publish
from testing.rows import each_row

WITH_CANARY = replace(GATE, canary=True)


def test_a_paused_model_plans_nothing_until_it_is_resumed(catalog: Catalog) -> None:
    paused = catalog.change_model("m", "pause", by="ada", reason="bad upstream")
    assert paused.paused == "ada: bad upstream"
    with pytest.raises(Conflict, match="paused by ada: bad upstream"):
        catalog.plan_round(next_plan(catalog))
    assert catalog.change_model("m", "resume", by="bob", reason="").paused == ""
    catalog.plan_round(next_plan(catalog))
    with pytest.raises(Conflict, match="not paused"):
        catalog.change_model("m", "resume", by="bob", reason="")


def test_resuming_forgives_failures_at_once(catalog: Catalog) -> None:
    held = leased(catalog)
    catalog.fail_round(held.round.round_id, held.token, reason="bad")
    assert catalog.get_model("m").retry_at > 0
    resumed = catalog.change_model("m", "resume", by="ada", reason="mended")
    assert (resumed.consecutive_failures, resumed.retry_at) == (0, 0.0)
    assert resumed.failure["message"] == "bad", "what failed last can still be looked up"


def test_a_pinned_production_stays_and_rounds_go_on_from_what_is_held(catalog: Catalog) -> None:
    publish(catalog)
    with pytest.raises(NotFound, match="has no version 7"):
        catalog.pin("m", 7, by="ada", reason="")
    assert catalog.pin("m", 0, by="ada", reason="audit").pinned_version == 1
    held = publish(catalog)
    assert held.verdict.decision is Decision.HOLD
    with pytest.raises(Conflict, match="is version 1, not 2"):
        catalog.pin("m", 2, by="ada", reason="")
    assert "pinned to version 1" in held.verdict.reasons[-1]
    model = catalog.get_model("m")
    assert (model.aliases[PRODUCTION], model.head_version) == (1, 2)
    after = publish(catalog)
    assert (after.parent_version, after.ranges[0].from_offset) == (2, 20)
    moves: list[Callable[[], object]] = [
        lambda: catalog.set_alias("m", PRODUCTION, 3, by="bob", reason=""),
        lambda: catalog.rollback("m", by="bob", reason=""),
    ]
    for change in moves:
        with pytest.raises(Conflict, match="pinned to version 1; unpin it first"):
            change()
    catalog.change_model("m", "unpin", by="ada", reason="done")
    promoted = publish(catalog)
    assert (promoted.parent_version, catalog.get_model("m").aliases[PRODUCTION]) == (3, 4)


def test_canaries_build_on_each_other_until_one_is_taken_away(catalog: Catalog) -> None:
    publish(catalog)
    first = publish(catalog, gate=WITH_CANARY)
    second = publish(catalog, gate=WITH_CANARY)
    assert (first.parent_version, second.parent_version, second.status) == (1, 2, "accepted")
    assert catalog.get_model("m").aliases == {CANARY: 3, PRODUCTION: 1}
    catalog.set_alias("m", PRODUCTION, 2, by="ada", reason="the first canary is fine")
    assert catalog.get_model("m").head_version == 3, "production went forward on the line of the canaries"
    catalog.set_alias("m", CANARY, 0, by="ada", reason="the second is not")
    assert catalog.get_model("m").head_version == 2
    assert publish(catalog).parent_version == 2


def test_an_archived_model_is_neither_planned_nor_changed_and_comes_back(catalog: Catalog) -> None:
    publish(catalog)
    planned = catalog.plan_round(next_plan(catalog))
    with pytest.raises(Conflict, match=f"round {planned.round_id} is planned"):
        catalog.change_model("m", "archive", by="ada", reason="")
    catalog.change_round("m", planned.round_id, "fail", by="ada", reason="not wanted")
    assert catalog.change_model("m", "archive", by="ada", reason="old").archived
    with pytest.raises(Conflict, match="is archived"):
        catalog.plan_round(next_plan(catalog))
    with pytest.raises(Conflict, match="is archived"):
        catalog.register_model("m", stream="s", files=definition(seed=8), by="ada")
    assert not catalog.change_model("m", "restore", by="ada", reason="").archived
    publish(catalog)


def test_a_model_in_use_is_not_deleted_and_its_numbers_never_come_back(catalog: Catalog) -> None:
    publish(catalog)
    publish(catalog)
    with pytest.raises(Conflict, match="learns from stream s, production names version 2; archive it first"):
        catalog.delete_model("m", by="ada", reason="")
    catalog.change_model("m", "archive", by="ada", reason="")
    catalog.delete_model("m", by="ada", reason="replaced")
    with pytest.raises(NotFound):
        catalog.get_model("m")
    catalog.register_model("m", stream="s", files=definition(), by="ada")
    assert publish(catalog).version == 3
    with pytest.raises(Conflict, match="no version of m to roll back to"):
        catalog.rollback("m", by="ada", reason="")
    assert {"apply", "archive", "delete", "promote"} == {entry.action for entry in catalog.history(model="m")}


def test_a_dry_run_of_a_deletion_refuses_as_the_deletion_would_and_deletes_nothing(catalog: Catalog) -> None:
    publish(catalog)
    with pytest.raises(Conflict, match="archive it first"):
        catalog.delete_model("m", by="ada", reason="", dry_run=True)
    with pytest.raises(Conflict, match="delete it first"):
        catalog.delete_stream("s", by="ada", reason="", dry_run=True)
    catalog.change_model("m", "archive", by="ada", reason="")
    catalog.delete_model("m", by="ada", reason="", dry_run=True)
    catalog.delete_model("m", by="ada", reason="")
    catalog.change_stream("s", "archive", by="ada", reason="")
    catalog.delete_stream("s", by="ada", reason="", dry_run=True)
    catalog.delete_stream("s", by="ada", reason="")


def test_a_stream_that_somebody_learns_from_is_neither_archived_nor_deleted(catalog: Catalog) -> None:
    with pytest.raises(Conflict, match="m learns from it; archive it first"):
        catalog.change_stream("s", "archive", by="ada", reason="")
    catalog.change_model("m", "archive", by="ada", reason="")
    assert catalog.change_stream("s", "archive", by="ada", reason="").archived
    with pytest.raises(Conflict, match="stream s is archived"):
        catalog.register_model("m2", stream="s", files=definition("m2"), by="ada")
    with pytest.raises(Conflict, match="which is archived; restore the stream first"):
        catalog.change_model("m", "restore", by="ada", reason="")
    with pytest.raises(Conflict, match="delete it first"):
        catalog.delete_stream("s", by="ada", reason="")
    catalog.delete_model("m", by="ada", reason="")
    catalog.delete_stream("s", by="ada", reason="")
    assert catalog.list_streams() == []
    assert catalog.register_stream("s", json.dumps(SCHEMA)).schema_version == 2, "version 1 meant something else"


def test_a_stream_of_the_name_of_a_deleted_one_lies_under_a_name_of_its_own_in_the_log(catalog: Catalog) -> None:
    assert catalog.get_stream("s").log_name == "s"
    catalog.change_model("m", "archive", by="ada", reason="")
    catalog.delete_model("m", by="ada", reason="")
    for begins in (2, 3):
        catalog.change_stream("s", "archive", by="ada", reason="")
        catalog.delete_stream("s", by="ada", reason="")
        catalog.register_stream("s", json.dumps(SCHEMA))
        assert catalog.get_stream("s").log_name == f"{begins}.s"
    wider = {
        **SCHEMA,
        "features": [*SCHEMA["features"], {"name": "z", "dtype": "float32", "required": False, "default": 0}],
    }
    widened = catalog.register_stream("s", json.dumps(wider))
    assert (widened.schema_version, widened.log_name) == (4, "3.s"), "the same stream, with more features"
    assert catalog.list_streams() == [widened]


def test_a_person_ends_a_round_of_any_holder(catalog: Catalog) -> None:
    planned = catalog.plan_round(next_plan(catalog))
    held = lease(catalog)
    failed = catalog.change_round("m", planned.round_id, "fail", by="ada", reason="it hangs")
    assert (failed.state, failed.reason) == (RoundState.FAILED, "failed by ada: it hangs")
    with pytest.raises(Conflict):
        catalog.register_version(planned.round_id, held.token, draft(catalog))
    with pytest.raises(Conflict, match="is failed already"):
        catalog.change_round("m", planned.round_id, "fail", by="ada", reason="")
    with pytest.raises(NotFound):
        catalog.change_round("other", planned.round_id, "fail", by="ada", reason="")


def test_a_failure_keeps_its_place_and_survives_the_next_success(catalog: Catalog, clock: Clock) -> None:
    held = leased(catalog)
    events = [{"partition": 0, "offset": 3, "reason": "x is 3.4e38"}]
    catalog.fail_round(
        held.round.round_id, held.token, reason="loss is NaN", failure={"stage": "train", "events": events}
    )
    failure = catalog.get_model("m").failure
    assert (failure["message"], failure["stage"], failure["events"]) == ("loss is NaN", "train", events)
    assert (failure["round_id"], failure["attempts"], failure["at"]) == (held.round.round_id, 1, clock.now)
    publish(catalog)
    model = catalog.get_model("m")
    assert (model.consecutive_failures, model.last_failure, model.failure) == (0, "", failure)


def test_history_is_filtered_by_author_and_action(catalog: Catalog, clock: Clock) -> None:
    publish(catalog)
    for by in ("ada", "bob"):
        clock.pass_seconds(1.0)
        catalog.change_model("m", "pause", by=by, reason=f"{by} says so")
        catalog.change_model("m", "resume", by=by, reason="")
    newest = catalog.history(model="m", by="bob")
    assert [(entry.action, entry.reason) for entry in newest] == [("resume", ""), ("pause", "bob says so")]
    assert [entry.version for entry in catalog.history(action="promote")] == [1]
    assert catalog.history(action="nonsense") == []
    assert len(catalog.history(limit=2)) == 2


def test_a_refused_model_leaves_no_stream(catalog: Catalog) -> None:
    files = {"model.yaml": definition("m9", "s9")["model.yaml"].replace(b"label: y", b"label: nobody")}
    with pytest.raises(InvalidInput, match="no label 'nobody'"):
        catalog.apply(stream=("s9", json.dumps(SCHEMA)), model=("m9", files), by="ada", dry_run=False)
    with pytest.raises(NotFound):
        catalog.get_stream("s9")
    good = definition("m9", "s9")
    tried = catalog.apply(stream=("s9", json.dumps(SCHEMA)), model=("m9", good), by="ada", dry_run=True)
    assert (tried.stream_change, tried.model_change) == ("created", "created")
    with pytest.raises(NotFound):
        catalog.get_stream("s9")
    catalog.apply(stream=("s9", json.dumps(SCHEMA)), model=("m9", good), by="ada", dry_run=False)
    again = catalog.apply(
        stream=("s9", json.dumps(SCHEMA)), model=("m9", definition("m9", "s9", seed=8)), by="ada", dry_run=False
    )
    assert (again.stream_change, again.model_change) == ("unchanged", "changed")
    assert again.changes == {"seed": (7, 8)}
    with pytest.raises(InvalidInput, match="nothing to apply"):
        catalog.apply(stream=None, model=None, by="ada", dry_run=False)


def deep(units: int, restart: bytes = b"") -> dict[str, bytes]:
    """Files of model m with two layers, and what is to start anew."""
    text = definition()["model.yaml"].replace(b"linear_classifier", b"dnn_classifier")
    files = {"model.yaml": text + f"parameters: {{hidden_units: [{units}, 4]}}\n".encode()}
    return files | ({"restart.yaml": restart} if restart else {})


@each_row(
    ("parameters", "features", "words"),
    [
        ({"hidden_units": [65_536] * 4}, {"x": {"type": "numeric"}}, "would have 12,885,295,105 parameters (51.5 GB"),
        ({"hidden_units": [4]}, {"w": {"type": "hashed", "of": "w", "bins": 10_000_000},
                                 "v": {"type": "embedding", "of": "w", "dimension": 65_536}}, "v_table/table alone"),
    ],
)  # fmt: skip
def test_a_definition_of_more_parameters_than_are_taken_is_refused_with_the_figure(
    catalog: Catalog, parameters: dict[str, Any], features: dict[str, Any], words: str
) -> None:
    schema = {"features": [{"name": "x", "dtype": "float32"}, {"name": "w", "dtype": "string"}],
              "labels": [{"name": "y", "dtype": "int64", "min": 0, "max": 1}]}  # fmt: skip
    model = {"name": "big", "stream": "large", "estimator": "dnn_classifier", "label": "y", "features": features,
             "parameters": parameters}  # fmt: skip
    files = {"model.yaml": json.dumps(model).encode()}
    for dry_run in (False, True):
        with pytest.raises(InvalidInput) as refused:
            catalog.apply(stream=("large", json.dumps(schema)), model=("big", files), by="ada", dry_run=dry_run)
        assert words in refused.value.message
        assert "REGISTRY_MAX_PARAMETERS" in refused.value.message


def test_a_layer_that_cannot_be_carried_is_refused_by_every_call(catalog: Catalog) -> None:
    catalog.register_model("m", stream="s", files=deep(8), by="ada")
    publish(catalog)
    for dry_run in (True, False):
        with pytest.raises(Conflict, match=r"hidden_0.*--restart"):
            catalog.apply(stream=None, model=("m", deep(3)), by="ada", dry_run=dry_run)
    with pytest.raises(Conflict, match=r"hidden_0.*--restart"):
        catalog.register_model("m", stream="s", files=deep(3), by="ada")
    assert catalog.get_model("m").definition_digest == catalog.get_version("m", 1).definition_digest
    told = catalog.apply(stream=None, model=("m", deep(3, b"[hidden_0, hidden_1]")), by="ada", dry_run=False)
    assert told.model_change == "changed"
    assert "starts anew, as asked: hidden_0" in told.learned
    wider = catalog.apply(stream=None, model=("m", deep(9)), by="ada", dry_run=True)
    assert any(line.startswith("hidden_1/kernel: 8 kept, 1 new") for line in wider.learned), wider.learned
    assert (
        catalog.apply(stream=None, model=("m", deep(3, b"[hidden_0, hidden_1]")), by="ada", dry_run=True).learned == ()
    )


def test_nobody_changes_anything_without_a_name(catalog: Catalog) -> None:
    changes: list[Callable[[], object]] = [
        lambda: catalog.change_model("m", "pause", by=" ", reason=""),
        lambda: catalog.pin("m", 0, by="", reason=""),
        lambda: catalog.delete_model("m", by="", reason=""),
        lambda: catalog.change_stream("s", "archive", by="", reason=""),
    ]
    for change in changes:
        with pytest.raises(HeadraceError, match="by must name the author"):
            change()
