"""The launcher and its supervisor, with stand-ins for the services, a real redis-server and real signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from common.errors import Conflict, InvalidInput, NotFound, Unavailable
from headrace.local import launcher as launching
from headrace.local.launcher import Launcher, remove_data
from headrace.local.ports import find_free_offset
from headrace.places import HTTP_PORT_OF, read_state
from testing.waiting import wait_until


def _pids_of(launcher: Launcher) -> list[int]:
    """Every process of the platform, the services' own children too."""
    supervisor = psutil.Process(launcher.state().supervisor_pid)
    return [supervisor.pid, *(child.pid for child in supervisor.children(recursive=True))]


def _all_gone(pids: list[int]) -> bool:
    def runs(pid: int) -> bool:
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    return not any(runs(pid) for pid in pids)


def test_up_starts_redis_and_the_four_services_and_says_where_they_are(launcher: Launcher) -> None:
    state = launcher.state()
    assert [process.name for process in state.processes] == ["redis", "registry", "ingest", "trainer", "serving-0"]
    assert state.is_ready
    assert all(process.ready_after_seconds > 0 for process in state.processes)
    for folder in (launcher.data_dir, launcher.data_dir / "logs", launcher.data_dir / "redis"):
        assert folder.stat().st_mode & 0o777 == 0o700, "what people sent is nobody else's to read"
    with urllib.request.urlopen(f"{state.addresses.ingest}/readyz", timeout=60) as answer:
        assert answer.status == 200
    document = json.loads((launcher.data_dir / "platform.json").read_text())  # other programs read it
    assert {"supervisor_pid", "data_dir", "started_at", "port_offset", "processes", "ca_file"} == set(document)
    assert {"name", "pid", "http_port", "grpc_port", "phase"} <= set(document["processes"][0])


def test_a_second_start_on_the_same_data_directory_is_refused_and_names_the_holder(launcher: Launcher) -> None:
    holder = launcher.state().supervisor_pid
    with pytest.raises(Conflict, match=f"runs on .* already .process {holder}."):
        Launcher(launcher.data_dir).up(port_offset=None)
    assert launcher.state().supervisor_pid == holder
    with pytest.raises(Conflict):
        remove_data(launcher.data_dir)


def test_one_service_is_stopped_and_started_by_name(launcher: Launcher) -> None:
    launcher.stop("trainer")
    assert launcher.state().process("trainer").phase == "stopped"
    launcher.wait_until_ready(timeout_seconds=60)
    launcher.start("trainer")
    assert launcher.wait_until_ready(timeout_seconds=60).process("trainer").phase == "ready"
    with pytest.raises(InvalidInput, match="no process 'trainr'; there are redis, registry"):
        launcher.stop("trainr")


def test_a_killed_service_is_started_again_and_its_children_are_gone(launcher: Launcher) -> None:
    before = launcher.state().process("trainer")
    child = psutil.Process(before.pid).children()[0].pid
    launcher.kill("trainer")
    state = launcher.wait_until_ready(timeout_seconds=60)
    after = state.process("trainer")
    assert after.pid not in (0, before.pid)
    assert after.restart_count == 1
    wait_until(lambda: _all_gone([before.pid, child]), "both are gone")
    assert state.process("registry").restart_count == 0


def test_serving_is_scaled_up_and_down(launcher: Launcher) -> None:
    launcher.scale(3)
    state = launcher.wait_until_ready(timeout_seconds=60)
    assert len(set(state.addresses.serving)) == 3
    surplus = [state.process(name).pid for name in ("serving-1", "serving-2")]
    launcher.scale(1)
    assert [process.name for process in launcher.state().processes][-1] == "serving-0"
    wait_until(lambda: _all_gone(surplus), "both are gone")


def test_a_disk_that_takes_no_more_does_not_end_the_platform(launcher: Launcher) -> None:
    """Neither the state nor a log can be written, as on a full disk, when a child dies."""
    before = launcher.state()
    supervisor = psutil.Process(before.supervisor_pid)
    obstacle = launcher.data_dir / "platform.json"
    obstacle.unlink()
    obstacle.mkdir()
    log = launcher.data_dir / "logs" / "registry.log"
    log.unlink()
    log.mkdir()
    os.kill(before.process("registry").pid, signal.SIGKILL)

    def runs_again() -> bool:
        known = {process.pid for process in before.processes}
        return any(child.pid not in known for child in supervisor.children())

    wait_until(runs_again, "the registry is started again")
    (launcher.data_dir / "desired.json").write_text("{")
    obstacle.rmdir()
    wait_until(obstacle.is_file, "the state is written again")
    assert launcher.state().process("registry").restart_count == before.process("registry").restart_count + 1
    wait_until(lambda: launcher.state().is_ready, "the platform is ready again")
    assert launcher.state().supervisor_pid == supervisor.pid
    log.rmdir()
    said = (launcher.data_dir / "logs" / "supervisor.log").read_text()
    assert said.count("platform.json cannot be written, and is tried again") == 1


def test_a_service_that_keeps_dying_is_started_with_growing_pauses(launcher: Launcher, fake_services: Path) -> None:
    main = fake_services / "services" / "ingest" / "__main__.py"
    works = main.read_text()
    main.write_text("print('said before\\ningest: no such setting')\nraise SystemExit(2)")
    launcher.kill("ingest")
    wait_until(lambda: launcher.state().process("ingest").restart_count >= 3, "ingest is started three times")
    assert launcher.state().process("ingest").note == "ended with status 2: ingest: no such setting"
    assert launcher.state().process("serving-0").phase == "ready"
    main.write_text(works)
    assert launcher.wait_until_ready(timeout_seconds=60).is_ready


def test_nothing_outlives_a_supervisor_that_is_killed(launcher: Launcher) -> None:
    state = launcher.state()
    pids = _pids_of(launcher)
    os.kill(state.supervisor_pid, signal.SIGKILL)
    services = [process.pid for process in state.processes]
    wait_until(lambda: _all_gone(services), "the services end with their supervisor")
    # The stand-ins' own children do not end with their parents, as the services' do.
    for pid in set(pids) - set(services) - {state.supervisor_pid}:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(NotFound, match="ended without cleaning up"):
        read_state(launcher.data_dir)
    launcher.up(port_offset=None)
    assert launcher.wait_until_ready(timeout_seconds=60).is_ready


def test_down_stops_everything_in_order_and_leaves_no_process(launcher: Launcher) -> None:
    pids = _pids_of(launcher)
    assert len(pids) == 10
    launcher.down()
    wait_until(lambda: _all_gone(pids), "what was killed is gone")
    logs = [(launcher.data_dir / "logs" / f"{name}.log") for name in ("serving-0", "trainer", "registry", "redis")]
    assert all("stopping" in log.read_text() for log in logs[:3])
    stopped_at = [log.stat().st_mtime_ns for log in logs]
    assert stopped_at == sorted(stopped_at)
    with pytest.raises(NotFound, match="no platform runs"):
        launcher.state()


def test_a_taken_port_is_refused_and_its_holder_is_named(tmp_path: Path, fake_services: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        offset = taken.getsockname()[1] - HTTP_PORT_OF["trainer"]
        launcher = Launcher(tmp_path / "data")
        with pytest.raises(Conflict, match=rf"trainer.* is held by process {os.getpid()}.*--port-offset"):
            launcher.up(port_offset=offset)
        with pytest.raises(NotFound):
            launcher.state()


def test_ports_that_somebody_took_after_they_were_found_free_are_changed_for_others(
    tmp_path: Path, fake_services: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        lost = taken.getsockname()[1] - HTTP_PORT_OF["trainer"]
        found = iter([lost])
        monkeypatch.setattr(
            launching, "find_free_offset", lambda *counts: next(found, None) or find_free_offset(*counts)
        )
        launcher = Launcher(tmp_path / "data")
        launcher.up(port_offset=None)
        assert launcher.state().port_offset != lost
        launcher.close()


def test_the_number_of_replicas_is_bounded(tmp_path: Path, fake_services: Path) -> None:
    with pytest.raises(InvalidInput, match="1 to 9 serving replicas, not 10"):
        Launcher(tmp_path / "data").up(replicas=10, port_offset=None)


def test_the_end_of_a_start_that_does_not_get_further(tmp_path: Path, fake_services: Path) -> None:
    """And one that computes for longer than that goes on until it is ready."""
    main = fake_services / "services" / "trainer" / "__main__.py"
    works = main.read_text()
    main.write_text("import threading\nthreading.Event().wait()")
    launcher = Launcher(tmp_path / "stands")
    launcher.up(port_offset=None)
    with pytest.raises(Unavailable, match="nothing has moved for 1 s: trainer is starting \\(does not answer\\)"):
        launcher.wait_until_ready(timeout_seconds=1)
    launcher.down()
    main.write_text(f"import time\nwhile time.process_time() < 1.2: pass\n{works}")
    launcher = Launcher(tmp_path / "computes")
    launcher.up(port_offset=None)
    assert launcher.wait_until_ready(timeout_seconds=1).is_ready
    launcher.close()
    main.write_text(works)


def test_a_platform_in_the_foreground_ends_with_the_process_that_started_it(
    tmp_path: Path, fake_services: Path
) -> None:
    script = (
        "import sys, time; from headrace.local.launcher import Launcher; l = Launcher(sys.argv[1]);"
        "l.up(port_offset=None);"
        "l.wait_until_ready(timeout_seconds=60); print('ready', flush=True); time.sleep(600)"
    )
    data_dir = tmp_path / "data"
    with subprocess.Popen([sys.executable, "-c", script, str(data_dir)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"ready\n"
        pids = _pids_of(Launcher(data_dir))
        starter.kill()
    wait_until(lambda: _all_gone(pids), "the platform ends with the process that started it")
    assert not (data_dir / "platform.json").exists()
