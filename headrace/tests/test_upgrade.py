"""`headrace model upgrade`: a script of TensorFlow 1, rewritten, runs on TensorFlow 2, and its export is registered."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.errors import Conflict, InvalidInput
from headrace import Client
from headrace.cli import app
from headrace.tests.answering_server import at
from headrace.tests.test_load_model import registry  # noqa: F401  # a fixture
from testing.registry_process import RegistryProcess
from testing.rows import each_row

pytestmark = pytest.mark.usefixtures("warm_python")
_SCRIPT = """
import sys
import tensorflow as tf

with tf.Graph().as_default():
    x = tf.placeholder(tf.float32, [None, 1], name="x")
    w = tf.get_variable("w", [1, 1], initializer=tf.zeros_initializer())
    y = tf.log(tf.exp(tf.matmul(x, w)))
    loss = tf.reduce_mean(tf.square(y - 2.0 * x))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(50):
            session.run(train, {x: [[1.0], [2.0]]})
        print(session.run(y, {x: [[3.0]]})[0, 0])
        tf.saved_model.simple_save(session, sys.argv[1], {"x": x}, {"y": y})
"""
_CONTRIB = "import tensorflow as tf\nlayer = tf.contrib.layers.fully_connected(1, 2)\n"


@pytest.mark.covers("api-tf1-compat")
@pytest.mark.timeout(300)
def test_an_upgraded_script_runs_and_its_export_is_registered(
    registry: RegistryProcess,  # noqa: F811
    tmp_path: Path,
) -> None:
    script, new, exported = tmp_path / "old.py", tmp_path / "new", tmp_path / "exported"
    script.write_text(_SCRIPT)
    command = ["model", "upgrade", str(script), "--to", str(new)]
    result = CliRunner().invoke(app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["scripts"]["old.py"]
    assert any(said.startswith("8:8") and "tf.math.log" in said for said in told["changes"]), told
    assert any("headrace push --run" in said for said in told["warnings"])
    ran = subprocess.run(
        [sys.executable, str(new / "old.py"), str(exported)], capture_output=True, text=True, check=False, timeout=200
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) == pytest.approx(6.0, abs=0.05)
    with Client(at(registry.url, registry_grpc=registry.address), timeout_seconds=60.0) as client:
        assert client.push("m", exported, origin="here", reason="trial").status == "accepted"
    again = CliRunner().invoke(app, command)
    assert (again.exit_code, "is there already" in again.stderr) == (Conflict.exit, True)


@pytest.mark.covers("api-tf1-compat")
def test_what_the_converter_cannot_rewrite_refuses_all_scripts_and_writes_none(tmp_path: Path) -> None:
    for name, text in {"good.py": _SCRIPT, "contrib.py": _CONTRIB, "broken.py": "def (:\n"}.items():
        (tmp_path / name).write_text(text)
    scripts = [str(tmp_path / name) for name in ("good.py", "contrib.py", "broken.py")]
    result = CliRunner().invoke(app, ["model", "upgrade", *scripts, "--to", str(tmp_path / "new")])
    assert result.exit_code == InvalidInput.exit
    assert "contrib.py:2:8: " in result.stderr
    assert "tf.contrib" in result.stderr
    assert "broken.py:it is no Python" in result.stderr
    assert "good.py" not in result.stderr
    assert not (tmp_path / "new").exists()


@each_row(
    ("names", "sentence"),
    [(["a.txt"], "takes Python files"), (["gone.py"], "takes Python files"), (["a.py", "b/a.py"], "two of the scripts"),
     (["odd.py"], "is not UTF-8")],
)  # fmt: skip
def test_what_is_no_script_is_refused_before_anything_is_converted(
    tmp_path: Path, names: list[str], sentence: str
) -> None:
    (tmp_path / "b").mkdir()
    for name, content in {"a.txt": b"", "a.py": b"", "b/a.py": b"", "odd.py": b"\xff"}.items():
        (tmp_path / name).write_bytes(content)
    scripts = [str(tmp_path / name) for name in names]
    result = CliRunner().invoke(app, ["model", "upgrade", *scripts, "--to", str(tmp_path / "new")])
    assert (result.exit_code, sentence in result.stderr) == (InvalidInput.exit, True), result.output
