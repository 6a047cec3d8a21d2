"""Every command of `headrace`, on a platform with one model: it does its work or says in a sentence why not."""

import csv
import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from e2e_tests.conftest import MakePupil
from e2e_tests.driver import Platform
from e2e_tests.local_driver import LocalPlatform
from e2e_tests.points import PROBES, points
from headrace.cli import app
from headrace.client.harmless import harmless

pytestmark = [pytest.mark.slow, pytest.mark.local_only, pytest.mark.timeout(600, method="signal")]
_COLUMNS = 80
_MAY_FAIL = ("status",)
"""1: the platform is not well, no answer came; a busy machine may bring that about."""

DONE = """
status | ui --no-open | logs registry --lines 1 | models | streams
init {csv} --into {new} --label above | features {dir} --row {row} | apply {dir}
ingest {csv} --stream {stream} | versions {model} | show {model}@1 | show {model} | why {model} | account {model}
live {model}
rounds {model} | rounds | history {model} | dead-letters {stream} | dead-letters {stream} --replay | rebuild {model}@1
predict {model} {row} | predict {model} --file {csv}
model show {model} | model signatures {model} | model graph {model} | model ops {model}
model export {model} --to {new}/served
checkpoint show {model} | checkpoint export {model} --to {new}/export
records archive {stream} --to {new}/shards | records cat {new}/shards/{stream}-000-000000.tfrecord --limit 2
push {model} {made} --judge --reason theirs | diff {model}@1 {model}@2 | promote {model} 2 | rollback {model}
pause {model} | resume {model} | pin {model} | unpin {model} | archive {model} | unarchive {model}
triggers replay {model} --set min_examples=40 --since 7d
stats {stream} | stats {model}@1 | tensorboard {model} --inspect --logdir {new}/logs
whoami | token new ada --roles viewer | logout | certs {new}/tls
audit head | audit export {new}/audit.jsonl | audit verify {new}/audit.jsonl
keys new {new}/key.pem | keys show {new}/key.pem.pub
"""
REFUSED = """
up --detach | up --detach --replicas 2 | logs nobody | ingest {csv} --stream nobody | train nobody
train {model} --from 99:99999999 | versions nobody | rebuild {model}@99 | show nobody | show {model}@99
diff {model}@1 {model}@99 | why nobody | account nobody | rounds nobody | rounds fail {model} 99999
history nobody | dead-letters nobody | pause nobody | resume {model}
pin {model} 99 | unpin {model} | archive nobody | unarchive {model} | delete nobody --yes
delete --stream {stream} --yes | delete {model} | model export nobody --to {new}/served | stats nobodi
promote {model} 99 | rollback {model} | predict {model} '[1' | predict nobody {row} | predict {model} {{}}
forget {model} --offsets 4-2 | push {model} {dir} | init {dir}/model.yaml | check {new}/none --data {csv}
apply {csv} | features {dir} --row x | fit {dir} --data {dir} --to {new}/fit2
model show {model}@99 | model cost nobody | model graph {csv} | model ops nobody | model signatures nobody
checkpoint show nobody | checkpoint export {model}@99 --to {new}/x
records cat {csv} | records archive nobody --to {new}/none | predictions-log {model}
triggers replay nobody | triggers replay {model} --since x
stats nobody | trace nobody | trace {model}@99 | profile {model}
tensorboard nobody --inspect --logdir {new}/logs2 | model tflite {csv}
model optimize {model}@99 --to {new}/optimized | model tap nobody --tensor x
model upgrade {new}/none.py --to {new}/upgraded
labels {stream} {csv} | labels nobody {csv} | login | certs {csv} | token new ada --roles root
verify {model} --keys {new}/key.pem.pub | verify {model} --keys {csv} | keys show {csv} | audit verify {csv}
model freeze nobody --to {new}/frozen
search {dir} --data {csv} --space {csv} --metric auc --to {new}/found
"""
"""Those that stand here alone do their work in headrace/tests/ (check, cost, fit, search, profile, tflite, optimize,
tap, engines, upgrade); trace in test_looking.py, labels in headrace/tests/test_cli.py."""
TABLES = ("models", "streams", "versions", "rounds", "history", "dead-letters", "status", "account", "stats")
"""Their lines fit a terminal, also when they are piped."""


def _lines(block: str) -> list[str]:
    return [one.strip() for line in block.strip().splitlines() for one in line.split(" | ")]


def _run(data_dir: Path, words: list[str]) -> Result:
    """In this process: a start of Python for each would be most of the time. test_command_line.py starts them."""
    environment = {"COLUMNS": str(_COLUMNS), "NO_COLOR": "1", "XDG_CONFIG_HOME": str(data_dir / "config")}
    return CliRunner().invoke(app, ["--data", str(data_dir), *words], env=environment)


def _wrong(line: str, done: Result, statuses: range) -> str:
    """Empty where it is well."""
    if not isinstance(done.exception, SystemExit | None):
        return f"{line}: {done.exception!r}"
    may_fail = done.exit_code == 1 and line.split()[0] in _MAY_FAIL
    is_silent = not done.output.strip() and line.split()[0] != "tensorboard"  # a process of its own, with our output
    if (done.exit_code not in statuses and not may_fail) or "Traceback" in done.output or is_silent:
        return f"{line}: {done.exit_code}: {done.output[-600:]}"
    if done.output != harmless(done.output):
        return f"{line}: a terminal would obey {done.output!r}"
    sentences = ("not well: ", "error: ")
    wide = [text for text in done.output.splitlines() if len(text) > _COLUMNS and not text.startswith(sentences)]
    return f"{line}: {len(wide[0])} columns: {wide[0]}" if wide and line.split()[0] in TABLES else ""


def test_every_command_works_or_says_why_not(
    platform: Platform, make_pupil: MakePupil, tmp_path: Path, warm_python_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(platform, LocalPlatform)
    monkeypatch.setattr(sys, "executable", str(warm_python_path))  # of commands; the platform runs as it does
    with platform.client() as client:
        pupil = make_pupil(client, tmp_path / "dir", versions=1)
    (made,) = platform.data_dir.glob(f"**/versions/{pupil.model}/1")
    with (tmp_path / "points.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["a", "b", "above"])
        writer.writeheader()
        writer.writerows(points(300, seed=5))
    words = {
        "model": pupil.model, "stream": pupil.stream, "dir": str(tmp_path / "dir"), "csv": str(tmp_path / "points.csv"),
        "new": str(tmp_path / "new"), "made": str(made), "row": json.dumps(PROBES[0]),
        "serving": platform.addresses.serving[0],
    }  # fmt: skip
    wrong = []
    for block, statuses in ((DONE, range(1)), (REFUSED, range(2, 9))):
        for line in _lines(block):
            given = [word.format(**words) for word in line.split()]
            wrong.append(_wrong(line, _run(platform.data_dir, given), statuses))
    assert not any(wrong), "\n\n".join(filter(None, wrong))


def test_no_command_is_left_out() -> None:
    tried = {line.split(" ")[0] for line in _lines(DONE + REFUSED)}
    tried |= {" ".join(line.split(" ")[:2]) for line in _lines(DONE + REFUSED)}
    command = typer.main.get_command(app)
    commands = getattr(command, "commands", {})
    known = {
        " ".join(filter(None, (name, inner)))
        for name, one in commands.items()
        for inner in (getattr(one, "commands", None) or {"": one})
    }
    assert known - tried - {"down"} == set(), "a command without a line here; down is test_command_line.py's"
