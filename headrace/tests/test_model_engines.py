"""`headrace model engines`: ways of computing a version, measured, compared and one of them recommended."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.commands.model_engines import Measured, Variant, recommend, variants
from headrace.tests.answering_server import Run

pytestmark = pytest.mark.usefixtures("warm_python")
_WRITE_A_MODEL = """
import sys, tensorflow as tf
module = tf.Module()
module.call = tf.function(
    lambda word: {"y": tf.random.uniform(tf.shape(word))},
    input_signature=[tf.TensorSpec([None], tf.string, name="word")],
)
tf.saved_model.save(module, sys.argv[1], signatures=module.call)
"""


def _measured(**given: Measured) -> list[Measured]:
    """Of all variants on four processors: 1 ms at each size where nothing else is given."""
    listed = {one.name: one for one in variants(processors=4, is_onednn=False)}
    named = {name.replace(",", "").replace(" ", "_"): one for name, one in listed.items()}
    assert given.keys() <= named.keys()
    return [replace(given.get(name, _took(1.0, 1.0)), variant=one) for name, one in named.items()]


def _took(one_row: float, sixteen_rows: float, *, problem: str = "", failed: str = "") -> Measured:
    return Measured(Variant(""), {1: one_row, 16: sixteen_rows}, 0.0, problem, failed)


@pytest.mark.covers("perf-threads", "perf-xla")
def test_the_plainest_of_the_fastest_variants_that_answer_alike_is_recommended() -> None:
    name, said = recommend(_measured(litert=_took(0.95, 0.95)))
    assert name == "tensorflow, 1 thread"
    assert said.startswith("Leave it as it is")
    name, said = recommend(_measured(litert=_took(0.1, 0.4), onnxruntime=_took(0.01, 0.01, problem="y differs")))
    assert name == "litert"
    assert said.startswith("Use litert, 5.00 times as fast over these batch sizes as tensorflow, 1 thread: `serving: {")
    name, said = recommend(_measured(tensorflow_2_threads=_took(1.1, 0.2), tensorflow_4_threads=_took(1.08, 0.2)))
    assert name == "tensorflow, 2 threads", "four are hardly faster"
    assert "(slower at 1 row): SERVING_INTRA_OP_THREADS=2; a call then takes 2 processors." in said
    failed = replace(_took(0.0, 0.0, failed="not installed"), milliseconds={})
    _, said = recommend(_measured(tensorflow_XLA=_took(0.5, 0.5), litert=failed))
    assert "SERVING_ENABLE_XLA=true; each batch size is compiled when it first comes" in said


def test_the_first_variant_is_what_a_replica_uses_by_itself_and_the_others_say_what_turns_them_on() -> None:
    listed = variants(processors=1, is_onednn=True)
    settings = {one.name: one.settings for one in listed}
    assert [*settings][:2] == ["oneDNN, 1 thread", "tensorflow, 1 thread"], "one processor has no second thread"
    assert [one for one in settings if not settings[one]] == ["oneDNN, 1 thread"]
    assert settings["tensorflow, 1 thread"] == "TF_ENABLE_ONEDNN_OPTS=0"
    names = [one.name for one in variants(processors=8, is_onednn=False)]
    assert {"tensorflow, 2 threads", "oneDNN, 8 threads", "tensorflow, XLA", "onnxruntime", "litert"} <= {*names}


@pytest.mark.covers("perf-threads", "perf-bench-gpu")
@pytest.mark.timeout(300)
def test_variants_stand_in_a_table_and_one_that_cannot_run_or_differs_says_why(run: Run, tmp_path: Path) -> None:
    """Of a model that answers words with chance: the reference answers as itself, and every other variant differs."""
    model = str(tmp_path / "m")
    subprocess.run([sys.executable, "-c", _WRITE_A_MODEL, model], check=True, capture_output=True, timeout=200)
    options = ["--rows", "1", "--rows", "4", "--seconds", "0.05", "--only", "*, 1 thread", "--only", "litert"]
    result = run("model", "engines", model, *options)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    heads = {line.split("  ")[0].strip(): line.rstrip() for line in map(str.strip, lines)}
    assert "1 row" in heads["variant"]
    assert "4 rows" in heads["variant"]
    assert all(len(heads[name]) <= 80 for name in ("variant", "tensorflow, 1 thread", "oneDNN, 1 thread"))
    assert heads["tensorflow, 1 thread"].endswith(" 0.0e+00")
    assert not heads["oneDNN, 1 thread"].endswith(" 0.0e+00")
    assert "litert: cannot run: word holds strings, which stay with TensorFlow" in lines
    (differs,) = (line for line in lines if line.startswith("oneDNN, 1 thread: does not answer as TensorFlow does: "))
    assert "output y differs" in differs
    assert "made-up rows: it has no warm-up requests" in result.output
    assert lines[-1].startswith("Leave it as it is: ")
