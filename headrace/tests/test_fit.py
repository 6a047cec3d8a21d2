"""`headrace fit`: a bounded run over files, here of a format that an installed plugin reads."""

import json
import random
import re
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest
from typer.testing import CliRunner, Result

from common.errors import InvalidInput
from common.eventlog.tfrecord import frame
from common.examples.codec import ExampleCodec
from common.schema import Schema
from common.storage import place_of
from headrace.cli import app
from headrace.files import event_files
from headrace.files.batches import SourceFile, write_sample
from headrace.files.sources import Position, SourceRequest, open_source
from headrace.local.check import check_events
from testing.rows import each_row

pytestmark = pytest.mark.usefixtures("warm_python")
STREAM = """
stream: s
features: [{name: x, dtype: float32}, {name: word, dtype: string}]
labels: [{name: y, dtype: int64, min: 0, max: 1}]
"""
MODEL = """
name: m
stream: s
label: y
estimator: linear_classifier
features: {x: {type: numeric}, word: {type: hashed, bins: 8}}
training: {batch_size: 20, passes: 3}
evaluation: {holdout_fraction: 0.25}
"""


class FixedWidth:
    """Lines of 3 characters x, 1 of the word, 1 of the label; positions are byte offsets."""

    content_type = event_files.NDJSON
    closed: ClassVar[list[str]] = []

    def __init__(self, request: SourceRequest) -> None:
        self._file = request.place.open()
        self._file.seek(int(str(request.position or 0)))

    def next(self) -> Mapping[str, Any] | None:
        line = self._file.readline().decode()
        return {"x": line[:3], "word": line[3], "y": line[4]} if line else None

    @property
    def position(self) -> Position:
        return self._file.tell()

    byte_count = 0

    def close(self) -> None:
        self._file.close()
        self.closed.append(Path(self._file.name).name)


class Odd(FixedWidth):
    gives: Callable[[], Any] = staticmethod(lambda: None)

    def next(self) -> Any:
        return self.gives()


def broken(request: SourceRequest) -> FixedWidth:
    raise ZeroDivisionError(request.place.name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a definition, two files, and the plugin installed beside them."""
    (tmp_path / "stream.yaml").write_text(STREAM)
    (tmp_path / "model.yaml").write_text(MODEL)
    (tmp_path / "data").mkdir()
    for name, numbers in (("a", range(90)), ("b", range(90, 120))):
        lines = "".join(f"{n:3}{'pq'[n % 2]}{int(n > 60)}\n" for n in numbers)
        (tmp_path / "data" / f"{name}.fix").write_text(lines)
    installed = tmp_path / "site" / "fixed-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: fixed\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(
        f"[headrace.sources]\nfixed_width = {__name__}:FixedWidth\nbroken = {__name__}:broken\nnone = {__name__}:gone\n"
        f"odd = {__name__}:Odd\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path


def fit(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["--json", "fit", str(folder), *options])


@pytest.mark.covers("pipe-custom-source", "pipe-feed-modes", "fs-remote")
def test_a_plugins_files_are_trained_on_once_a_pass_and_the_run_ends_with_an_export(folder: Path) -> None:
    to = place_of(f"memory://{uuid.uuid4().hex}/out")
    to.parent.make_dirs()
    result = fit(folder, "--data", str(folder / "data"), "--format", "fixed_width", "--readers", "2", "--to", str(to))
    assert result.exit_code == 0, result.output
    assert {*FixedWidth.closed} == {"a.fix", "b.fix"}
    told = json.loads(result.stdout)
    assert (told["events"], told["trained"] + told["held_out"], told["unusable"]) == (120, 120, 0)
    assert told["steps"] == 3 * -(-told["trained"] // 20)
    assert (to / "saved_model" / "saved_model.pb").size() > 1000
    assert json.loads((to / "fit.json").read())["weights_digest"] == told["weights_digest"]
    again = fit(folder, "--data", str(folder / "data"), "--format", "fixed_width", "--to", str(to))
    assert again.exit_code == 5
    assert "is there already" in again.stderr


@pytest.mark.covers("pipe-custom-source")
def test_a_source_goes_on_where_it_was_left_and_is_named_in_its_faults(folder: Path) -> None:
    schema = Schema.from_mapping({"features": [{"name": "x", "dtype": "float32"}]})
    place = place_of(folder / "data" / "a.fix")
    first = open_source("fixed_width", SourceRequest(place, schema))
    for _ in range(30):
        first.next()
    rest = open_source("fixed_width", SourceRequest(place, schema, first.position))
    assert orjson.loads(rest.next() or b"")["x"] == 30.0
    for name, fault in (
        (
            "broken",
            r"source broken \(.*:broken\) cannot open .*a.fix: ZeroDivisionError: a.fix in line \d+ of .*test_fit.py",
        ),
        ("none", "source none .* cannot be imported"),
        (
            "other",
            (
                "there is no source 'other'; there are csv, ndjson, parquet, tfrecord, images, texts, broken, "
                "fixed_width, none, odd"
            ),
        ),
    ):
        with pytest.raises(InvalidInput, match=fault):
            open_source(name, SourceRequest(place, schema))


@each_row(
    ("gives", "fault"),
    [
        (lambda: "x,1", r"Odd\), /.*: next\(\) gave str, expected a mapping of names and values, or a line as bytes"),
        (lambda: sys.exit("done"), r"SystemExit: done in line \d+ of .*test_fit.py"),
        (lambda: 1 / 0, r"ZeroDivisionError: division by zero in line \d+ of .*test_fit.py"),
        (lambda: {"word": b"\xff"}, "an event that cannot be sent: word holds bytes that are not UTF-8"),
    ],
)
def test_what_a_source_gives_that_is_no_event_is_told_with_the_source(
    folder: Path, gives: Callable[[], Any], fault: str
) -> None:
    Odd.gives = staticmethod(gives)
    result = fit(folder, "--data", str(folder / "data"), "--format", "odd", "--to", str(folder / "out"))
    assert result.exit_code == 3, result.output
    assert re.search(fault, result.stderr), result.stderr


def test_events_that_are_refused_end_the_run_before_it_trains(folder: Path) -> None:
    (folder / "bad.csv").write_text("x,word,y\n1,a,0\n2,b,7\n")
    result = fit(folder, "--data", str(folder / "bad.csv"), "--to", str(folder / "out"))
    assert (result.exit_code, (folder / "out").exists()) == (3, False)
    assert "1 of the 2 events of bad.csv are refused" in result.stderr


def test_events_that_are_refused_are_left_out_where_the_command_asks_for_it(folder: Path) -> None:
    lines = [f"{n},{'pq'[n % 2]},{'' if n in (3, 50) else int(n > 60)}" for n in range(120)]
    (folder / "bad.csv").write_text("\n".join(["x,word,y", *lines, "many,p,1", ""]))
    result = fit(folder, "--data", str(folder / "bad.csv"), "--to", str(folder / "out"), "--on-invalid", "skip")
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert (done["events"], done["events_left_out"], done["trained"] + done["held_out"]) == (121, 3, 118)
    command = ["check", str(folder), "--data", str(folder / "bad.csv"), "--on-invalid"]
    shown = CliRunner().invoke(app, [*command, "skip"]).stdout
    assert "3 of 121 events are left out\n  event 3: y is missing\n  event 50: y is missing\n  event 120: x" in shown
    assert (
        "--on-invalid takes reject, skip, not 'deadletter'" in CliRunner().invoke(app, [*command, "deadletter"]).stderr
    )


@pytest.mark.covers("pipe-feed-modes")
def test_shards_of_examples_are_checked_as_ingest_checks_them(folder: Path) -> None:
    schema = Schema.from_mapping({"features": [{"name": "x", "dtype": "float32", "max": 5}]})
    examples = [ExampleCodec(replace_max(schema)).encode({"x": float(number)}) for number in range(8)]
    for name, part in (("a", examples[:3]), ("b", examples[3:])):
        (folder / f"{name}.tfrecord").write_bytes(frame(part))
    files = [SourceFile(place_of(folder / f"{name}.tfrecord"), "tfrecord") for name in "ab"]
    assert write_sample(files, schema, folder, most=None, readers=2) == 8
    checked = check_events(folder, schema.to_json())
    assert (checked.accepted, [index for index, _ in checked.refused]) == (6, [6, 7])
    mixed = [files[0], SourceFile(place_of(folder / "data" / "a.fix"), "fixed_width")]
    with pytest.raises(InvalidInput, match="the files before it application/x-tfrecord"):
        write_sample(mixed, schema, folder, most=None)


def replace_max(schema: Schema) -> Schema:
    """Without the bound, so that values past it can be written."""
    return replace(schema, features=tuple(replace(feature, maximum=None) for feature in schema.features))


@pytest.mark.covers("est-canned-nn")
def test_few_distinct_events_teach_what_they_say(tmp_path: Path) -> None:
    """Held out by their bytes, all copies of a word with one label were out, and the model learned the other label."""
    drawn = random.Random(1)
    rates = dict(zip("abcdefgh", (0.95, 0.05, 0.9, 0.1, 0.9, 0.1, 0.9, 0.1), strict=True))
    rows = [(word, int(drawn.random() < rates[word])) for word in (drawn.choice("abcdefgh") for _ in range(4000))]
    (tmp_path / "words.csv").write_text("word,y\n" + "".join(f"{word},{y}\n" for word, y in rows))
    (tmp_path / "stream.yaml").write_text(
        "stream: s\nfeatures: [{name: word, dtype: string}]\nlabels: [{name: y, dtype: int64, min: 0, max: 1}]\n"
    )
    (tmp_path / "model.yaml").write_text(
        "name: m\nstream: s\nlabel: y\nseed: 1\nestimator: linear_classifier\n"
        "features: {word: {type: vocabulary, words: [a, b, c, d, e, f, g, h], oov: drop}}\n"
        "training: {passes: 10, optimizer: {name: adam, learning_rate: 0.05}}\nevaluation: {holdout_fraction: 0.1}\n"
    )
    result = fit(tmp_path, "--data", str(tmp_path / "words.csv"), "--to", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert 300 < told["held_out"] < 500
    assert told["metrics"]["auc"] > 0.9
    assert told["warnings"] == []
