"""How versions of one program come to one runner, with what runners do played by the test."""

import signal
import time

import pytest

from services.serving.tests.conftest import Play
from services.serving.tests.support.played_replica import Played
from services.serving.wire.keys import NEWEST_ALIAS
from services.serving.wire.replica_state import ServingState

_NEWEST = f"alias/{NEWEST_ALIAS}"
_SAME = dict.fromkeys(range(1, 9), "p")


def loads(played: Played, pid: int) -> list[int]:
    """The versions whose variables a runner was told to take, since this was asked last."""
    return [message["load"]["version"] for message in played.told(pid) if "load" in message]


def test_a_version_joins_the_runner_of_its_program_and_leaves_it_alone(play: Play) -> None:
    played = play(programs=_SAME)
    played.want(1)
    played.load(1)
    played.want(2)
    assert (played.forked, loads(played, 1)) == ([1], [2])
    assert played.reads(1) == {"version/1", _NEWEST}
    played.load(2)
    assert played.states() == {1: ServingState.UNLOADING, 2: ServingState.AVAILABLE}
    assert played.reads(2) == {"version/2", _NEWEST}
    assert played.told(1) == [{"drop": 1}]
    played.say(1, "dropped")
    assert played.states() == {1: ServingState.END, 2: ServingState.AVAILABLE}
    assert [version.loaded for version in played.replica.versions()] == ["", "state"]
    played.want()
    played.obey()
    assert played.told(1) == [{"leave": True}]


def test_other_options_need_another_runner(play: Play) -> None:
    played = play(programs=_SAME)
    played.want(1)
    played.load(1)
    played.slot(1).is_cautious = True
    played.want(1, 2)
    assert (played.forked, loads(played, 1)) == ([1, 2], [])


def test_versions_that_came_and_went_while_a_program_was_loaded_are_never_loaded(play: Play) -> None:
    played = play(programs=_SAME)
    for version in range(1, 7):
        played.want(version)
    assert (played.forked, played.killed) == ([1], [])
    played.load(1)
    assert loads(played, 1) == [6]
    assert played.reads(1) == {"version/1", _NEWEST}, "it answers meanwhile"
    played.load(6)
    played.say(1, "dropped")
    assert played.states()[6] is ServingState.AVAILABLE
    assert {state for version, state in played.states().items() if version != 6} == {ServingState.END}


def test_a_version_that_is_overtaken_before_its_runner_has_said_that_it_reads_answers_until_the_next_one_can(
    play: Play,
) -> None:
    played = play(programs=_SAME)
    for version in (1, 2):
        played.promote(version)
        played.fetch()
        if version == 1:
            played.load(1)
    played.say(2, "ready", runner_id="r/m/1")
    played.promote(3)
    played.obey()
    assert played.reads(2) == {"version/2", "alias/production"}
    played.fetch()
    assert (played.forked, loads(played, 1)) == ([1], [2, 3])
    played.load(3)
    assert played.reads(3) == {"version/3", "alias/production"}
    assert played.states()[3] is ServingState.AVAILABLE


def test_a_load_that_nothing_waits_for_is_ended(play: Play) -> None:
    played = play(programs=_SAME | {2: "another"})
    played.want(1)
    played.want(2)
    assert (played.forked, played.killed) == ([1, 2], [1])


def test_versions_of_a_program_that_is_being_loaded_wait_for_it_and_the_newest_is_first(
    play: Play,
) -> None:
    played = play(programs=_SAME)
    played.want(1, 2, 3, 4)
    assert played.forked == [4]
    played.load(4)
    assert loads(played, 4) == [3]
    played.load(3)
    assert loads(played, 4) == [2]


def test_a_program_that_cannot_be_loaded_with_one_version_is_loaded_with_the_next(play: Play) -> None:
    played = play(programs=_SAME)
    played.want(1, 2)
    played.replica.on_runner_ended(2, 3)
    assert played.forked == [2, 1]
    assert played.states() == {1: ServingState.LOADING, 2: ServingState.END}


def test_a_state_that_is_refused_takes_nothing_from_the_others(play: Play) -> None:
    played = play(programs=_SAME)
    played.want(1)
    played.load(1)
    played.want(2)
    played.say(2, "failed", code=15, message="it is damaged")
    assert played.states() == {1: ServingState.AVAILABLE, 2: ServingState.END}
    assert played.slot(2).error_message == "it is damaged"
    assert played.reads(1) == {"version/1", _NEWEST}
    played.want(3)
    assert loads(played, 1) == [2, 3]


def test_a_runner_that_is_left_with_nothing_but_a_refused_state_ends(play: Play) -> None:
    played = play(programs=_SAME)
    played.want(1)
    played.want(2)
    played.load(1)
    played.slot(1).is_leaving = True
    played.say(2, "failed", code=15, message="it is damaged")
    assert played.told(1)[-1] == {"leave": True}
    played.replica.on_runner_ended(1, 0)
    assert played.slot(2).error_message == "it is damaged"
    assert played.replica.is_empty()


def test_a_state_that_hangs_is_given_up_and_no_further_version_joins_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(programs=_SAME)
    played.want(1)
    played.load(1)
    played.want(2)
    later = time.monotonic() + 101
    monkeypatch.setattr(time, "monotonic", lambda: later)
    played.replica.tick()
    assert played.killed == []
    assert played.states() == {1: ServingState.AVAILABLE, 2: ServingState.END}
    assert played.slot(2).error_message == "it was not ready after 100 s"
    played.want(3)
    assert played.forked == [1, 3]
    played.load(3)
    assert "in a runner of its own: version 2 hung there" in played.slot(3).engine


def test_a_state_whose_runner_crashes_is_tried_by_itself_and_the_others_come_back(play: Play) -> None:
    """Who was at fault is not known: it is no failed attempt."""
    played = play(programs=_SAME, retry=0.0)
    played.want(1, label=1)
    played.load(1)
    played.want(1, 2, label=1)
    played.replica.on_runner_ended(1, -signal.SIGSEGV)
    played.fetch()
    assert played.forked == [1, 1, 2]
    assert played.states() == {1: ServingState.LOADING, 2: ServingState.LOADING}
    played.load(1)
    played.load(2)
    assert played.states() == {1: ServingState.AVAILABLE, 2: ServingState.AVAILABLE}


def test_a_runner_that_takes_no_states_is_left_alone_and_the_reason_shown(play: Play) -> None:
    played = play(programs=_SAME)
    played.want(1)
    played.load(1, refuses_states="it cannot")
    played.want(2)
    assert (played.forked, loads(played, 1)) == ([1, 2], [])
    played.load(2)
    assert played.slot(2).engine == "session; loaded as normal; in a runner of its own: it cannot"
