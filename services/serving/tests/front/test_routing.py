"""Which queue answers a request, and the words for what nobody serves."""

from dataclasses import replace

import pytest

from services.serving.front.routing import Routing
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed
from services.serving.wire.replica_state import ReplicaState, ServingState


def routing(state: ReplicaState) -> Routing:
    made = Routing()
    made.update(state)
    return made


def refusal(of: Routing, model: str = "m", version: int | None = None, label: str | None = None) -> tuple[int, str]:
    with pytest.raises(RequestFailed) as refused:
        of.resolve(model, version=version, label=label)
    return refused.value.code, refused.value.message


def test_unknown_models_versions_and_labels_have_tensorflow_servings_words() -> None:
    found = routing(replica_state(version(), aliases={"production": 3}, late={}, flights={}))
    not_found = "Servable not found for request: "
    assert refusal(found, "other") == (Code.NOT_FOUND, f"{not_found}Latest(other)")
    assert refusal(found, version=9) == (Code.NOT_FOUND, f"{not_found}Specific(m, 9)")
    assert refusal(found, "flihgts") == (Code.NOT_FOUND, f"{not_found}Latest(flihgts); did you mean flights?")
    assert refusal(found, "late") == (Code.NOT_FOUND, f"late has no live version yet ({not_found}Latest(late))")
    unrecognized = "Unrecognized servable version label: "
    assert refusal(found, label="blue") == (Code.INVALID_ARGUMENT, f"{unrecognized}blue")
    near = f"{unrecognized}prodution; did you mean production?"
    assert refusal(found, label="prodution") == (Code.INVALID_ARGUMENT, near)


def test_a_label_that_was_taken_away_is_unknown_while_a_runner_still_reads_its_queue() -> None:
    served = replica_state(version(aliases=("(newest)", "stable", "old")), aliases={"(newest)": 3, "stable": 3})
    found = routing(replace(served, default_alias="(newest)"))
    assert found.resolve("m").queue.target == "alias/(newest)"
    assert found.resolve("m", label="stable").version.version == 3
    assert refusal(found, label="old") == (Code.INVALID_ARGUMENT, "Unrecognized servable version label: old")


def test_what_should_be_there_and_is_not_yet_is_unavailable() -> None:
    found = Routing()
    assert refusal(found) == (Code.UNAVAILABLE, "this replica is starting: it does not know its models yet")
    found.update(replica_state(version(state=ServingState.LOADING)))
    assert refusal(found) == (Code.UNAVAILABLE, "version 3 of model m is being loaded")
    found.update(replica_state(version(state=ServingState.END, error_code=13, error_message="no such op")))
    assert refusal(found) == (Code.UNAVAILABLE, "version 3 of model m could not be loaded: no such op")


def test_a_route_outlives_its_runner_until_the_registry_drops_it() -> None:
    found = routing(replica_state(version()))
    before = found.resolve("m")
    found.update(replica_state(version(state=ServingState.LOADING)))
    assert found.resolve("m") == before
    found.update(replica_state(aliases={}))
    assert refusal(found)[0] == Code.NOT_FOUND


def test_a_swap_moves_the_route_to_the_new_version() -> None:
    found = routing(replica_state(version(3)))
    found.update(replica_state(version(4), version(3), aliases={"production": 4}))
    assert (found.resolve("m").version.version, found.resolve("m", version=3).version.version) == (4, 3)
    found.update(replica_state(version(4), aliases={"production": 4}))
    assert refusal(found, version=3)[0] == Code.NOT_FOUND
