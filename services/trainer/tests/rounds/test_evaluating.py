"""An evaluator beside a round's chief: the chief's own scores, also where it dies on the way."""

import socket
from collections import deque
from pathlib import Path
from typing import cast

import pytest

from services.trainer.protocol.messages import Done, Stopped
from services.trainer.rounds.evaluating import Evaluator, Scorer
from services.trainer.tests.rounds.test_measured_rounds import curves_of
from services.trainer.tests.support.small_rounds import LINEAR, MOMENTUM, Platform, definition, events

_TRAINING = {"batch_size": 8, "evaluate_every_steps": 3, "optimizer": {**MOMENTUM, "use_ema": True}}


class Inline:
    """An evaluator's socket, answered in this process; so many times, then it has died."""

    def __init__(self, scorer: Scorer, answers: int) -> None:
        self._scorer, self._left = scorer, answers
        self._answers = deque[bytes]()

    def send(self, packet: bytes, /) -> int:
        if self._left > 0:
            self._left -= 1
            self._answers.append(self._scorer.answer(packet))
        return len(packet)

    def recv(self, size: int, /) -> bytes:
        return self._answers.popleft() if self._answers else b""

    def settimeout(self, seconds: float, /) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def by_chief(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """A round whose chief has scored its checkpoints itself."""
    platform = Platform(tmp_path_factory.mktemp("chief"), exports=False).append(events(240))
    platform.learn(definition(**LINEAR, training=_TRAINING))
    return platform


@pytest.mark.covers("dist-chief-evaluator")
@pytest.mark.parametrize(("answers", "told"), [(1000, "evaluator"), (3, "evaluator, then chief: its process ended")])
def test_an_evaluator_measures_what_the_chief_would_and_the_chief_goes_on_without_it(
    by_chief: Platform, tmp_path: Path, answers: int, told: str
) -> None:
    by_other = Platform(tmp_path / "other", exports=False).append(events(240))
    lease = by_other.lease(definition(**LINEAR, training=_TRAINING))
    scorer = Scorer(by_other.assignment(lease), by_other.registry, by_other.log)
    evaluator = Evaluator(cast(socket.socket, Inline(scorer, answers)), tmp_path / "asked")
    stopped = by_other.train(lease, stop_requested=by_other.after_blocks(2), evaluator=evaluator)
    assert isinstance(stopped, Stopped)
    assert isinstance(by_other.train(by_other.registry.taken_up(lease), evaluator=evaluator), Done)
    mine, other = by_chief.registry.versions[0], by_other.registry.versions[0]
    assert mine.weights_digest == other.weights_digest
    assert len(mine.evaluation["by_step"]) > 5
    assert mine.evaluation["by_step"] == other.evaluation["by_step"]
    assert curves_of(by_chief)["evaluation/auc"] == curves_of(by_other)["evaluation/auc"]
    by = [version.environment["training"]["evaluated_by"] for version in (mine, other)]
    assert by == ["chief", told]
    assert not list((tmp_path / "asked").iterdir()), "nothing of it is kept"
