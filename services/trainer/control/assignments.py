"""A leased round's place on this trainer: its assignment, its folder, the workers that it has not lost; and when
the folders that rounds leave behind go."""

import time
from dataclasses import replace
from pathlib import Path

from common.registry.catalog import Lease
from services.trainer.control.removing import remove
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.settings import TrainerSettings

_MAX_AGE_SECONDS = 24 * 3600.0
_KEPT_VERSIONS = 3


class Assignments:
    """Of a trainer, over the attempts of its rounds."""

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._workers_left = dict[str, int]()  # by round that has lost some
        self.rounds_dir = settings.data_dir.absolute() / "rounds"
        self.cache_dir = settings.data_dir.absolute() / "cache"

    def note_workers(self, round_id: str, workers: int) -> None:
        """The round's next attempt has no more than these."""
        self._workers_left[round_id] = workers

    def forget(self, lease: Lease) -> None:
        """The round has ended."""
        self._workers_left.pop(lease.round.round_id, None)
        remove(self.work_dir(lease))
        _keep_newest(self.cache_dir / lease.round.plan.model, _KEPT_VERSIONS)

    def work_dir(self, lease: Lease, suffix: str = "") -> Path:
        """Below a folder of the model's, which is all that a process of its rounds may write to."""
        return self.rounds_dir / lease.round.plan.model / (lease.round.round_id + suffix)

    def remove_old(self) -> None:
        """Folders that earlier runs of this trainer have left."""
        _remove_old(self.rounds_dir)
        for name in ("rebuilds", "scored"):
            remove(self._settings.data_dir / name)

    def of(self, lease: Lease, *, suffix: str = "") -> RoundAssignment:
        work_dir = self.work_dir(lease, suffix)
        work_dir.mkdir(parents=True, exist_ok=True)
        self.cache_dir.mkdir(parents=True, exist_ok=True)
        configuration = lease.round.plan.configuration
        assignment = RoundAssignment(
            lease=lease,
            event_log=self._settings.log_of_rounds,
            work_dir=str(work_dir),
            cache_dir=str(self.cache_dir),
            intra_op_threads=int(configuration["intra_op_threads"]),
            inter_op_threads=int(configuration["inter_op_threads"]),
            resume_interval_seconds=self._settings.resume_interval_seconds,
            devices=self._settings.devices,
            device_reduction=self._settings.device_reduction,
            straggler_seconds=self._settings.straggler_seconds,
            compares_workers=self._settings.compare_workers,
            exchange=self._settings.exchange,
            readers=self._settings.readers,
            trial_seconds=self._settings.export_trial_seconds,
            trial_every=self._settings.export_trial_every,
            conversion_seconds=self._settings.export_conversion_seconds,
            max_parameters=self._settings.max_parameters,
            evaluator=self._settings.evaluator,
            may_stay=self._settings.warm_processes > 0,
        )
        left = self._workers_left.get(lease.round.round_id, self._settings.workers)
        workers = max(1, min(left, assignment.shards))
        return replace(assignment, workers=workers, processes=workers)


def _remove_old(rounds_dir: Path) -> None:
    """Of rounds that other trainers have finished; today's may still be taken up again."""
    if not rounds_dir.is_dir():
        return
    for work_dir in rounds_dir.glob("*/*"):
        if time.time() - work_dir.stat().st_mtime > _MAX_AGE_SECONDS:
            remove(work_dir)


def _keep_newest(model_dir: Path, count: int) -> None:
    if not model_dir.is_dir():
        return
    versions = sorted((path for path in model_dir.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    for path in versions[:-count]:
        remove(path)
