"""What is told of a platform in containers, from what an engine answers: a script in docker's place."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from common.errors import Conflict, InvalidInput, NotFound, Unavailable
from headrace.cli import app
from headrace.compose.docker_cli import memory_bytes
from headrace.compose.platform import ComposeLauncher
from headrace.compose.state import state_of
from headrace.local.ports import PortsTaken, find_free_offset
from testing.rows import each_row

_ENGINE = """#!/bin/sh
# Answers from the files of a folder, and notes what it is asked.
echo "$*" >>{folder}/asked
case "$1" in
  ps) cat {folder}/ids ;;
  inspect) cat {folder}/inspect.json ;;
  stats) cat {folder}/stats ;;
  logs) echo "the last words" ;;
  cp) echo "hr_of-$2" >"$3" ;;
  compose) exit 0 ;;
  *) echo "unknown: $1" >&2; exit 1 ;;
esac
"""


def container(service: str, number: int = 1, *, ports: dict[int, int] | None = None, **state: Any) -> dict[str, Any]:
    """As `docker inspect` tells of a healthy one, but for `state`."""
    told = {"Pid": 100, "Running": True, "Paused": False, "Restarting": False, "ExitCode": 0,
            "StartedAt": "2026-11-21T06:23:41.123456789Z", "Health": {"Status": "healthy", "Log": []}}  # fmt: skip
    return {
        "Id": f"{service}{number}",
        "RestartCount": 2,
        "State": told | state,
        "Config": {
            "Labels": {"com.docker.compose.service": service, "com.docker.compose.container-number": str(number)}
        },
        "NetworkSettings": {
            "Ports": {f"{inner}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}] for inner, port in
                      (ports or {}).items()} | {"9999/tcp": None}
        },
        "Mounts": [{"Type": "volume", "Name": f"{service}-data"}],
    }  # fmt: skip


PROXY = container("proxy", ports={8501: 1, 8601: 2, 8701: 3, 8801: 4})


class Engine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = folder / "docker"
        script.write_text(_ENGINE.format(folder=folder))
        script.chmod(script.stat().st_mode | stat.S_IEXEC)

    def holds(self, *containers: dict[str, Any]) -> None:
        (self.folder / "ids").write_text("\n".join(item["Id"] for item in containers))
        (self.folder / "inspect.json").write_text(json.dumps(containers))

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    engine = Engine(tmp_path)
    engine.holds()
    return engine


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["--platform", "compose", *arguments])


def test_replicas_are_numbered_from_0_in_order_and_clients_ask_the_proxy(engine: Engine) -> None:
    engine.holds(
        container("serving", 12, ports={8501: 52}), container("serving", 2, ports={8501: 51}),
        container("trainer", 1), container("trainer", 2), PROXY,
    )  # fmt: skip
    state = state_of("p")
    assert list(state.ids) == ["proxy", "trainer", "trainer-1", "serving-0", "serving-1"]
    assert state.process("serving-1").http_port == 52
    assert state.addresses.predictions == "http://127.0.0.1:1"
    assert state.addresses.serving == ("http://127.0.0.1:51", "http://127.0.0.1:52")
    assert state.addresses.ingest == "http://127.0.0.1:2"
    assert "label=com.docker.compose.project=p" in engine.asked[0]


def test_with_tls_clients_ask_https_and_the_certificates_container_is_none_of_the_platforms(engine: Engine) -> None:
    proxy = container("proxy", ports={8501: 1, 8601: 2, 8701: 3, 8801: 4})
    proxy["Config"]["Env"] = ["PROXY_TLS=yes"]
    engine.holds(proxy, container("registry"), container("certificates", Running=False))
    state = state_of("p")
    assert state.addresses.predictions == "https://127.0.0.1:1"
    assert {process.name for process in state.processes} == {"proxy", "registry"}


@each_row(
    ("told", "phase", "note"),
    [
        ({}, "ready", ""),
        ({"Paused": True}, "not ready", "paused"),
        ({"Restarting": True, "ExitCode": 1}, "restarting", "ended with status 1"),
        ({"Running": False, "Pid": 0, "ExitCode": 137}, "stopped", "ended with status 137"),
        ({"Health": {"Status": "starting", "Log": []}}, "starting", ""),
        ({"Health": {"Status": "unhealthy", "Log": [{"ExitCode": 1, "Output": "503: queue\n"}]}}, "not ready",
         "503: queue"),
    ],
)  # fmt: skip
def test_a_container_is_in_one_of_our_phases(engine: Engine, told: dict[str, Any], phase: str, note: str) -> None:
    engine.holds(container("registry", **told))
    process = state_of("p").process("registry")
    assert (process.phase, process.note, process.restart_count) == (phase, note, 2)


def test_without_its_proxy_a_platform_has_no_doors(engine: Engine) -> None:
    engine.holds(container("registry"), container("proxy"))
    with pytest.raises(Unavailable, match="the proxy of compose project p does not run"):
        _ = state_of("p").addresses


def test_memory_is_read_in_every_unit(engine: Engine) -> None:
    lines = [("a", "69.1MiB / 512MiB"), ("b", "1.5GiB / 3GiB"), ("c", "0B / 0B"), ("d", "12kB / 1GB")]
    (engine.folder / "stats").write_text("\n".join(json.dumps({"ID": i, "MemUsage": used}) for i, used in lines))
    assert memory_bytes(["a", "b", "c", "d"]) == {"a": 72_456_602, "b": 1_610_612_736, "c": 0, "d": 12_000}


@pytest.mark.usefixtures("engine")
def test_a_project_that_is_not_there_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "nowhere")
    result = run("models")
    assert result.exit_code == 4
    assert "there is no compose project nowhere" in result.output


def test_an_engine_that_is_away_is_said_in_one_sentence(engine: Engine) -> None:
    (engine.folder / "docker").write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    result = run("status")
    assert result.exit_code == 7
    assert result.output == "error: the container engine cannot be used: Cannot connect to the Docker daemon\n"


def test_without_docker_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run("status")
    assert result.exit_code == 4
    assert "there is no `docker` on PATH" in result.output


def test_a_data_directory_is_refused_for_containers() -> None:
    result = CliRunner().invoke(app, ["--platform", "compose", "--data", "x", "status"])
    assert result.exit_code == 3
    assert "--data is for local platforms" in result.output


def test_status_and_logs_of_containers(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "p")
    engine.holds(container("registry", ports={8701: 33}), container("redis", Paused=True))
    (engine.folder / "stats").write_text(json.dumps({"ID": "registry1", "MemUsage": "10MiB / 512MiB"}))
    status = CliRunner().invoke(app, ["--platform", "compose", "--json", "status"])
    document = json.loads(status.output)
    assert (document["project"], document["is_ready"]) == ("p", False)
    assert document["memory_mb"] == {"redis": 0, "registry": 10}
    assert run("logs", "redis").output == "the last words\n"
    assert run("logs").output == "redis    | the last words\nregistry | the last words\n"
    assert "there is no container kafka" in run("logs", "kafka").output


@pytest.mark.usefixtures("engine")
def test_starting_needs_the_compose_file_and_a_project_that_does_not_run(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"there is no docker-compose\.yml"):
        ComposeLauncher(tmp_path).up()
    (tmp_path / "docker-compose.yml").touch()
    with pytest.raises(InvalidInput, match="1 to 16 serving replicas, not 17"):
        ComposeLauncher(tmp_path).up(replicas=17)
    engine.holds(container("registry"), PROXY)
    with pytest.raises(Conflict, match="compose project q runs already"):
        ComposeLauncher(tmp_path, project="q").up()


def _fails_to_start(engine: Engine, reason: str, *, times: int) -> None:
    """Its `compose up` fails that often, printing what docker-compose 1.29 prints of a container."""
    told = f"Creating q_proxy_1 ... error\n\nERROR: for q_proxy_1  Cannot start service proxy: {reason}"
    (engine.folder / "told").write_text(told)
    (engine.folder / "left").write_text("x" * times)
    script = (engine.folder / "docker").read_text()
    (engine.folder / "docker").write_text(script.replace("compose) exit 0", f"""compose)
    [ "$2" = up ] || exit 0
    echo "$PORT_SERVING_HTTP" >>{engine.folder}/ports
    [ -s {engine.folder}/left ] || exit 0
    sed -i s/x// {engine.folder}/left; cat {engine.folder}/told >&2; exit 1"""))  # fmt: skip


@pytest.mark.parametrize("reason", ["127.0.0.1:9: bind: address already in use", "Bind: port is already allocated"])
def test_ports_that_another_process_took_meanwhile_are_changed_for_others(
    engine: Engine, tmp_path: Path, reason: str
) -> None:
    (tmp_path / "docker-compose.yml").touch()
    _fails_to_start(engine, reason, times=2)
    ComposeLauncher(tmp_path, project="q").up(port_offset=None)
    ports = (engine.folder / "ports").read_text().split()
    assert len(ports) == len(set(ports)) == 3
    _fails_to_start(engine, reason, times=1)
    with pytest.raises(PortsTaken, match=reason):
        ComposeLauncher(tmp_path, project="q").up(port_offset=find_free_offset(1, also=(6006, 8404)))


def test_a_platform_in_containers_that_does_not_start_has_its_reason(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "docker-compose.yml").touch()
    _fails_to_start(engine, "no space left on device", times=1)
    with pytest.raises(Unavailable, match="Cannot start service proxy: no space left on device"):
        ComposeLauncher(tmp_path, project="q").up(port_offset=None)


@pytest.mark.usefixtures("engine")
def test_what_is_not_there_cannot_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        ComposeLauncher(tmp_path, project="q").down()


def test_containers_whose_data_goes_are_not_waited_for(engine: Engine, tmp_path: Path) -> None:
    engine.holds(container("registry"), PROXY)
    ComposeLauncher(tmp_path, project="q").down()
    ComposeLauncher(tmp_path, project="q", is_temporary=True).down()
    stops = [asked for asked in engine.asked if " down " in asked]
    assert [asked.partition(" down ")[2] for asked in stops] == ["--timeout 30", "--timeout 1 --volumes"]


def test_the_client_is_shown_the_operators_token_that_the_first_start_has_made(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.holds(PROXY, container("registry"), container("serving"), container("access", Running=False, Pid=0))
    launcher = ComposeLauncher(project="p")
    assert launcher.client().token == "hr_of-access1:/tokens/operator/token"
    assert launcher.client(token="mine").token == "mine"
    assert all(process.name != "access" for process in launcher.state().processes)
    monkeypatch.setenv("HEADRACE_TOKEN", "from-the-environment")
    assert launcher.client().token == "from-the-environment"
    monkeypatch.delenv("HEADRACE_TOKEN")
    engine.holds(PROXY, container("registry"), container("serving"))
    assert ComposeLauncher(project="p").client().token == "", "identity is off"
