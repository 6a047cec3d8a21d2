"""The engine answers what TensorFlow's own call of a signature answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("warm_python")


@pytest.mark.covers("perf-graph-opt", "perf-threads")
def test_the_engine_agrees_with_tensorflow_on_every_kind_of_model(saved_models: Path) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "services.serving.tests.support.engine_comparison", str(saved_models)],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    differences = json.loads(done.stdout)
    assert len(differences) == 14
    assert {case: text for case, text in differences.items() if text} == {}
