"""A SavedModel made elsewhere is measured beside the live version, on what the last round held out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from common.errors import InvalidInput
from common.registry.catalog import FileEntry, Lease
from common.registry.plan_notes import PUSHED
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Done, Figures, decode_message, encode_message
from services.trainer.rounds.judging import figures_of
from services.trainer.tests.support.small_rounds import LINEAR, Platform, definition, events

Answer = Callable[[tf.Tensor], dict[str, tf.Tensor]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Platform, Lease]:
    platform = Platform(tmp_path_factory.mktemp("judging")).append(events(200))
    evaluation = {"holdout_fraction": 0.25, "metrics": ["auc", "log_loss"]}
    lease = platform.lease(definition(**LINEAR, evaluation=evaluation))
    assert isinstance(platform.train(lease), Done)
    return platform, replace(lease, round=replace(lease.round, version=1))


def elsewhere(directory: Path, answer: Answer, *, name: str = "x") -> None:
    module = tf.Module()
    spec = tf.TensorSpec([None, 1], tf.float64, name=name)  # another type and shape than the stream's
    module.answer = tf.function(lambda **given: answer(given[name]), autograph=False)
    signature = module.answer.get_concrete_function(**{name: spec})
    tf.saved_model.save(module, str(directory / "saved_model"), signatures={"theirs": signature})


def measured(trained: tuple[Platform, Lease], files: tuple[FileEntry, ...], *, against: int = 1) -> Figures:
    platform, lease = trained
    assignment = replace(platform.assignment(lease, "judging"), candidate=files, against=against)
    assert RoundAssignment.from_json(assignment.to_json()) == assignment
    found = figures_of(assignment, registry=platform.registry, log=platform.log)
    heard = decode_message(encode_message(found))
    assert isinstance(heard, Figures)
    return heard


def pushed(trained: tuple[Platform, Lease], directory: Path) -> tuple[FileEntry, ...]:
    return trained[0].registry.upload(directory)[0]


@pytest.mark.covers("fmt-savedmodel")
def test_a_models_own_export_scores_as_the_model_and_a_worse_one_worse(
    trained: tuple[Platform, Lease], tmp_path: Path
) -> None:
    version = trained[0].registry.versions[0]
    own = measured(trained, version.files)
    assert (own.against, own.held_out) == (1, version.events_held_out)
    assert own.metrics["candidate"] == pytest.approx(own.metrics["parent"], abs=1e-6)
    assert own.metrics["parent"]["auc"] == pytest.approx(version.metrics["candidate"]["auc"], abs=1e-6)
    elsewhere(tmp_path, lambda x: {"anything": tf.sigmoid(-x)})
    files = pushed(trained, tmp_path)
    worse = measured(trained, files)
    assert worse.metrics["candidate"]["auc"] < 0.5 < worse.metrics["parent"]["auc"]
    assert worse.gate["metric"] == version.verdict.rule.metric
    live = replace(version, version=2, files=files, environment={PUSHED: {"by": "ada"}})
    trained[0].registry.versions.append(live)
    try:
        against_theirs = measured(trained, version.files, against=2)
    finally:
        trained[0].registry.versions.pop()
    assert against_theirs.metrics["parent"] == worse.metrics["candidate"], "what is live may be from elsewhere, too"
    assert against_theirs.metrics["candidate"] == own.metrics["candidate"]


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("theirs", lambda x: {"logits": x}, "takes theirs, no feature of the stream"),
        ("x", lambda x: {"a": x, "b": x}, "gives a, b; head late needs logits or probability"),
        ("x", lambda x: {"probability": 5.0 + x}, "call it logits where it is"),
        ("x", lambda x: {"logits": tf.concat([x, x], 1)}, "needs"),
    ],
)
def test_what_does_not_answer_the_streams_events_is_refused(
    trained: tuple[Platform, Lease], tmp_path: Path, name: str, answer: Answer, words: str
) -> None:
    elsewhere(tmp_path, answer, name=name)
    with pytest.raises(InvalidInput, match=words):
        measured(trained, pushed(trained, tmp_path))
