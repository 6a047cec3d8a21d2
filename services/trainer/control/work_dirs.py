"""The folders that rounds leave behind, and when they go."""

import shutil
import time
from pathlib import Path

_MAX_AGE_SECONDS = 24 * 3600.0


def remove_old(rounds_dir: Path) -> None:
    """Of rounds that other trainers have finished; today's may still be taken up again."""
    if not rounds_dir.is_dir():
        return
    for work_dir in rounds_dir.iterdir():
        if time.time() - work_dir.stat().st_mtime > _MAX_AGE_SECONDS:
            shutil.rmtree(work_dir, ignore_errors=True)


def keep_newest(model_dir: Path, count: int) -> None:
    if not model_dir.is_dir():
        return
    versions = sorted((path for path in model_dir.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    for path in versions[:-count]:
        shutil.rmtree(path, ignore_errors=True)
