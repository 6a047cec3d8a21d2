"""A backup taken while versions are registered is a registry that works, whole and verified."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import Conflict, DataLoss, NotFound
from common.registry.catalog import RoundState
from common.registry.client import RegistryClient
from common.storage import place_of
from services.registry.backup import back_up, main, verify
from services.registry.tests.over_the_wire import finish, publish, register_all
from testing.registry_server import RegistryServer
from testing.waiting import wait_until


def _next_version(client: RegistryClient, directory: Path) -> int:
    """The one that is registered next. The copy may have caught a round that was planned, or leased to the writer."""
    (last, *_) = client.list_rounds("m", limit=1)
    if last.state == RoundState.RUNNING:
        return int(last.plan.sequence)
    if last.state == RoundState.PLANNED:
        return finish(client, directory).version
    return publish(client, directory).version


def test_a_backup_under_writes_is_restored_whole(
    registry: RegistryServer, connect: Callable[[], RegistryClient], tmp_path: Path
) -> None:
    client = connect()
    register_all(client)
    ending = threading.Event()
    written = [0]

    def write() -> None:
        writer = connect()
        while not ending.is_set():
            written[0] = publish(writer, tmp_path / "work").version

    thread = threading.Thread(target=write)
    thread.start()
    copies = []
    for number in range(3):
        before = written[0]
        wait_until(lambda before=before: written[0] > before + 2, "versions are registered")  # type: ignore[misc]  # mypy cannot infer a lambda's default
        copies.append(tmp_path / f"copy-{number}")
        back_up(registry.data_dir, copies[-1])
    ending.set()
    thread.join(30)
    for copy in copies:
        count, faults = verify(copy)
        assert (count > 0, faults) == (True, [])
    restored = RegistryServer(copies[-1])
    restored.start()
    try:
        again = RegistryClient(restored.address)
        versions = again.list_versions("m")
        assert 6 < len(versions) <= written[0]
        for version in (versions[0], versions[-1]):
            files = again.get_version("m", version.version).files
            again.download(files, tmp_path / f"restored-{version.version}")  # verifies each digest
        assert [v.version for v in versions] == list(range(1, len(versions) + 1))
        assert _next_version(again, tmp_path / "work-again") == len(versions) + 1, "it goes on from there"
        again.close()
    finally:
        restored.stop()


def test_a_damaged_or_missing_file_is_named(
    registry: RegistryServer, connect: Callable[[], RegistryClient], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = connect()
    register_all(client)
    publish(client, tmp_path / "work")
    back_up(registry.data_dir, tmp_path / "copy")
    first, second = sorted(path for path in (tmp_path / "copy" / "blobs").rglob("*") if path.is_file())
    first.write_bytes(b"other bytes")
    second.unlink()
    assert main([str(tmp_path / "copy"), "--verify"]) == 1
    printed = capsys.readouterr().out
    assert f"{first.name} is damaged" in printed
    assert f"{second.name} is missing" in printed
    with pytest.raises(DataLoss, match="not there"):
        back_up(tmp_path / "copy", tmp_path / "copy of the copy")


@pytest.mark.covers("fs-remote")
def test_a_backup_elsewhere_is_a_backup(
    registry: RegistryServer, connect: Callable[[], RegistryClient], tmp_path: Path
) -> None:
    client = connect()
    register_all(client)
    publish(client, tmp_path / "work")
    url = f"memory://{uuid.uuid4().hex}/copy"
    assert main([str(registry.data_dir), url]) == 0
    assert main([url, "--verify"]) == 0
    with place_of(url).as_local() as copy:
        assert verify(copy) == (back_up(copy, tmp_path / "again"), [])
    assert main([str(registry.data_dir), url]) == 1, "nothing is overwritten"
    (place_of(url) / "blobs").remove(with_content=True)
    assert main([url, "--verify"]) == 1


def test_it_refuses_what_would_do_harm(registry: RegistryServer, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no registry in"):
        back_up(tmp_path / "nothing", tmp_path / "copy")
    (tmp_path / "taken").mkdir()
    with pytest.raises(Conflict, match="exists"):
        back_up(registry.data_dir, tmp_path / "taken")
    command = [sys.executable, "-m", "services.registry.backup", str(registry.data_dir), str(tmp_path / "copy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"catalog and 0 files in {tmp_path / 'copy'}\n"
