"""two_tower: what it learns in a batch, how items rank, what its signatures answer, over whole rounds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.schema import Schema
from services.trainer.families.retrieval import NO_RANK, RetrievalModel
from services.trainer.features.words import Ledger, Memory, Words
from services.trainer.learn import adapters
from services.trainer.tests.families.test_modules import trained_twice
from services.trainer.tests.support.small_rounds import definition, serialized
from testing.rows import each_row

SCHEMA = {
    "features": [
        {"name": "user", "dtype": "string"},
        {"name": "hour", "dtype": "float32"},
        {"name": "item", "dtype": "string"},
    ]
}
FEATURES: dict[str, Any] = {
    "user": {"type": "vocabulary", "max_words": 20, "oov": "bucket"},
    "user_vector": {"type": "embedding", "of": "user", "dimension": 4},
    "hour": {"type": "numeric"},
    "item_id": {"type": "vocabulary", "of": "item", "max_words": 5, "oov": "drop", "evict": "least_recent"},
    "item_vector": {"type": "embedding", "of": "item_id", "dimension": 4},
}
SECTIONS: dict[str, Any] = {
    "estimator": "two_tower",
    "label": "item",
    "features": FEATURES,
    "parameters": {
        "user": ["user_vector", "hour"],
        "item": ["item_vector"],
        "dimension": 4,
        "hidden_units": [8],
        "top_k": 3,
    },
    "training": {"batch_size": 20, "optimizer": {"name": "adam", "learning_rate": 0.05}, "passes": 16, "shards": 2},
    "gate": {"metric": "recall_at@1", "min_value": 0.6},
}


def examples(items: list[str], *, seed: int) -> list[bytes]:
    """Each of ten users takes one item nearly always."""
    random, found = np.random.default_rng(seed), []
    for _ in range(160):
        user = int(random.integers(0, 10))
        item = items[user % len(items)] if random.random() < 0.95 else str(random.choice(items))
        found.append(serialized({"user": f"u{user}", "hour": float(random.random()), "item": item}))
    return found


@pytest.mark.covers("est-canned-nn", "mode-dynamic-embedding")
def test_towers_learn_who_takes_what_resume_rebuild_and_answer_with_items_of_the_stream(tmp_path: Path) -> None:
    """The second round is stopped in the middle of the ninth of its sixteen passes of four blocks."""
    parts = examples(["a", "b", "c"], seed=0), examples(["b", "c", "d", "e", "f"], seed=1)
    platform = trained_twice(tmp_path, definition(**SECTIONS), SCHEMA, stops=(33,), parts=parts)
    first, second = platform.registry.versions
    assert first.metrics["candidate"]["recall_at@1"] > 0.8
    assert second.metrics["candidate"]["recall_at@1"] > 0.7
    assert second.metrics["parent"]["recall_at@1"] < second.metrics["candidate"]["recall_at@1"], "it lacks new items"
    assert 0 < second.metrics["candidate"]["reciprocal_rank"] <= 1
    assert second.metrics["rows_evicted"] == {"item_id": 1}

    signatures = tf.saved_model.load(str(tmp_path / "cache" / "model" / "2" / "saved_model")).signatures
    asked = {"user": tf.constant([f"u{number}" for number in range(10)]), "hour": tf.fill([10], 0.5)}
    answer = signatures["serving_default"](**asked)
    taken = [b"bcdef"[number % 5 : number % 5 + 1] for number in range(10)]
    assert sum(one == own for one, own in zip(answer["items"].numpy()[:, 0], taken, strict=True)) >= 7
    assert b"a" not in answer["items"].numpy(), "who left the stream is no candidate"
    users = signatures["user_embedding"](**asked)["embedding"].numpy()
    items = signatures["item_embedding"](item=answer["items"][:, 0])["embedding"].numpy()
    np.testing.assert_allclose((users * items).sum(axis=1), answer["scores"].numpy()[:, 0], rtol=1e-5)
    by_example = signatures["serving_examples"](tf.constant(examples(["b"], seed=9)[:1]))
    assert by_example["items"].shape == (1, 3)


def model_of(counts: dict[str, int]) -> RetrievalModel:
    items = tuple(word.encode() for word in counts)
    known = tuple(Memory(count, 1, 1) for count in counts.values())
    statistics = {"user": Words((b"u0", b"u1")), "item_id": Words(items, Ledger(known))}
    built = adapters.build(
        parse_definition(definition(**SECTIONS)), Schema.from_mapping(SCHEMA), statistics, None, seed=3
    )
    assert isinstance(built, RetrievalModel)
    return built


def test_the_loss_is_a_softmax_over_the_batch_less_the_logarithm_of_the_frequencies() -> None:
    model = model_of({"a": 6, "b": 3, "c": 1})
    random = np.random.default_rng(5)
    users, items = (0.3 * random.normal(size=(5, 4)).astype(np.float32) for _ in range(2))
    ids = np.array([0, 1, 0, -1, 2], np.int32)
    found = model._losses({}, {"item": items, "item_id": tf.constant(ids), "user": users})["item"].numpy()
    shares = np.array([0.6, 0.3, 0.6, 1.0, 0.1])
    logits = users @ items.T / 0.1 - np.log(shares)
    for row in (0, 1, 2, 4):
        taken = [column for column in range(5) if column == row or (ids[column] not in (ids[row], -1))]
        expected = np.log(np.exp(logits[row, taken] - logits[row, row]).sum())
        np.testing.assert_allclose(found[row], expected, rtol=1e-4)
    assert found[3] == 0.0, "an item without a row teaches nothing"


def test_an_item_ranks_behind_its_equals_and_what_is_no_candidate_behind_all() -> None:
    model = model_of({"a": 6, "b": 3, "c": 1})
    for variable in model.network.variables:
        variable.assign(tf.ones_like(variable.value))
    raw = {"user": tf.constant(["u0", "u1"]), "hour": tf.zeros(2), "item": tf.constant(["b", "new"])}
    assert model.outputs(model.transformed(raw).columns, training=False)["item"].numpy().tolist() == [3.0, NO_RANK]
    assert model_of({}).signatures()["serving_default"].answer(raw)["items"].numpy().tolist() == [[b""] * 3] * 2


@each_row(
    ("added", "words"),
    [
        ({"module": "own.py"}, "both estimator and module"),
        ({"operations": ["own.so"]}, "an estimator takes none"),
        ({"training": {"hooks": ["own.Hook"]}}, "hooks go with a module"),
        ({"evaluation": {"metrics": ["own_score"]}}, "no metric 'own_score'"),
    ],
)
def test_no_code_of_an_authors_runs_in_a_round_whose_metrics_no_other_process_takes(
    added: dict[str, Any], words: str
) -> None:
    shipped = yaml.safe_load(Path("examples/flights_towers/model.yaml").read_text())
    files = {"model.yaml": yaml.safe_dump(shipped | added).encode(), "own.py": b"", "own.so": b""}
    with pytest.raises(InvalidInput, match=words):
        parse_definition(files)
