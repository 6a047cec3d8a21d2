"""Has engines tried on a version, in short-lived processes, and keeps the results for the next runner.

    <engines_dir>/<model>/<digest>/<engine>/   result.json, a file per signature, conversion.log

The digest covers the version's files, the engine's packages, the options and the processor: a reload, or another
replica on the same disk, converts nothing again. A crash leaves a folder `<engine>.partial-<pid>` behind, which goes
with the digest's folder when that is among the oldest.
"""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from common.json_values import value_of
from common.process.lifecycle import die_with_parent
from common.whole_files import write_whole
from services.serving.engines.candidate import Candidate
from services.serving.engines.trial import SignatureTrial, try_engine
from services.serving.engines.warm_up import batch_sizes
from services.serving.options.model_options import ModelOptions
from services.serving.wire.prediction import RequestFailed

RESULT, LOG = "result.json", "conversion.log"
_FORMAT = 1
"""Of result.json; another format makes other digests."""
_KEPT_DIGESTS = 12
"""Conversions of a model that stay on disk: an engine makes one conversion of a version."""
_POLL_SECONDS = 0.02
_IRRELEVANT = {"engine": "", "conversion_timeout_seconds": 0.0}
"""Options that change nothing about a conversion."""


@dataclass(frozen=True)
class Conversion:
    """An engine's conversion of a version."""

    folder: Path
    signatures: Mapping[str, SignatureTrial] = field(default_factory=dict)
    problem: str = ""
    """Why there is nothing at all; empty when there is something."""


class Conversions:
    """Of a version. A context: without a place to keep them, the files are gone afterwards."""

    def __init__(self, model: str, directory: Path, options: ModelOptions, engines_dir: Path | None) -> None:
        self._directory, self._options = directory, options
        self._temporary = Path(tempfile.mkdtemp(prefix="headrace-engines-")) if engines_dir is None else None
        self._model_dir = (engines_dir or self._temporary or Path()) / quote(model, safe="")
        self._files_digest = _digest_of(directory)
        self._deadline = time.monotonic() + options.engine.conversion_timeout_seconds

    def __enter__(self) -> "Conversions":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def get(self, candidate: Candidate) -> Conversion:
        """Finds or makes the conversion; never raises for a failure of the conversion."""
        folder = self._model_dir / self._digest(candidate) / candidate.name
        kept = _read(folder)
        if kept is not None:
            with contextlib.suppress(OSError):
                os.utime(folder.parent)
            return kept
        partial = folder.with_name(f"{candidate.name}.partial-{os.getpid()}")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            problem = self._convert(candidate, partial)
            if not problem:
                with contextlib.suppress(OSError):  # Another replica was faster: its files are as good.
                    partial.rename(folder)
            self._remove_oldest()
        except OSError as error:
            return Conversion(folder, problem=f"its files cannot be written: {error}")
        made = None if problem else _read(folder)
        shutil.rmtree(partial, ignore_errors=True)
        return made or Conversion(folder, problem=problem or "the files it wrote cannot be read")

    def _convert(self, candidate: Candidate, partial: Path) -> str:
        """Runs the trial in a process of its own; returns the fault of the process."""
        parent_pid, policy = os.getpid(), os.sched_getscheduler(0)
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            die_with_parent(parent_pid)
            os._exit(_live_as_converter(candidate, self._directory, self._options, partial))
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return _ending(os.waitstatus_to_exitcode(status))
            if time.monotonic() > self._deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                limit = self._options.engine.conversion_timeout_seconds
                return f"the conversion did not end within {limit:g} s"
            if (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) != (policy, nice):
                _schedule_alike(pid)  # The runner was hurried; its conversion should be, too.
            time.sleep(_POLL_SECONDS)

    def _digest(self, candidate: Candidate) -> str:
        document = {
            "format": _FORMAT,
            "files": self._files_digest,
            "packages": candidate.versions(),
            "options": [asdict(self._options.engine) | _IRRELEVANT, batch_sizes(self._options.batching)],
            "processor": [platform.machine(), processor_name()],
        }
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]

    def _remove_oldest(self) -> None:
        digests = sorted(self._model_dir.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in digests[_KEPT_DIGESTS:]:
            shutil.rmtree(folder, ignore_errors=True)


def _live_as_converter(candidate: Candidate, directory: Path, options: ModelOptions, partial: Path) -> int:
    """The child: everything that is printed goes into the log, the outcome into the result."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log = os.open(partial / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        try:
            found = try_engine(candidate, directory, options, partial)
            result: dict[str, Any] = {"problem": "", "signatures": {name: asdict(done) for name, done in found.items()}}
        except RequestFailed as error:
            result = {"problem": error.message, "signatures": {}}
        write_whole(partial / RESULT, json.dumps(result).encode())
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()


def _read(folder: Path) -> Conversion | None:
    """None when there is nothing whole."""
    try:
        result = json.loads((folder / RESULT).read_bytes())
        signatures = {name: value_of(SignatureTrial, fields) for name, fields in result["signatures"].items()}
        for trial in signatures.values():
            if trial.file and _sha256(folder / trial.file) != trial.digest:
                shutil.rmtree(folder, ignore_errors=True)
                return None
        return Conversion(folder, signatures, result["problem"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _digest_of(directory: Path) -> str:
    """Of all files below the directory, with their paths."""
    digest = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(directory)}\0{_sha256(path)}\0".encode())
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _schedule_alike(pid: int) -> None:
    """Gives every thread of a child this process's own scheduling."""
    policy, nice = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            if os.sched_getscheduler(int(task.name)) != policy:
                os.sched_setscheduler(int(task.name), policy, os.sched_param(0))
            if os.getpriority(os.PRIO_PROCESS, int(task.name)) != nice:
                os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def _ending(status: int) -> str:
    if not status:
        return ""
    if status > 0:
        return "the conversion failed; its log has the reason"
    return f"the conversion ended with signal {-status} ({signal.Signals(-status).name})"
