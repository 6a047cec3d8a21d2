"""A bad version goes back by itself when labels come and says why; a good canary becomes production; rounds wait for
labels."""

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e_tests.conftest import MakePupil
from e2e_tests.driver import Platform
from e2e_tests.points import ROUND_EVENTS, points, write_definition
from e2e_tests.teaching import Pupil
from e2e_tests.waiting import until
from examples.bad_version.__main__ import MODEL, Story
from headrace import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="signal")]
_ROWS = 50


_LATE = {"late_labels": {"key": "id", "wait_seconds": 600}}
_JUDGED = {"rollout": {"judge": {"metric": "error_rate", "margin": 0.02, "min_samples": 100}}}


@pytest.fixture
def pupil(platform: Platform, make_pupil: MakePupil, tmp_path: Path) -> Iterator[Pupil]:
    """Of points with an id, labels that may come late, and a judge; version 1 is served."""
    with platform.client() as client:
        pupil = make_pupil(client)
        _apply(client, pupil, tmp_path, stream=_LATE, model=_JUDGED)
        _teach(client, pupil.stream, seed=1)
        pupil.await_judged(1)
        pupil.await_served(1)
        yield pupil


def _apply(client: Client, pupil: Pupil, folder: Path, *, stream: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Of points with an id, and these sections beside the usual ones."""
    write_definition(folder, stream=pupil.stream, model=pupil.model)
    for name, more in (("stream.yaml", stream), ("model.yaml", model)):
        document: dict[str, Any] = yaml.safe_load((folder / name).read_text())
        if name == "stream.yaml":
            document["features"].append({"name": "id", "dtype": "int64"})
        (folder / name).write_text(yaml.safe_dump({**document, **more}))
    client.apply(folder)


def _teach(client: Client, stream: str, *, seed: int) -> None:
    events = [{**event, "id": number} for number, event in enumerate(points(ROUND_EVENTS, seed=seed))]
    assert client.append(stream, events).accepted == ROUND_EVENTS


def _predict_and_label(client: Client, pupil: Pupil, source: random.Random, first_id: int) -> None:
    asked = points(_ROWS, seed=source.randrange(10**9))
    keys = list(range(first_id, first_id + _ROWS))
    rows = [{"a": point["a"], "b": point["b"]} for point in asked]
    client.predict(pupil.model, instances=rows, keys=keys)
    labels = [{"id": key, "above": point["above"]} for key, point in zip(keys, asked, strict=True)]
    source.shuffle(labels)
    assert client.label(pupil.stream, labels).accepted == _ROWS


def test_a_bad_version_that_the_gate_lets_through_goes_back_by_itself_when_labels_come(
    platform: Platform, capsys: pytest.CaptureFixture[str]
) -> None:
    with platform.client() as client:
        Story(client).run()
        told = capsys.readouterr().out
        assert "has passed the gate and is live" in told
        assert "version 2 counts as rejected; " in told
        moves = [(one.by, one.from_version, one.to_version) for one in client.alias_history(MODEL)]
        assert [move for move in moves if move[0] == "judge"] == [("judge", 2, 1)]
        assert "error_rate of version 2 is +" in told
        judge = next(one for one in client.live(MODEL)["versions"] if one["version"] == 2)["judge"]
        assert (judge["verdict"], judge["moved_to"], judge["against"]) == ("worse", 1, 1)
        assert judge["e_value"] >= 100
        assert judge["samples"] >= 100
        assert client.version(MODEL, 3).parent_version == 1


def test_a_round_waits_for_the_labels_of_its_events_and_the_next_learns_the_late_ones(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path
) -> None:
    with platform.client() as client:
        pupil = make_pupil(client)
        late = {"late_labels": {"key": "id", "wait_seconds": 10}}
        _apply(client, pupil, tmp_path, stream=late, model={"labels": {"late": "train"}})
        drawn = [{**point, "id": number} for number, point in enumerate(points(2 * ROUND_EVENTS, seed=1))]
        first, second = drawn[:ROUND_EVENTS], drawn[ROUND_EVENTS:]
        client.append(pupil.stream, [_without_label(one) for one in first])
        client.label(pupil.stream, [_label(one) for one in first[100:]])
        until(lambda: client.rounds(pupil.model), "a round has the events whose labels it has waited for")
        client.label(pupil.stream, [_label(one) for one in first[:100]])
        client.append(pupil.stream, [_without_label(one) for one in second])
        client.label(pupil.stream, [_label(one) for one in second])
        pupil.await_judged(2)
        versions = [client.version(pupil.model, number) for number in (1, 2)]
        assert _joined(versions[0].environment) == (ROUND_EVENTS - 100, 100, 0, 0)
        assert _joined(versions[1].environment) == (ROUND_EVENTS, 0, 100, 100)
        assert [one.events_trained + one.events_held_out for one in versions] == [ROUND_EVENTS, ROUND_EVENTS + 100]
        pupil.await_served(2)
        above, below = pupil.probabilities()
        assert above > 0.5 > below
        until(lambda: client.account(pupil.model)["adds_up"], "the account adds up")
        assert client.account(pupil.model)["examples"]["again"] == 100


def _without_label(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: event[name] for name in ("a", "b", "id")}


def _label(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: event[name] for name in ("id", "above")}


def _joined(environment: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(environment["labels"][name] for name in ("in_time", "never", "late", "again"))


def test_a_canary_that_is_no_worse_becomes_production_in_stages(pupil: Pupil, tmp_path: Path) -> None:
    client, source = pupil.client, random.Random(7)
    document = yaml.safe_load((tmp_path / "model.yaml").read_text())
    document["rollout"]["judge"] |= {"margin": 0.2, "min_samples": 50}
    document["rollout"]["canary"] = {"share": [0, 50], "stage_samples": 100, "guards": {"errors": 0.1, "latency": 100}}
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(document))
    client.apply(tmp_path)
    _teach(client, pupil.stream, seed=3)
    pupil.await_judged(2)
    assert client.aliases(pupil.model) == {"production": 1, "canary": 2}
    first_id = iter(range(10**6, 10**9, _ROWS))

    def is_production() -> bool:
        _predict_and_label(client, pupil, source, next(first_id))
        return client.aliases(pupil.model)["production"] == 2

    until(is_production, "the canary has become production")
    last = next(one for one in reversed(client.alias_history(pupil.model)) if one.alias == "production")
    assert (last.by, last.from_version, last.to_version) == ("judge", 1, 2)
    canary = next(one for one in client.live(pupil.model)["versions"] if one["version"] == 2)["canary"]
    assert (canary["verdict"], canary["stage"], canary["against"]) == ("passed", 1, 1)
    assert {guard["guard"] for guard in canary["guards"]} == {"errors", "latency"}
    # Strong evidence ends a stage before its 100 samples, but not before the judge's 50.
    assert canary["stage_samples"] >= 50, "which at a share of 50 % only the canary's own answers bring"
