"""Versions that are trained again for a comparison, and models made elsewhere that are measured: one at a time, between
two rounds, under nobody's lease.

What is asked for and what came out is kept in memory only: a trainer that restarts has forgotten it, and the caller
asks again.
"""

import logging
import shutil
import signal
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from common.errors import Conflict, HeadraceError, NotFound, Overloaded
from common.process.lifecycle import Stop
from common.registry.catalog import PRODUCTION, PUSHED, FileEntry, Lease, Round, Version
from common.registry.client import RegistryClient
from services.trainer.rounds.assignment import Failed, Figures, Message, Progress, Raised, Rebuilt, RoundAssignment
from services.trainer.rounds.zygote_handle import RoundChild, ZygoteHandle
from services.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)
_KEPT = 100
_LOOK_SECONDS = 0.2


class RebuildState(StrEnum):
    WAITING = "waiting"
    """For the running round to end."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Nothing is known: its process died, something it needs was away, or the time was over."""


@dataclass
class Rebuild:
    """One comparison; changed by the lease loop's thread only. `result` is there when it is DONE."""

    rebuild_id: str
    version: Version
    round: Round
    asked_at: float
    state: RebuildState = RebuildState.WAITING
    reason: str = ""
    result: Rebuilt | Figures | None = None
    progress: Progress = field(default_factory=lambda: Progress("fork"))
    seconds: float = 0.0
    candidate: tuple[FileEntry, ...] = ()
    """Not empty: a SavedModel made elsewhere, to be measured beside `version` on what `round` held out."""


class Rebuilds:
    """Thread-safe: doors ask, the lease loop takes and runs."""

    def __init__(self, settings: TrainerSettings, registry: RegistryClient, *, on_asked: Callable[[], None]) -> None:
        self._settings, self._registry, self._on_asked = settings, registry, on_asked
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Rebuild] = OrderedDict()
        self._open: Rebuild | None = None

    def ask(self, model: str, version: int) -> Rebuild:
        """Has the version trained again. Asked while that same one is open, gives the one there is.

        Raises:
            NotFound: no such model or version. Conflict: it was made elsewhere.
            Overloaded: another one is waiting or running.
        """
        found = self._registry.get_version(model, version)
        its_round = self._registry.get_round(model, found.round_id)
        if its_round.plan.trigger == PUSHED:
            by = found.environment.get(PUSHED, {}).get("by", "somebody")
            raise Conflict(
                f"{model}@{version} was pushed by {by} and not trained here, so there is nothing to train it again from"
            )
        return self._begin(Rebuild(uuid.uuid4().hex, found, its_round, time.time()))

    def measure(self, model: str, files: tuple[FileEntry, ...]) -> Rebuild:
        """Has a SavedModel that the registry has the files of measured beside the live version.

        Raises:
            NotFound: no such model. Conflict: no round of it has made a version, so nothing is held out.
            Overloaded: another one is waiting or running.
        """
        known = self._registry.get_model(model)
        if not known.head_version:
            raise Conflict(f"no round of {model} has made a version yet, so nothing is held out to judge by")
        last = self._registry.get_version(model, known.head_version)
        its_round = self._registry.get_round(model, last.round_id)
        live = known.aliases.get(PRODUCTION, 0)
        against = self._registry.get_version(model, live) if live else last
        return self._begin(Rebuild(uuid.uuid4().hex, against, its_round, time.time(), candidate=files))

    def _begin(self, rebuild: Rebuild) -> Rebuild:
        with self._lock:
            if self._open is not None:
                open_one, wanted = self._open.version, rebuild.version
                asked = (wanted.model, wanted.version, rebuild.candidate)
                if (open_one.model, open_one.version, self._open.candidate) == asked:
                    return self._open
                doing = "measuring a model against" if self._open.candidate else "rebuilding"
                raise Overloaded(
                    f"this trainer is {doing} {open_one.model}@{open_one.version}; one at a time",
                    retry_after_seconds=2,
                )
            self._open = self._known[rebuild.rebuild_id] = rebuild
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._on_asked()
        return rebuild

    def find(self, rebuild_id: str) -> Rebuild:
        """Raises NotFound: never asked here, or forgotten since."""
        with self._lock:
            if rebuild_id not in self._known:
                raise NotFound(f"this trainer knows no rebuild {rebuild_id}; another trainer may, or it was restarted")
            return self._known[rebuild_id]

    def waiting(self) -> Rebuild | None:
        with self._lock:
            return self._open

    def run(self, rebuild: Rebuild, zygote: ZygoteHandle, stop: Stop) -> None:
        """In the thread that owns the zygote; until it has ended, whichever way."""
        work_dir = self._settings.data_dir.absolute() / "rebuilds" / rebuild.rebuild_id
        named = {"model": rebuild.version.model, "version": rebuild.version.version}
        logger.info("rebuild begins", extra=named)
        rebuild.state, began = RebuildState.RUNNING, time.monotonic()
        try:
            work_dir.mkdir(parents=True)
            self._conclude(rebuild, *self._accompany(rebuild, self._assignment(rebuild, work_dir), zygote, stop))
        except (HeadraceError, OSError) as error:
            rebuild.reason, rebuild.state = f"its process could not be run: {error}", RebuildState.FAILED
        finally:
            rebuild.seconds = time.monotonic() - began
            with self._lock:
                self._open = None
            shutil.rmtree(work_dir, ignore_errors=True)
        logger.info("rebuild ended", extra={**named, "state": str(rebuild.state), "reason": rebuild.reason})

    def give_up(self, reason: str) -> None:
        """The trainer is stopping: who waits is told."""
        with self._lock:
            if self._open is not None:
                self._open.state, self._open.reason = RebuildState.FAILED, reason
            self._open = None

    def _assignment(self, rebuild: Rebuild, work_dir: Path) -> RoundAssignment:
        configuration = rebuild.round.plan.configuration
        return RoundAssignment(
            lease=Lease(rebuild.round, token=0, expires_at=0.0),
            registry_address=self._settings.registry_address,
            event_log=self._settings.event_log,
            work_dir=str(work_dir),
            cache_dir=str(work_dir / "cache"),
            intra_op_threads=int(configuration["intra_op_threads"]),
            inter_op_threads=int(configuration["inter_op_threads"]),
            resume_interval_seconds=self._settings.resume_interval_seconds,
            readers=self._settings.readers,
            max_parameters=self._settings.max_parameters,
            rebuild_of=0 if rebuild.candidate else rebuild.version.version,
            candidate=rebuild.candidate,
            against=rebuild.version.version if rebuild.candidate else 0,
        )

    def _accompany(
        self, rebuild: Rebuild, assignment: RoundAssignment, zygote: ZygoteHandle, stop: Stop
    ) -> tuple[RoundChild, Message | None, str]:
        """Until the child has ended: the child, its last word, and why it was killed where it was."""
        child = zygote.spawn(assignment)
        deadline = time.monotonic() + self._settings.rebuild_timeout_seconds
        last_word: Message | None = None
        killed_because = ""
        try:
            while True:  # At least once: a child that has ended may have left words.
                for message in zygote.wait(child, _LOOK_SECONDS):
                    if isinstance(message, Progress):
                        rebuild.progress = message
                    else:
                        last_word = message
                if stop.is_requested():
                    killed_because = "the trainer was stopped"
                elif time.monotonic() > deadline:
                    killed_because = f"it took longer than {self._settings.rebuild_timeout_seconds:g} s"
                if killed_because:
                    zygote.signal(child, signal.SIGKILL)
                if child.has_ended:
                    return child, last_word, killed_because
        except BaseException:
            zygote.signal(child, signal.SIGKILL)
            raise
        finally:
            zygote.forget(child)

    def _conclude(self, rebuild: Rebuild, child: RoundChild, word: Message | None, killed_because: str) -> None:
        if isinstance(word, Rebuilt | Figures):
            rebuild.result, rebuild.state = word, RebuildState.DONE
            return
        rebuild.reason = killed_because or f"its process ended with status {child.status} and without a result"
        if isinstance(word, Raised):
            rebuild.reason = f"{word.error}: {word.message}"
        if isinstance(word, Failed):
            rebuild.reason = f"{word.kind}: {word.reason}"
        rebuild.state = RebuildState.FAILED
