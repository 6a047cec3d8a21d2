"""A definition tried on this machine without a platform: ingest's check of the events, then a real round.

Both run as processes: what a user's module does to its process stays there.
"""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.counted import counted
from common.definition.model import Definition
from common.errors import InvalidInput, Unavailable
from common.process.lean_imports import lean_command
from headrace.local.inspect import missing_package

_NOISE = ("WARNING: All log messages", "I0000 ", "To enable the following instructions")
"""What TensorFlow prints in every process."""
_LOG_LINES = 15


@dataclass(frozen=True)
class EventsChecked:
    """`refused` are (index from 0, reason) of the first that are refused."""

    accepted: int
    refused_count: int
    refused: tuple[tuple[int, str], ...]

    @property
    def events(self) -> int:
        return self.accepted + self.refused_count

    def refuse(self, sentence: str) -> None:
        """Raises InvalidInput with the refused events, where there are any."""
        if self.refused_count:
            raise InvalidInput(f"{self.refused_count:,} {sentence}", refused=self.refused)


@contextmanager
def work_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="headrace-check-") as name:
        yield Path(name)


def check_events(work_dir: Path, schema_json: str) -> EventsChecked:
    """Checks work_dir/events.ndjson or events.tfrecord as ingest does; examples.tfrecord gets what it accepts. Raises
    InvalidInput: what the check needs is not installed, or it ended without a word."""
    (work_dir / "schema.json").write_text(schema_json)
    events = "events.tfrecord" if (work_dir / "events.tfrecord").exists() else "events.ndjson"
    paths = [str(work_dir / name) for name in ("schema.json", events, "examples.tfrecord")]
    done = subprocess.run(
        [sys.executable, "-m", "services.ingest.codec.check_file", *paths], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise _ended("ingest", done.returncode, done.stderr)
    found = json.loads(done.stdout)
    refused = tuple((int(item["index"]), str(item["reason"])) for item in found["refused"])
    return EventsChecked(int(found["accepted"]), int(found["refused_count"]), refused)


def check_round(
    work_dir: Path,
    files: Mapping[str, bytes],
    *,
    on_step: Callable[[str], None],
    limit_seconds: float,
    whole: bool = False,
) -> Mapping[str, Any]:
    """Trains, evaluates, exports, loads and asks, with work_dir/examples.tfrecord.

    Args:
        whole: with all passes that the definition asks for.

    Returns:
        What services/trainer/rounds/check.py says under `done`.

    Raises:
        InvalidInput: the sentence, where it failed, and what it printed last.
        Unavailable: it was not done within limit_seconds.
    """
    _write_definition(work_dir, files)
    with (work_dir / "log.txt").open("w+b") as log:
        child = subprocess.Popen(
            lean_command("services.trainer.rounds.check", str(work_dir), *(["--whole"] if whole else [])),
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            last = _follow(child, on_step, limit_seconds)
        finally:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
        printed = (work_dir / "log.txt").read_text(errors="replace")
    if "done" in last:
        return dict(last["done"])
    if "failed" in last:
        raise InvalidInput(f"it failed at `{last['step']}`: {last['failed']}")
    raise _ended("trainer", child.returncode, printed, step=str(last.get("step", "start")))


def show_features(work_dir: Path, files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """What each feature makes of the only example of work_dir/examples.tfrecord.

    Returns:
        What services/trainer/features/show.py says under `features`.

    Raises:
        InvalidInput: the sentence, or what it printed last.
    """
    return list(_answer_of("services.trainer.features.show", work_dir, files)["features"])


def transformed(work_dir: Path, files: Mapping[str, bytes]) -> Mapping[str, Any]:
    """Statistics of what a version's features make of the events of work_dir/examples.tfrecord.

    Args:
        work_dir: with schema.json and the version's checkpoint/ as well.

    Returns:
        What services/trainer/summaries/transformed.py says.

    Raises:
        InvalidInput: the sentence, or what it printed last.
    """
    return _answer_of("services.trainer.summaries.transformed", work_dir, files)


def _answer_of(module: str, work_dir: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    _write_definition(work_dir, files)
    done = subprocess.run(lean_command(module, str(work_dir)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise _ended("trainer", done.returncode, done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    if "failed" in answer:
        raise InvalidInput(answer["failed"])
    return answer


def _write_definition(work_dir: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (work_dir / "definition" / path).parent.mkdir(parents=True, exist_ok=True)
        (work_dir / "definition" / path).write_bytes(content)


def _follow(child: "subprocess.Popen[bytes]", on_step: Callable[[str], None], limit_seconds: float) -> dict[str, Any]:
    """The child's last line; every step is reported on the way."""
    assert child.stdout is not None
    last: dict[str, Any] = {}
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        child.kill()

    timer = threading.Timer(limit_seconds, end)
    timer.start()
    try:
        for line in child.stdout:
            last = json.loads(line)
            if set(last) == {"step"}:
                on_step(str(last["step"]))
        child.wait()
    finally:
        timer.cancel()
    if is_late.is_set() and set(last) <= {"step"}:
        raise Unavailable(f"`{last.get('step', 'start')}` was not done within {limit_seconds:g} s; --limit allows more")
    return last


def _ended(service: str, status: int, printed: str, *, step: str = "") -> InvalidInput:
    if missing := missing_package(printed):
        return InvalidInput(
            f"a check runs the {service}'s code, and {missing} is not installed: pip install 'headrace[{service}]'"
        )
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    where = f" at `{step}`" if step else ""
    printed_lines = [line for line in printed.splitlines() if not line.startswith(_NOISE)]
    lines = "\n".join(f"  {line}" for line in printed_lines[-_LOG_LINES:]) or "  nothing"
    return InvalidInput(f"the {service}'s process {how}{where} without a word. It printed last:\n{lines}")


def doubts(definition: Definition, done: Mapping[str, Any]) -> Iterator[str]:
    """What a person should know of a round that passed: events that it could not use, and what its data lacks.

    `done` is what `check_round` returns.
    """
    unusable, evaluation = done["unusable"], definition.evaluation
    share = unusable / max(1, done["trained"] + done["held_out"] + unusable)
    if unusable:
        reasons = "; ".join(f"{count:,}: {reason}" for reason, count in done["reasons"].items())
        yield f"{counted(unusable, 'event')} cannot be used by the model: {reasons}"
    if share > evaluation.max_unusable:
        yield (
            f"{share:.1%} of the events cannot be used, and a version with more than {evaluation.max_unusable:.1%} is "
            f"rejected (evaluation.max_unusable in model.yaml)"
        )
    yield from done["warnings"]
    rules = [rule for rule in definition.gate.all_rules if not rule.slice]
    for metric in dict.fromkeys(rule.metric for rule in rules):
        if done["held_out"] and done["metrics"].get(metric) is None:
            why = done["undefined"].get(metric)
            yield (
                f"the gate asks for {metric}, which "
                f"{f'is not defined: {why}' if why else 'is not measured on the held-out events'}"
            )
    for rule in rules:
        value = done["metrics"].get(rule.metric)
        if value is not None and (broken := rule.broken_bound(value)):
            yield (
                f"the gate would reject this round: {rule.metric} {value:.4g} is {broken}; a round over more events "
                f"may come to another value"
            )
