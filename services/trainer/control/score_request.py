"""A call's request to the thread that owns the zygote: the figures of its version's export."""

import queue
from concurrent.futures import Future
from dataclasses import dataclass, field

from common.errors import Unavailable
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Figures


@dataclass(frozen=True)
class Question:
    """Each question has its own answer, so that an answer that comes too late reaches no later question."""

    assignment: RoundAssignment
    answer: Future[Figures] = field(default_factory=Future)


class ScoreRequest:
    """Of a round."""

    def __init__(self) -> None:
        self._questions = queue.SimpleQueue[Question]()

    def score(self, assignment: RoundAssignment, *, timeout_seconds: float) -> Figures:
        """Raises InvalidInput: the export cannot be scored. Unavailable: nothing is known of it."""
        question = Question(assignment)
        self._questions.put(question)
        try:
            return question.answer.result(timeout_seconds)
        except TimeoutError as error:
            question.answer.cancel()
            raise Unavailable(f"the version was not scored within {timeout_seconds:g} s") from error

    def taken(self) -> Question | None:
        """The oldest for which a call still waits."""
        while not self._questions.empty():
            question = self._questions.get_nowait()
            if question.answer.set_running_or_notify_cancel():
                return question
        return None
