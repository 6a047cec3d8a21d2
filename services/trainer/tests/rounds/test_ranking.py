"""Ranking within groups: whole groups in batches and in the held-out slice, losses of pairs and lists, NDCG and MRR."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import ndcg_score

from common.definition.model import parse_definition
from common.schema import Schema
from services.trainer import determinism
from services.trainer.protocol.messages import Done
from services.trainer.rounds.inputs import RoundInputs, data_of
from services.trainer.tests.families.test_losses import head, losses
from services.trainer.tests.families.test_modules import trained_twice
from services.trainer.tests.support.small_rounds import Platform, definition, serialized

SEARCHES: dict[str, Any] = {
    "features": [
        {"name": "search", "dtype": "string"},
        {"name": "match", "dtype": "float32"},
        {"name": "price", "dtype": "float32"},
    ],
    "labels": [{"name": "clicks", "dtype": "int64", "min": 0}],
}


def ranked(**sections: Any) -> dict[str, bytes]:
    """Of SCHEMA: which events of a word are of the higher kind."""
    asked = {"label": "kind", "task": "ranking", "group": "word", "estimator": "wide_deep", **sections}
    return definition(gate={"metric": "ndcg", "min_value": 0.1}, **asked)


def searches(count: int) -> list[dict[str, Any]]:
    """Of each search a few results far from those of others, so that only the order within it can be learned."""
    random, made = np.random.default_rng(3), list[dict[str, Any]]()
    for number in range(count):
        level = 20.0 * float(random.normal())
        for _ in range(5):
            match = float(random.normal())
            clicks = int(np.clip(np.floor(match + 0.2 * random.normal()) + 1, 0, 3))
            made.append({"search": f"s{number}", "match": match, "price": level, "clicks": clicks})
    return made


@pytest.mark.parametrize("loss", ["pairwise_logistic", "listwise_softmax"])
def test_a_ranking_learns_the_order_of_groups_that_it_has_not_seen(tmp_path: Path, loss: str) -> None:
    platform = Platform(tmp_path, SEARCHES)
    made = searches(80)
    platform.append([serialized(one) for one in made])
    files = ranked(
        label="clicks", group="search", loss=loss, estimator="linear",
        features={"match": {"type": "numeric"}, "price": {"type": "numeric"}}, parameters={},
        training={"batch_size": 40, "passes": 5, "optimizer": {"name": "adam", "learning_rate": 0.1}},
    )  # fmt: skip
    lease = platform.lease(files, block_examples=100)
    assert isinstance(platform.train(lease), Done)
    (version,) = platform.registry.versions
    assert version.metrics["candidate"]["ndcg"] > 0.95
    assert set(version.metrics["candidate"]) == {"ndcg", "mrr"}
    stored = parse_definition(files)
    inputs = RoundInputs(stored, Schema.from_mapping(SEARCHES), None, None)
    sides: dict[bool, set[bytes]] = {True: set(), False: set()}
    held_out = dict[bytes, tuple[list[float], list[float]]]()
    saved = tf.saved_model.load(str(tmp_path / "cache" / "model" / "1" / "saved_model"))
    for block in data_of(platform.assignment(lease), inputs, platform.log).parsed():
        answer = saved.signatures["serving_examples"](examples=tf.constant(block.examples))["prediction"].numpy()
        rows = zip(block.raw["search"].numpy().reshape(-1), block.raw["clicks"].numpy().reshape(-1), strict=True)
        for row, (search, clicks) in enumerate(rows):
            sides[bool(block.held_out[row])].add(search)
            if block.held_out[row]:
                relevance, scores = held_out.setdefault(search, ([], []))
                relevance.append(float(clicks))
                scores.append(float(answer[row]))
    assert sides[True]
    assert not sides[True] & sides[False], "a group is held out whole"
    there = [pair for pair in held_out.values() if max(pair[0])]
    expected = np.mean([ndcg_score([relevance], [scores], k=10) for relevance, scores in there])
    assert version.metrics["candidate"]["ndcg"] == pytest.approx(expected, abs=1e-6)


def test_a_ranking_is_resumed_after_every_block_and_rebuilt_to_the_same_bits(tmp_path: Path) -> None:
    small = {"estimator": "dnn", "features": {"x": {"type": "numeric"}}}
    trained_twice(tmp_path, ranked(**small), exports=False)


def test_batches_are_made_of_whole_groups_in_another_order_each_pass() -> None:
    groups = np.random.default_rng(1).integers(0, 12, 100)
    turn = {"seed": 5, "block_index": 2}
    order, bounds = determinism.group_batches(groups, 16, pass_index=0, **turn)
    assert sorted(order.tolist()) == list(range(100))
    batches = [set(groups[order[begin:end]].tolist()) for begin, end in pairwise(bounds)]
    assert sum(map(len, batches)) == len(set(groups.tolist())), "each group is in one batch"
    sizes = np.diff(bounds)
    assert all(size <= 16 or len(batch) == 1 for batch, size in zip(batches, sizes, strict=True))
    again, _ = determinism.group_batches(groups, 16, pass_index=0, **turn)
    other, _ = determinism.group_batches(groups, 16, pass_index=1, **turn)
    assert (again == order).all()
    assert (other != order).any()


@pytest.mark.covers("loss-pointwise")
def test_losses_of_an_order_by_hand() -> None:
    labels, scores = [[2.0, 7], [1.0, 7], [0.0, 7], [1.0, 8], [0.0, 9]], [1.0, 2.0, 0.0, 5.0, 9.0]
    softplus = {difference: float(np.log1p(np.exp(-difference))) for difference in (-1.0, 1.0, 2.0)}
    logistic = losses(head("ranking", "pairwise_logistic", group="g"), labels, scores)
    assert logistic == pytest.approx([(softplus[-1.0] + softplus[1.0]) / 2, softplus[2.0], 0, 0, 0], abs=1e-6)
    hinge = losses(head("ranking", {"name": "pairwise_hinge", "margin": 1.5}, group="g"), labels, scores)
    assert hinge == pytest.approx([(2.5 + 0.5) / 2, 0.0, 0, 0, 0], abs=1e-6)
    listwise = losses(head("ranking", "listwise_softmax", group="g"), labels, scores)
    total = np.log(np.exp([1.0, 2.0, 0.0]).sum())
    assert listwise == pytest.approx([2 / 3 * (total - 1.0), (total - 2.0) / 3, 0, 0, 0], abs=1e-6)
