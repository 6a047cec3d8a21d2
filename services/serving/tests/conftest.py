"""SavedModels for the tests, written once per session by a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.serving.tests.runner_process import Zygote


@pytest.fixture(scope="session")
def saved_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models of services/serving/tests/saved_models.py."""
    directory = tmp_path_factory.mktemp("saved_models")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "services.serving.tests.saved_models", str(directory)],
        env=environment, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """One zygote for all tests that need runners; it takes seconds to import TensorFlow."""
    started = Zygote()
    yield started
    started.stop()
