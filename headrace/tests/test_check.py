"""`headrace check`: a definition tried with data and no platform, and the sentence and the step where it fails."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.cli import app
from headrace.files.definition_folder import read_folder
from headrace.local.check import doubts
from testing.rows import each_row

pytestmark = pytest.mark.usefixtures("warm_python")
_STREAM = """
stream: s
features: [{name: x, dtype: float32, min: 0, max: 100}, {name: word, dtype: string}]
labels: [{name: y, dtype: string, vocabulary: [cold, hot]}]
"""
_MODEL = """
name: m
stream: s
label: y
estimator: dnn_classifier
features: {x: {type: numeric}, word: {type: vocabulary, max_words: 4, oov: bucket}, v: {type: indicator, of: word}}
parameters: {hidden_units: [4]}
evaluation: {holdout_fraction: 0.2}
"""
_MODULE = """
name: m
stream: s
label: y
task: binary
module: model.py
"""
_BROKEN = """
def build_model(schema, parameters):
    print("noise on standard output")
    return parameters["no such parameter"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "stream.yaml").write_text(_STREAM)
    (tmp_path / "d" / "model.yaml").write_text(_MODEL)
    rows = [f"{n},{'ab'[n % 2]},{'cold' if n < 30 else 'hot'}" for n in range(60)]
    (tmp_path / "d.csv").write_text("\n".join(["x,word,y", *rows]))
    return tmp_path / "d"


def check(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["check", str(folder), "--data", str(folder.with_suffix(".csv")), *options])


def test_a_good_definition_passes_every_step(folder: Path) -> None:
    result = check(folder, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["ok"], told["events"], told["trained"] + told["held_out"], told["unusable"]) == (True, 60, 60, 0)
    assert [step["step"] for step in told["steps"]][-3:] == ["check the files", "load", "predict"]
    assert set(told["answers"][0]) == {"probability", "logits"}


@pytest.mark.covers("feat-identity-hash", "feat-vocab")
def test_the_features_of_one_row_are_those_of_training(folder: Path) -> None:
    features = """
  x: {type: numeric, log: true}
  part: {type: bucketized, of: x, boundaries: [10, 50]}
  tenth: {type: bucketized, of: x, quantiles: 10}
  hash: {type: hashed, of: word, bins: 1000}
  known: {type: vocabulary, of: word, words: [a, b], oov: error}
  pair: {type: crossed, of: [tenth, word], bins: 7}
  letters: {type: text, of: word, split: characters, words: [é, a], oov: drop}
  v: {type: indicator, of: known}
"""
    model = _MODEL.replace("features: {x", "features:" + features + "unused: {x")
    model = "\n".join(line for line in model.splitlines() if not line.startswith("unused"))
    (folder / "model.yaml").write_text(model)

    def features_of(row: str) -> Result:
        return CliRunner().invoke(app, ["features", str(folder), "--json", "--row", row])

    result = features_of('{"x": 50, "word": "Éb", "y": "hot"}')
    assert result.exit_code == 0, result.output
    found = {one["feature"]: one for one in json.loads(result.stdout)["features"]}
    assert found["x"]["values"] == pytest.approx([math.log1p(50)], rel=1e-6)
    assert found["part"]["ids"] == [2]
    assert found["hash"]["ids"] == [293]
    assert (found["known"]["ids"], "error" in found["known"]["refused"]) == ([-1], True)
    assert (found["letters"]["words"], found["letters"]["ids"]) == (["é", "b"], [0, -1])
    assert found["tenth"]["fitted"] == "the boundaries of 10 equal parts are fitted in the first round"
    assert found["pair"]["fitted"] == "tenth: fitted in the first round"
    assert found["v"]["ids_of"] == "known"
    refused = features_of('{"x": 500, "word": "a"}')
    assert (refused.exit_code, "the stream would refuse the row" in refused.stderr) == (3, True)


def test_what_a_module_raises_is_told_with_its_step(folder: Path) -> None:
    (folder / "model.yaml").write_text(_MODULE)
    (folder / "model.py").write_text(_BROKEN)
    result = check(folder)
    assert result.exit_code == 3
    assert "FAILED  " in result.stdout
    assert "it failed at `build the model, and take its first steps`" in result.stderr
    assert "no such parameter" in result.stderr
    assert "model.py" in result.stderr


@each_row(
    ("ending", "sentence"),
    [("os._exit(0)", "ended with status 0"), ("os.kill(os.getpid(), 9)", "was ended by SIGKILL")],
)
def test_a_process_that_ends_without_a_word_is_named_with_its_end_and_its_last_lines(
    folder: Path, ending: str, sentence: str
) -> None:
    (folder / "model.yaml").write_text(_MODULE)
    (folder / "model.py").write_text(
        f"import os\n\ndef build_model(schema, parameters):\n    print('here')\n    {ending}\n"
    )
    refused = check(folder)
    assert (refused.exit_code, f"the trainer's process {sentence} at `" in refused.stderr) == (3, True), refused.stderr
    assert "It printed last:\n" in refused.stderr


def test_events_that_would_be_refused_are_listed_before_anything_is_trained(folder: Path) -> None:
    with folder.with_suffix(".csv").open("a") as file:
        file.write("\n500,a,cold\n1,a,warm\n")
    result = check(folder)
    assert result.exit_code == 3
    assert "2 of the 62 events of d.csv are refused" in result.stderr
    assert "event 60: x is 500.0, expected at most 100" in result.stderr
    assert "expected one of cold, hot" in result.stderr


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("model.yaml", _MODEL.replace("estimator:", "estimatr:"), "estimator"),
        ("model.yaml", _MODEL + "module: model.py\n", "both estimator and module"),
        ("model.yaml", _MODEL.replace("stream: s", "stream: t"), "model.yaml is about stream t, stream.yaml about s"),
        ("stream.yaml", _STREAM.replace("cold, hot", "cold, hot, warm"), "has 3 classes in its vocabulary"),
    ],
)
def test_files_that_are_wrong_are_told_at_once(folder: Path, name: str, text: str, sentence: str) -> None:
    (folder / name).write_text(text)
    result = check(folder)
    assert (result.exit_code, sentence in result.stderr) == (3, True), result.stderr
    assert "FAILED  read stream.yaml and model.yaml" in result.stdout


def test_what_the_gate_would_mind_is_said(folder: Path) -> None:
    (folder / "model.yaml").write_text(_MODEL + "gate: {metric: auc}\n")
    _, definition = read_folder(folder).checked()
    done = {
        "trained": 80,
        "held_out": 10,
        "unusable": 10,
        "reasons": {"loss is nan": 10},
        "warnings": ["w"],
        "metrics": {},
        "undefined": {"auc": "all 10 held-out events have the label 1"},
    }
    told = "\n".join(doubts(definition, done | {"metrics": {"log_loss": 1.0}}))
    assert "10 events cannot be used by the model: 10: loss is nan\n10.0% of the events" in told
    assert "more than 1.0% is rejected" in told
    assert "w\nthe gate asks for auc, which is not defined: all 10 held-out events have the label 1" in told
    fine = done | {"unusable": 0, "warnings": [], "metrics": {"auc": 0.5}}
    assert not list(doubts(definition, fine))
    (folder / "model.yaml").write_text(_MODEL + "gate: {metric: auc, min_value: 0.7, max_value: 0.9}\n")
    _, bounded = read_folder(folder).checked()
    assert not list(doubts(bounded, fine | {"metrics": {"auc": 0.7}}))
    for value, bound in ((0.5, "below the least allowed, 0.7"), (0.95, "above the most allowed, 0.9")):
        (sentence,) = doubts(bounded, fine | {"metrics": {"auc": value}})
        assert sentence.startswith(f"the gate would reject this round: auc {value} is {bound}; ")
