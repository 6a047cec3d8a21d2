"""Stand-ins for the four services: real processes with real doors and signals, without what the services do."""

import functools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
import typer.testing

from headrace.local.launcher import Launcher
from headrace.places import PlatformState, ProcessState, write_state
from headrace.tests.answering_server import Run, Server, answering_server

_FAKE_SERVICE = textwrap.dedent(
    """
    import http.server, json, os, signal, subprocess, sys, threading

    name = __package__.rpartition(".")[2].upper()
    # A child of its own, as serving and the trainer have, which does not care for SIGTERM.
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 600"])

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = json.dumps({"conditions": {"registry": "ok"}, "child": child.pid}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ[f"{name}_HTTP_PORT"])), Handler)

    def stop(*_):
        print("stopping", file=sys.stderr, flush=True)
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    print("started", file=sys.stderr, flush=True)
    server.serve_forever()
    """
)


@pytest.fixture(scope="session", autouse=True)
def _one_tree_of_commands() -> Iterator[None]:
    """typer makes its commands anew for each call of a test, which is half of what a call takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(scope="module")
def fake_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Has `python -m services.X` start a stand-in; the folder that holds them. Who changes one puts it back."""
    folder = tmp_path_factory.mktemp("fakes")
    for name in ("registry", "ingest", "trainer", "serving"):
        (folder / "services" / name).mkdir(parents=True)
        (folder / "services" / name / "__init__.py").touch()
        (folder / "services" / name / "__main__.py").write_text(_FAKE_SERVICE)
    (folder / "services" / "__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{Path(__file__).parents[2]}")
        yield folder


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory, fake_services: Path) -> Iterator[Launcher]:
    """A running platform of stand-ins with one serving replica, on free ports; each test leaves it whole."""
    launcher = Launcher(tmp_path_factory.mktemp("platform") / "data")
    launcher.up(port_offset=None)
    launcher.wait_until_ready(timeout_seconds=60)
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def front_ports(warm_python_path: Path) -> Iterator[dict[str, int]]:
    """A real front of serving with a stand-in runner, in a process of its own; {"http": port, "grpc": port}."""
    process = subprocess.Popen(
        [str(warm_python_path), "-m", "services.serving.tests.support.front_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with answering_server() as server:
        yield server


@pytest.fixture(scope="session")
def supervisor_pid() -> Iterator[int]:
    """A process that looks like a supervisor and does nothing."""
    script = "print('here', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", script, "headrace.local.supervisor"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"here\n"
    yield holder.pid
    holder.communicate(b"\n", timeout=60)


@pytest.fixture
def platform_dir(server: Server, supervisor_pid: int, tmp_path: Path) -> Path:
    """The data folder of a platform all of whose doors are the test's server."""
    port = int(server.url.rpartition(":")[2])
    names = ("registry", "ingest", "trainer", "serving-0")
    processes = tuple(ProcessState(name, http_port=port, phase="ready") for name in names)
    write_state(PlatformState(supervisor_pid, str(tmp_path), 1.0, 0, processes))
    return tmp_path


@pytest.fixture
def run(server: Server, platform_dir: Path) -> Run:
    return Run(server, platform_dir)
