"""A real HDFS for tests: a name node and a data node of Hadoop's own test cluster, on loopback."""

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from common.process.lifecycle import die_with_parent
from testing import plain_http
from testing.jars import JAVA, jars_or_skip
from testing.processes import free_port
from testing.waiting import wait_until

_POM = Path(__file__).parent / "pom.xml"
_START_TIMEOUT_SECONDS = 240


@pytest.fixture(scope="session")
def hdfs_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One a worker: its start takes 10 s of a core."""
    libraries, folder, port = jars_or_skip(_POM), tmp_path_factory.mktemp("hdfs"), free_port()
    log_path = tmp_path_factory.mktemp("hdfs_log") / "log"
    command = [*JAVA, "-cp", f"{libraries}/*", "org.apache.hadoop.test.MiniDFSClusterManager", "-format"]
    command += ["-httpport", str(port), "-D", f"hdfs.minidfs.basedir={folder}", "-D", "dfs.permissions.enabled=false"]
    # Hadoop calls the system's own programs, such as bash and chmod.
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/bin:/bin"}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )  # fmt: skip

    def is_up() -> bool:
        """It names a data node, which so is there; nothing is written."""
        assert process.poll() is None, log_path.read_text(errors="replace")[-1000:]
        try:
            return plain_http.put(f"http://127.0.0.1:{port}/webhdfs/v1/probe?op=CREATE").is_redirect
        except httpx.TransportError:
            return False

    try:
        wait_until(is_up, "HDFS answers", seconds=_START_TIMEOUT_SECONDS)
        yield f"webhdfs://127.0.0.1:{port}"
    finally:
        process.kill()  # nothing in the folder is wanted any more
        process.wait(timeout=60)
