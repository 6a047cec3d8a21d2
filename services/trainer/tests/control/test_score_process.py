"""A process that scores a version and crashes, hangs or is lost is an answer to the call that waits for it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import HeadraceError, InvalidInput, Unavailable
from services.trainer.control.score_process import ScoreProcess
from services.trainer.control.score_request import Question, ScoreRequest
from services.trainer.control.zygote_client import ZygoteClient
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Figures
from testing.waiting import wait_until

LIMIT_SECONDS = 300.0
FIGURES = Figures(against=0, gate={}, metrics={}, evaluation={}, held_out=5)


@contextmanager
def asked(
    zygote: ZygoteClient, assignment: RoundAssignment, *, limit_seconds: float = LIMIT_SECONDS
) -> Iterator[tuple[ScoreProcess, Future[Figures]]]:
    """A process that runs, and what the call will have of it."""
    work_dir = Path(assignment.work_dir).parent / "scored"
    work_dir.mkdir()
    request = ScoreRequest()
    process = ScoreProcess(request, zygote, limit_seconds=limit_seconds)
    assert not process.step(), "nothing is asked yet"
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(request.score, assignment.scoring((), str(work_dir)), timeout_seconds=LIMIT_SECONDS)
        wait_until(process.step, "the process begins")
        yield process, answer
    assert not process.step()
    assert not work_dir.exists()


@pytest.mark.parametrize(
    ("does", "limit_seconds", "kind", "words"),
    [
        ("die", LIMIT_SECONDS, InvalidInput, "killed by signal 9"),
        ("crash", LIMIT_SECONDS, InvalidInput, "cannot be scored outside of its code"),
        ("finish", LIMIT_SECONDS, InvalidInput, "without a result"),
        ("hang", 0.2, InvalidInput, "not scored within 0.2 s of its own time"),
        ("miss_a_service", LIMIT_SECONDS, Unavailable, "not scored"),
    ],
)
def test_a_process_that_gives_no_figures_costs_the_version_and_not_the_trainer(
    zygote: ZygoteClient, behave: Callable[[str], None], assignment: RoundAssignment, does: str,
    limit_seconds: float, kind: type[HeadraceError], words: str,
) -> None:  # fmt: skip
    behave(does)
    with asked(zygote, assignment, limit_seconds=limit_seconds) as (process, answer):
        wait_until(lambda: not process.step(), "the process has ended")
        with pytest.raises(kind, match=words):
            answer.result()


def test_an_attempt_that_ends_ends_the_process(
    zygote: ZygoteClient, behave: Callable[[str], None], assignment: RoundAssignment
) -> None:
    behave("hang")
    with asked(zygote, assignment) as (process, answer):
        process.end()
        with pytest.raises(Unavailable, match="the round ended"):
            answer.result()


def test_an_answer_that_comes_too_late_is_not_that_of_the_next_call(assignment: RoundAssignment) -> None:
    request, old, new = ScoreRequest(), FIGURES, replace(FIGURES, held_out=7)

    def question() -> Question:
        found = wait_until(request.taken, "a call asks")
        assert found
        return found

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(question)
        with pytest.raises(Unavailable, match=r"not scored within 0\.5 s"):
            request.score(assignment, timeout_seconds=0.5)
        with pytest.raises(Unavailable):
            request.score(assignment, timeout_seconds=0.0)
        answer = pool.submit(request.score, assignment, timeout_seconds=LIMIT_SECONDS)
        second = question()
        assert request.taken() is None, "who has given up is not asked for"
        first.result().answer.set_result(old)
        second.answer.set_result(new)
        assert answer.result() == new
