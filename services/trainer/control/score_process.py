"""The process that scores a version outside of its author's code, in the hands of the attempt that waits for it."""

import logging
import signal
import time
from pathlib import Path

from common.errors import HeadraceError, InvalidInput, Unavailable
from common.process.own_time import OwnClock, clock_of
from services.trainer.control.endings import words_of
from services.trainer.control.removing import remove
from services.trainer.control.score_request import Question, ScoreRequest
from services.trainer.control.zygote_client import RoundChild, RunsRounds
from services.trainer.protocol.messages import Figures, Raised, Waits

logger = logging.getLogger(__name__)
_ABOUT_THE_VERSION = ("InvalidInput", "DataLoss", "DefinitionFailedError")


class ScoreProcess:
    """Of the thread that owns the zygote.

    Args:
        limit_seconds: of its own time; then the version is refused.
    """

    def __init__(self, request: ScoreRequest, zygote: RunsRounds, *, limit_seconds: float) -> None:
        self._request, self._zygote, self._limit_seconds = request, zygote, limit_seconds
        self._question: Question | None = None
        self._child: RoundChild | None = None
        self._clock: OwnClock | None = None
        self._word: Figures | Raised | None = None
        self._is_late = False

    def step(self) -> bool:
        """Takes due steps; whether a process runs."""
        if self._child is None:
            self._begin()
        if self._child is not None:
            self._look(self._child)
        return self._child is not None

    def end(self) -> None:
        """The attempt has ended."""
        ended = Unavailable("the round ended while its version was scored")
        if self._child is not None:
            self._zygote.signal(self._child, signal.SIGKILL)
            self._let_go(self._child, ended)
        for question in iter(self._request.taken, None):
            question.answer.set_exception(ended)

    def _begin(self) -> None:
        self._question = self._request.taken()
        if self._question is None:
            return
        self._word, self._is_late = None, False
        try:
            self._child = self._zygote.spawn(self._question.assignment)
        except Unavailable as error:
            self._question.answer.set_exception(error)
            return
        self._clock = clock_of(self._child.pid)

    def _look(self, child: RoundChild) -> None:
        assert self._clock is not None, "it begins with the child"
        for message in self._zygote.wait(child, 0.0):
            if isinstance(message, Figures | Raised):
                self._word = message
            child.waits = child.waits or isinstance(message, Waits)
        self._clock.look(time.monotonic())
        if not child.has_ended and self._clock.own_seconds > self._limit_seconds:
            self._is_late = True
            self._zygote.signal(child, signal.SIGKILL)
        if child.has_ended or child.waits:
            self._let_go(child, self._answer(child))

    def _answer(self, child: RoundChild) -> Figures | HeadraceError:
        if isinstance(self._word, Figures):
            return self._word
        if self._is_late:
            return InvalidInput(f"its export was not scored within {self._limit_seconds:g} s of its own time")
        if isinstance(self._word, Raised) and self._word.error in _ABOUT_THE_VERSION:
            return InvalidInput(f"its export cannot be scored outside of its code: {self._word.message}")
        if isinstance(self._word, Raised) and self._word.error in ("Unavailable", "Overloaded"):
            return Unavailable(f"its export is not scored: {self._word.message}")
        if child.zygote_died:
            return Unavailable("the process that forks rounds died while the version was scored")
        how = self._word.message if isinstance(self._word, Raised) else words_of(child.status or 0)
        return InvalidInput(f"its export cannot be scored outside of its code: {how}")

    def _let_go(self, child: RoundChild, answer: Figures | HeadraceError) -> None:
        assert self._question is not None, "it began the child"
        self._zygote.forget(child)
        self._child = None
        remove(Path(self._question.assignment.work_dir))
        if isinstance(answer, HeadraceError):
            self._question.answer.set_exception(answer)
        else:
            self._question.answer.set_result(answer)
