"""What a sentence lists for a word that is not known."""

import pytest

from common.suggestions import near, there_is_no
from testing.rows import each_row


def test_a_few_names_are_all_listed() -> None:
    assert there_is_no("column 'knd'", "knd", ["id", "kind"]) == (
        "there is no column 'knd'; there are id, kind; did you mean kind?"
    )


def test_of_many_names_the_nearest_are_listed_and_the_others_counted() -> None:
    names = [f"points-{number}" for number in range(200)] + ["flights"]
    assert there_is_no("stream 'flihgts'", "flihgts", names) == (
        "there is no stream 'flihgts'; there are flights and 200 more; did you mean flights?"
    )
    assert there_is_no("stream 'zzz'", "zzz", names) == (
        "there is no stream 'zzz'; there are points-0, points-1, points-2, points-3, points-4 and 196 more"
    )


def test_no_name_is_said_as_none() -> None:
    assert there_is_no("stream 'a'", "a", []) == "there is no stream 'a'; there is none"


@pytest.mark.covers("fmt-surgery")
@each_row("word", ["hiden_0/Relu", "hiden_0", "network_2/hidden_0_1"])
def test_a_path_is_near_by_any_of_its_parts(word: str) -> None:
    meant = "StatefulPartitionedCall/network_1/hidden_0_1/Relu:0"
    assert near(word, ["code:0", "pair:0", "x:0", meant, "StatefulPartitionedCall/words/Less:0"])[0] == meant
