"""The commands of docs/tutorial.md, run out of the page, so that it cannot rot.

A block with a `title` is a file. The lines of a `sh` block are run in a folder of their own. A comment `until: PATTERN`
after a block says what the last command of it, which watches, must print before it is interrupted.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r'^```(?:python title="(?P<file>[^"]+)"|(?P<sh>sh))\n(?P<text>.*?)^```\n(?:<!-- until: (?P<until>.*?) -->)?',
    re.M | re.S,
)
_INTERRUPTED = 130
_COMMAND_SECONDS, _WATCH_SECONDS = 120, 180


@dataclass(frozen=True)
class Command:
    line: str
    until: str = ""


def blocks() -> Iterator[tuple[str, str] | Command]:
    """Files (name, text) and commands, in the page's order."""
    for block in _BLOCK.finditer((_ROOT / "docs/tutorial.md").read_text()):
        if block["file"]:
            yield block["file"], block["text"]
            continue
        *lines, last = block["text"].replace("\\\n", " ").strip().split("\n")
        yield from (Command(line) for line in lines)
        yield Command(last, block["until"] or "")


def run(command: Command, folder: Path, environment: dict[str, str]) -> str:
    if command.until:
        return watch(command, folder, environment)
    done = subprocess.run(
        command.line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=_COMMAND_SECONDS
    )
    assert done.returncode == 0, f"{command.line}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def closing_timer(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kills the process when it takes too long; whoever reads from it then sees its end."""
    timer = threading.Timer(_WATCH_SECONDS, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def watch(command: Command, folder: Path, environment: dict[str, str]) -> str:
    """Reads the command's lines until one matches, then interrupts it as Ctrl-C does."""
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(
            shlex.split(command.line),
            cwd=folder,
            env=environment,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_hear_ctrl_c,
        ) as process,
        closing_timer(process),
    ):
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if re.search(command.until, line):
                process.send_signal(signal.SIGINT)
                break
        else:
            pytest.fail(f"{command.line} never printed {command.until!r}:\n{''.join(said)}")
    assert process.returncode == _INTERRUPTED
    return "".join(said)


def _hear_ctrl_c() -> None:
    """A shell starts what runs in its background deaf to Ctrl-C, and every child inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


_HEADRACE = """#!/bin/sh
exec {python} -m headrace "$@"
"""


@pytest.fixture
def environment(tmp_path: Path, warm_python_path: Path) -> Iterator[dict[str, str]]:
    """A shell with our virtual environment, whose `headrace` starts processes by forks, as other tests do; and a
    platform on ports of its own that is gone afterwards."""
    (programs := tmp_path / "bin").mkdir()
    (programs / "headrace").write_text(_HEADRACE.format(python=warm_python_path))
    (programs / "headrace").chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.prefix) / "bin"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "HEADRACE_DATA": str(tmp_path / "data"), "PYTHONPATH": str(_ROOT)}
    yield environment
    subprocess.run(["headrace", "down"], env=environment, cwd=tmp_path, capture_output=True, timeout=_COMMAND_SECONDS)


@pytest.mark.local_only
@pytest.mark.covers("pipe-feed-modes")
@pytest.mark.timeout(600)
@pytest.mark.needs("curl")
def test_every_command_of_the_tutorial_does_what_the_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    port_offset = 9000 + os.getpid() % 10_000
    said: dict[str, str] = {}
    for block in blocks():
        if isinstance(block, tuple):
            (tmp_path / block[0]).write_text(block[1])
            continue
        line = block.line.replace("up --detach", f"up --detach --port-offset {port_offset}")
        line = line.replace(":8501", f":{8501 + port_offset}")
        if line == "headrace down":
            asked = ("show late@1", "fit deliveries --data monday.csv --to monday")
            said |= {words: run(Command(f"headrace --json {words}"), tmp_path, environment) for words in asked}
        said[block.line] = run(Command(line, block.until), tmp_path, environment)
    assert '"probability":0.9' in next(text for line, text in said.items() if line.startswith("headrace predict late"))
    assert '"predictions"' in next(text for line, text in said.items() if line.startswith("curl"))
    assert "12,000" in said["headrace account late"]
    assert re.search(r"^ *1 .*production", said["headrace versions late"], re.M)
    digests = {json.loads(text)["weights_digest"] for line, text in said.items() if line.startswith(("show", "fit"))}
    assert len(digests) == 1, "fit trains the round of a platform over the same events"
