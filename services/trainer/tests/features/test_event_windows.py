"""`event_window`: the events of a key before an event, found by the log alone, whatever is read and from where."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.definition.event_window import EventWindow
from common.errors import InvalidInput
from common.eventlog.base import Record, RecordHeaders
from common.eventlog.dead_letters import read_letters
from common.eventlog.tfrecord import cut, frame
from common.schema import Schema
from services.trainer.data.event_windows import EventWindows
from services.trainer.tests.families.test_modules import trained_twice
from services.trainer.tests.support.small_rounds import SCHEMA, Platform, definition, event, serialized

STREAM: dict[str, Any] = {
    "features": [
        {"name": "card", "dtype": "string"}, {"name": "amount", "dtype": "float32"},
        {"name": "place", "dtype": "float32", "shape": [2]},
        {"name": "shop", "dtype": "string", "required": False, "default": "none"},
    ],
    "labels": [{"name": "late", "dtype": "int64"}], "key": "card",
}  # fmt: skip
WINDOW = EventWindow(features=("amount", "place", "shop"), size=3, stride=2, lookback_records=4)
SEEN = WINDOW.seen(Schema.from_mapping(STREAM))


def events(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    return [
        {"card": str(random.choice(["a", "b", "c"])), "amount": float(number), "place": [number + 0.25, number + 0.5],
         "late": number % 2} | ({"shop": f"shop {number}"} if number % 3 else {})
        for number in range(count)
    ]  # fmt: skip


def window_definition() -> dict[str, bytes]:
    features = {
        "x": {"type": "numeric"}, "code": {"type": "identity", "size": 5, "out_of_range": "clip"},
        "code_vector": {"type": "embedding", "of": "code", "dimension": 2},
    }  # fmt: skip
    return definition(
        estimator="rnn_classifier", features=features, event_window={"features": ["x", "code"], "size": 4},
        parameters={"sequence": ["x", "code_vector"], "units": [3], "cell": "simple_rnn"},
        training={"batch_size": 8, "passes": 2},
    )  # fmt: skip


class OneLog:
    """Two events a record."""

    def __init__(self, examples: list[bytes]) -> None:
        self._values = [frame(examples[start : start + 2]) for start in range(0, len(examples), 2)]

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        for offset in range(start, end):
            yield Record(partition, offset, self._values[offset], RecordHeaders(1, 2, 1.0, b"c"))


def windows(log: OneLog, start: int, end: int, begins: int = 0) -> list[dict[str, Any]]:
    """Parsed by TensorFlow: lists as they are."""
    records = EventWindows(log, WINDOW, SEEN, {0: begins}).read("t", 0, start, end)
    spec = {
        "amount": tf.io.RaggedFeature(tf.float32), "place": tf.io.RaggedFeature(tf.float32),
        "shop": tf.io.RaggedFeature(tf.string), "card": tf.io.FixedLenFeature([], tf.string),
        "late": tf.io.FixedLenFeature([], tf.int64),
    }  # fmt: skip
    found = [tf.io.parse_single_example(example, spec) for record in records for example in cut(record.value)[0]]
    return [{name: np.asarray(one.numpy()).tolist() for name, one in event.items()} for event in found]


def by_hand(given: list[dict[str, Any]], number: int, begins: int = 0) -> dict[str, Any]:
    event, first = given[number], max(begins, number // 2 - WINDOW.lookback_records)
    before = [
        one for place, one in enumerate(given[: number + 1]) if one["card"] == event["card"] and place // 2 >= first
    ]
    chosen = before[::-1][::2][:3][::-1]
    return {
        "amount": [one["amount"] for one in chosen], "place": [value for one in chosen for value in one["place"]],
        "shop": [one.get("shop", "none").encode() for one in chosen],
        "card": event["card"].encode(), "late": event["late"],
    }  # fmt: skip


@pytest.mark.covers("rec-sequence")
def test_a_window_has_the_keys_events_before_it_wherever_reading_begins() -> None:
    given = events(40)
    log = OneLog([serialized(one) for one in given])
    expected = [by_hand(given, number) for number in range(40)]
    assert windows(log, 0, 20) == expected
    assert max(len(one["amount"]) for one in expected) == 3
    assert windows(log, 7, 12) == expected[14:24], "a resumed round"
    assert windows(log, 7, 12, begins=6) == [by_hand(given, number, begins=6) for number in range(14, 24)]


def test_what_is_no_event_stays_as_it_is() -> None:
    broken = [b"\xff\xff", *(serialized(one) for one in events(12)[1:])]
    (seen, *_) = (e for r in EventWindows(OneLog(broken), WINDOW, SEEN, {}).read("t", 0, 0, 6) for e in cut(r.value)[0])
    assert seen == broken[0]


def test_an_unusable_window_leaves_the_event_at_its_end_in_the_dead_letters(tmp_path: Path) -> None:
    given = [event(np.random.default_rng(number)) for number in range(30)]
    bad = serialized({**given[20], "late": 7})
    platform = Platform(tmp_path, {**SCHEMA, "key": "word"}, exports=False)
    platform.append([bad if number == 20 else serialized(one) for number, one in enumerate(given)])
    version = platform.learn(window_definition())
    letters = read_letters(platform.log, "stream", 0, platform.log.end_position("deadletter.stream")[0])
    assert [found.letter.payload for found in letters] == [bad]
    assert version.unusable["samples"][0]["at"] == "0:2"
    assert version.unusable["samples"][0]["bytes"] > len(bad), "the model sees the events before it"


def test_what_cannot_be_a_step_is_refused() -> None:
    for features, words in (
        (("amounts",), "the stream has no feature 'amounts'; it has"), (("card",), "card is the key"),
        (("amount", "tags"), "tags is a list of any length"),
    ):  # fmt: skip
        schema = {**STREAM, "features": [*STREAM["features"], {"name": "tags", "dtype": "string", "shape": [None]}]}
        with pytest.raises(InvalidInput, match=words):
            EventWindow(features, 3).seen(Schema.from_mapping(schema))
    with pytest.raises(InvalidInput, match="the stream needs a key"):
        WINDOW.seen(Schema.from_mapping({**STREAM, "key": None}))


@pytest.mark.covers("rec-sequence", "ckpt-resume", "est-canned-nn")
def test_rounds_over_windows_resume_export_and_rebuild_to_the_same_bits(tmp_path: Path) -> None:
    trained_twice(tmp_path, window_definition(), {**SCHEMA, "key": "word"})
    saved = tf.saved_model.load(str(tmp_path / "cache" / "model" / "2" / "saved_model")).signatures
    given = saved["serving_default"].structured_input_signature[1]
    assert {name: spec.shape.as_list() for name, spec in given.items()} == {"x": [None, None], "code": [None, None]}
    window = serialized({"x": [0.5, 1.5], "code": [1, 2]})
    answers = [saved["serving_examples"](tf.constant([window]))["logits"], saved["serving_default"](
        x=tf.constant([[0.5, 1.5]]), code=tf.constant([[1, 2]], tf.int64))["logits"]]  # fmt: skip
    np.testing.assert_allclose(*answers)
