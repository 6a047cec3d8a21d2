"""Resume points: what a round needs to go on after its machine has died. Kept by the registry, with the lease.

A point is taken between two blocks: every variable, the statistics, the losses so far, and where to read on.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import DataLoss
from common.registry.catalog import Lease
from services.trainer.learn import checkpoint
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.protocol.calls import RESUME
from services.trainer.rounds.outside import RoundRegistry
from services.trainer.rounds.pace import BEST

_LOSSES = "curve/losses"
PaceState = tuple[Mapping[str, Any], Mapping[str, NDArray[np.generic]]]
"""As RoundPace.state gives it."""


@dataclass(frozen=True)
class Place:
    """Where training stands: in which pass, before which block.

    Attributes:
        position: {partition: offset} where that block starts; None at a pass's beginning.
        examples_done: trained on so far, all passes together.
    """

    pass_index: int = 0
    block_index: int = 0
    position: dict[int, int] | None = None
    examples_done: int = 0


@dataclass(frozen=True)
class Resumed:
    """`checkpoint` holds the arrays to restore, statistics included; `losses`: of this round, as in curve.py.

    `best`: the arrays of the best evaluation so far, as in pace.py.
    """

    place: Place
    checkpoint: Checkpoint
    losses: NDArray[np.float32]
    best: Mapping[str, NDArray[np.generic]]


class ResumePoints:
    """Saves and loads the points of one round; a save that is cut short leaves the point before it in force."""

    def __init__(
        self,
        registry: RoundRegistry,
        lease: Lease,
        work_dir: Path,
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._lease, self._directory = registry, lease, work_dir / RESUME
        self._interval_seconds, self._clock = interval_seconds, clock
        self._saved_at = clock()
        self._saved_step = 0
        self._interval_steps: int | None = None
        self.saved_count = 0

    def begin(self, step: int, *, interval_steps: int | None) -> None:
        """Where this attempt starts, and after how many steps a point is due at any time of the clock."""
        self._saved_step, self._interval_steps = step, interval_steps

    def is_due(self, step: int) -> bool:
        if self._interval_steps and step - self._saved_step >= self._interval_steps:
            return True
        return self._clock() - self._saved_at >= self._interval_seconds

    def save(
        self, place: Place, point: Checkpoint, losses: NDArray[np.float32], pace: PaceState, *, shard_bytes: int
    ) -> None:
        """Raises Unavailable, Overloaded or Conflict as the registry says; then the point before stays in force."""
        self._saved_at, self._saved_step = self._clock(), point.step
        of_pace, best = pace
        state = {**point.state, "pace": of_pace, **asdict(place)}
        whole = Checkpoint(point.arrays | {_LOSSES: losses, **best}, state, point.identity)
        checkpoint.write(self._directory, whole, shard_bytes=shard_bytes)
        self._registry.upload(self._directory)
        self._registry.put_resume_point(state)
        self.saved_count += 1

    def load(self) -> Resumed | None:
        """The lease's point; None where the round starts from its beginning. Raises DataLoss: its files are not what
        was saved."""
        point = self._lease.resume_point
        if point is None:
            return None
        self._remove_all_but({entry.path for entry in point.files})
        self._registry.download(point.files, self._directory)
        saved = checkpoint.read(self._directory)
        if _LOSSES not in saved.arrays:
            raise DataLoss("the resume point lacks its losses")
        best = {path: array for path, array in saved.arrays.items() if path.startswith(BEST)}
        arrays = {path: array for path, array in saved.arrays.items() if path != _LOSSES and path not in best}
        position = saved.state["position"]
        place = Place(
            saved.state["pass_index"],
            saved.state["block_index"],
            None if position is None else {int(partition): offset for partition, offset in position.items()},
            saved.state["examples_done"],
        )
        return Resumed(place, Checkpoint(arrays, saved.state), saved.arrays[_LOSSES].astype(np.float32), best)

    def _remove_all_but(self, paths: set[str]) -> None:
        """Shards and an index that a point left here which was not kept would be read with the point that is loaded."""
        for path in [*self._directory.rglob("*")]:
            if path.is_file() and path.relative_to(self._directory).as_posix() not in paths:
                path.unlink()
