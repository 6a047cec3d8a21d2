"""Which events a round holds out: the share that was asked for of whatever events, and what belongs together whole."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.definition.evaluation import Evaluation
from common.eventlog.tfrecord import cut, frame
from common.examples.codec import ExampleCodec
from common.registry.catalog import Version
from common.schema import Schema
from services.trainer.data.dataset import PLACE, Block
from services.trainer.data.holdout import holdout_mask
from services.trainer.protocol.messages import Done
from services.trainer.rounds.inputs import data_of, fetch_inputs
from services.trainer.rounds.prepared import ParsedBlock
from services.trainer.rounds.splitting import Split
from services.trainer.tests.support.small_rounds import Platform, definition, rebuilt, serialized

SCHEMA: Mapping[str, Any] = {
    "features": [
        {"name": "word", "dtype": "string"},
        {"name": "tags", "dtype": "string", "shape": [None]},
        {"name": "at", "dtype": "int64"},
    ],
    "labels": [{"name": "y", "dtype": "int64", "min": 0, "max": 1}],
    "event_time": "at",
}
RATES = dict(zip("abcdefgh", (0.95, 0.05, 0.9, 0.1, 0.9, 0.1, 0.9, 0.1), strict=True))


def words(count: int, *, seed: int = 1) -> list[bytes]:
    drawn, examples = random.Random(seed), []
    for at in range(count):
        word = drawn.choice("abcdefgh")
        y, tags = int(drawn.random() < RATES[word]), ["t"] * (at % 2)
        examples.append(serialized({"word": word, "tags": tags, "at": at, "y": y}))
    return examples


def asked(seed: int = 0, **evaluation: Any) -> dict[str, bytes]:
    return definition(
        label="y", estimator="linear_classifier", parameters={}, seed=seed,
        features={"word": {"type": "vocabulary", "words": list(RATES), "oov": "drop"}},
        training={"batch_size": 64, "passes": 4, "optimizer": {"name": "adam", "learning_rate": 0.05}},
        evaluation={"holdout_fraction": 0.1, **evaluation},
    )  # fmt: skip


def trained(platform: Platform, files: dict[str, bytes], **more: Any) -> Version:
    platform.learn(files, block_examples=4000, **more)
    return platform.registry.versions[-1]


def parsed(platform: Platform, files: dict[str, bytes], *, block_examples: int = 100) -> list[ParsedBlock]:
    lease = platform.lease(files, block_examples=block_examples)
    assignment = platform.assignment(lease)
    inputs = fetch_inputs(assignment, platform.registry, Path(assignment.work_dir))
    return list(data_of(assignment, inputs, platform.log).parsed())


def values(blocks: list[ParsedBlock], name: str, *, held_out: bool) -> list[Any]:
    return [
        value.decode() if isinstance(value, bytes) else value
        for block in blocks
        for value, is_out in zip(block.raw[name].numpy().tolist(), block.held_out, strict=True)
        if is_out == held_out
    ]


@pytest.mark.parametrize("seed", [0, 1])
def test_few_distinct_events_teach_what_they_say_and_a_tenth_is_held_out(tmp_path: Path, seed: int) -> None:
    """Held out by their bytes, all copies of a word with one label were out, and the model learned the other label."""
    platform = Platform(tmp_path, SCHEMA, exports=False)
    platform.append([serialized({**fields, "at": 0}) for fields in few(4000)], per_record=100)
    version = trained(platform, asked(seed))
    assert abs(version.events_held_out - 400) < 5 * (4000 * 0.1 * 0.9) ** 0.5
    assert version.metrics["candidate"]["auc"] > 0.9
    told = version.evaluation["duplicates"]
    assert told["same_features"] == version.events_held_out
    assert 0.9 * version.events_held_out < told["same_event"] <= version.events_held_out


def few(count: int) -> list[dict[str, Any]]:
    drawn = random.Random(1)
    made = []
    for _ in range(count):
        word = drawn.choice("abcdefgh")
        made.append({"word": word, "tags": [], "y": int(drawn.random() < RATES[word])})
    return made


def test_blocks_of_any_size_hold_out_the_same_events(tmp_path: Path) -> None:
    platform = Platform(tmp_path, SCHEMA, exports=False).append(words(400))
    small, large = (parsed(platform, asked(), block_examples=size) for size in (7, 1000))
    assert values(small, "at", held_out=True) == values(large, "at", held_out=True)
    assert len(large) == 1 < len(small)


def test_events_of_one_group_are_on_one_side(tmp_path: Path) -> None:
    platform = Platform(tmp_path, SCHEMA, exports=False).append(words(400))
    blocks = parsed(platform, asked(holdout_fraction=0.4, split_by="word"))
    out, kept = (set(values(blocks, "word", held_out=one)) for one in (True, False))
    assert out
    assert kept
    assert not out & kept


def test_equal_events_are_on_one_side_where_asked_whatever_their_label_and_time(tmp_path: Path) -> None:
    platform = Platform(tmp_path, SCHEMA, exports=False).append(words(400))
    files = asked(holdout_fraction=0.4, keep_equal_together=True)
    blocks = parsed(platform, files, block_examples=30)
    sides = [
        {(word, tags) for word, tags in zip(values(blocks, "word", held_out=one), lists(blocks, one), strict=True)}
        for one in (True, False)
    ]
    assert all(sides)
    assert not sides[0] & sides[1]
    assert set(values(blocks, "y", held_out=True)) == {0, 1}
    version = trained(platform, files)
    assert version.evaluation["duplicates"] == {"same_features": 0, "same_event": 0}
    by_position = trained(platform, asked(holdout_fraction=0.4))
    assert by_position.evaluation["duplicates"]["same_features"] == by_position.events_held_out
    assert by_position.evaluation["duplicates"]["same_event"] == 0, "their times differ"
    assert version.newest_event_time == by_position.newest_event_time == 399.0


def lists(blocks: list[ParsedBlock], held_out: bool) -> list[int]:
    return [len([one for one in row if one != "\uffff".encode()]) for row in values(blocks, "tags", held_out=held_out)]


@pytest.mark.parametrize("planned", [{}, {"holdout_fraction": 0.25, "holdout_by": "word"}])
def test_a_version_of_the_rule_before_is_rebuilt_by_it(tmp_path: Path, planned: dict[str, Any]) -> None:
    """Its plan names no rule: by the event's bytes, or by the group of a ranking."""
    platform = Platform(tmp_path, SCHEMA, exports=False).append(words(300))
    files = asked(seed=2, holdout_fraction=0.25)
    lease = platform.lease(files, block_examples=4000)
    lease = platform.registry.lease(
        definition=files, ranges=lease.round.plan.ranges, block_examples=4000, evaluation=planned
    )
    assert isinstance(platform.train(lease), Done)
    version = platform.registry.versions[0]
    found = rebuilt(platform, lease, 1)
    assert (found.differences, found.missing) == ((), ())
    (block,) = parsed(platform, files, block_examples=4000)
    out = holdout_mask(block.crcs.astype(np.uint64), seed=2, fraction=0.25)
    if not planned:
        assert version.events_held_out == int(out.sum())
        assert version.events_held_out != int(block.held_out.sum())
    now = platform.registry.lease(definition=files, ranges=lease.round.plan.ranges, block_examples=4000)
    assert rebuilt(platform, now, 1).differences, "by its position it is another version"


def test_the_rule_before_reads_events_of_another_topic_with_their_defaults() -> None:
    """So they were mapped, and their bytes chose the side."""
    extra = {"name": "extra", "dtype": "float32", "required": False, "default": 0.5}
    source = {"kafka": {"topic": "theirs", "format": "json"}}
    schema = Schema.from_mapping({"features": [*SCHEMA["features"], extra], "source": source})
    codec = ExampleCodec(schema)
    rows: list[dict[str, Any]] = [{"word": "a", "tags": [], "at": at} for at in range(300)]
    absent, filled = (cut(frame([codec.encode(more | row) for row in rows])) for more in ({}, {"extra": 0.5}))
    block = Block(*absent, np.zeros(300, np.uint64), {}, np.zeros(300, PLACE), {})
    split = Split.of({"evaluation": {}}, Evaluation(0.25), schema, seed=4)
    out, _ = split.masks(block, range(300), {}, block.keys)
    assert out.tolist() == holdout_mask(filled[1].astype(np.uint64), seed=4, fraction=0.25).tolist()
    assert out.tolist() != holdout_mask(absent[1].astype(np.uint64), seed=4, fraction=0.25).tolist()
