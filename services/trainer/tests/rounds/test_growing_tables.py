"""Embedding tables whose rows come and go with the stream, over whole rounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from services.trainer.learn import checkpoint
from services.trainer.protocol.messages import Done, Stopped
from services.trainer.tests.support.small_rounds import Platform, definition, event, rebuilt, serialized

FEATURES: dict[str, Any] = {
    "x": {"type": "numeric"},
    "item": {"type": "vocabulary", "of": "word", "max_words": 4, "oov": "drop", "min_count": 3, "evict": "least_recent"}
    | {"expire_after_rounds": 1},
    "item_vector": {"type": "embedding", "of": "item", "dimension": 3, "parts": 3},
}
SECTIONS: dict[str, Any] = {
    "features": FEATURES,
    "estimator": "dnn_classifier",
    "parameters": {"hidden_units": [4]},
    "export": {"checkpoint_shard_bytes": 1024},
    "training": {"batch_size": 8, "shards": 2, "optimizer": {"name": "adam", "learning_rate": 0.05}},
}


def examples(words: list[str], *, seed: int) -> list[bytes]:
    random = np.random.default_rng(seed)
    return [serialized({**event(random), "word": words[number % len(words)]}) for number in range(80)]


def stored(platform: Platform, version: int) -> checkpoint.Checkpoint:
    return checkpoint.read(platform.directory / "cache" / "model" / str(version))


@pytest.mark.covers("mode-dynamic-embedding", "mode-deeprec")
def test_rows_come_and_go_with_their_slots_and_a_version_is_rebuilt_and_resumed_to_the_same_bits(
    tmp_path: Path,
) -> None:
    platform = Platform(tmp_path, exports=False, eager=True)
    still = {**SECTIONS["training"], "optimizer": {"name": "adam", "learning_rate": 0.0}}
    rounds = [(["red", "green", "blue"], SECTIONS), (["blue", "grey", "red"], SECTIONS | {"training": still})]
    rounds += [(["grey", "pink", "teal", "rose", "rust"], SECTIONS)]
    for number, (words, sections) in enumerate(rounds):
        platform.append(examples(words, seed=number))
        planned = lease = platform.lease(definition(**sections), block_examples=20, parent_version=number)
        if number == 2:  # is stopped after three of four blocks, and its answers are looked at
            stopped = platform.train(lease, resume_interval_seconds=0.0, stop_requested=platform.after_blocks(3))
            assert isinstance(stopped, Stopped)
            lease, platform.exports = platform.registry.taken_up(lease), True
        assert isinstance(platform.train(lease), Done)
    found = rebuilt(platform, planned, 3)
    assert (found.missing, found.differences) == ((), ())

    metrics = [version.metrics for version in platform.registry.versions]
    assert [one["rows"]["item"] for one in metrics] == [3, 4, 4]
    assert [one["rows_admitted"]["item"] for one in metrics] == [3, 1, 3]
    assert [one["rows_expired"]["item"] + one["rows_evicted"]["item"] for one in metrics] == [0, 0, 3]
    assert metrics[2]["without_id"]["item"] > 0, "one of five words found no row"

    first, second = stored(platform, 1), stored(platform, 2)
    table = next(path for path in first.arrays if path.startswith("model/") and path.endswith("table"))
    slots = [path for path in first.arrays if path.startswith("optimizer/") and "table" in path]
    known = first.statistics["item"].words  # type: ignore[union-attr]  # a vocabulary's statistics are words
    assert len(slots) == 2
    assert np.array_equal(first.arrays[table][: len(known)], second.arrays[table][: len(known)])
    assert first.arrays[table].shape == second.arrays[table].shape, "a new row needs no other table"

    loaded = tf.saved_model.load(str(platform.directory / "cache" / "model" / "3" / "saved_model"))
    written = tf.train.load_checkpoint(str(platform.directory / "cache/model/3/saved_model/variables/variables"))
    shapes = written.get_variable_to_shape_map()
    parts = np.concatenate([written.get_tensor(name) for name, shape in shapes.items() if shape[1:] == [3]])
    assert sorted(parts.tolist()) == sorted(stored(platform, 3).arrays[table].tolist()), "three parts of the table"
    answer = loaded.signatures["serving_default"]
    has_row = stored(platform, 3).statistics["item"].words[-1].decode()  # type: ignore[union-attr]  # as above
    learned, unknown, gone = (
        float(answer(x=tf.constant([0.5]), word=tf.constant([word]))["logits"][0]) for word in (has_row, "?", "red")
    )
    assert learned != unknown
    assert gone == unknown, "who has left has no row, and no other's"
