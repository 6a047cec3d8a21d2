"""What tests of shards begin with."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.trainer.tests.support.teams import Teams
from testing.warm_python import lean_command


@pytest.fixture(scope="package")
def teams(tmp_path_factory: pytest.TempPathFactory, warm_python_path: Path) -> Iterator[Teams]:
    """One process that has imported TensorFlow, for all teams."""
    process = subprocess.Popen(
        lean_command(warm_python_path, "services.trainer.tests.support.sharded_training"),
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield Teams(process, tmp_path_factory.mktemp("modules"))
    assert process.stdin
    process.stdin.close()
    process.wait(timeout=60)
