"""The tokens of a platform's first start, and how a service shows its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.access.access import Access
from common.access.first_start import ROLES, make, token_path
from common.access.token_file import TokenFile
from common.errors import InvalidInput
from common.whole_files import write_whole
from testing.rows import each_row


def _run(folder: Path) -> str:
    command = [sys.executable, "-m", "common.access.first_start", str(folder / "access.yaml"), str(folder / "tokens")]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_first_start_makes_a_token_for_everybody_and_prints_the_operators_once(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        printed = _run(tmp_path)
    finally:
        os.umask(old)
    access = Access(tmp_path / "access.yaml")
    for name, role in ROLES.items():
        path = token_path(tmp_path / "tokens", name)
        principal = access.principal_of(f"Bearer {path.read_text().strip()}")
        assert (principal.name, [*principal.roles]) == (name, [role])
        assert path.stat().st_mode & 0o777 == (0o640 if name == "prometheus" else 0o600)
        assert path.read_text().strip() not in (tmp_path / "access.yaml").read_text()
        assert (path.read_text().strip() in printed) == (name == "operator")
    assert _run(tmp_path) == "", "the second start makes nothing"


def test_a_first_start_that_ended_early_is_begun_again(tmp_path: Path) -> None:
    token = make(tmp_path / "access.yaml", tmp_path)
    (tmp_path / "access.yaml").unlink()
    again = make(tmp_path / "access.yaml", tmp_path)
    assert token != again
    assert Access(tmp_path / "access.yaml").principal_of(f"Bearer {again}").name == "operator"


def test_two_writers_of_a_file_leave_the_whole_of_the_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []

    def fsync(descriptor: int) -> None:
        flushed.append(descriptor)
        if len(flushed) == 1:
            write_whole(tmp_path / "file", b"of the other writer", mode=0o644)

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(tmp_path / "file", b"ours", mode=0o640)
    assert (tmp_path / "file").read_bytes() == b"ours"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    write_whole(tmp_path / "file", b"again", flush=False)
    assert len(flushed) == 2


def test_a_token_that_was_replaced_in_its_file_is_shown_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    shown = TokenFile(path, look_seconds=0.0)
    assert shown.authorization() == "Bearer first"
    path.write_text("second\n")
    os.utime(path, ns=(1, 1))
    assert shown.authorization() == "Bearer second"
    path.write_text("")
    os.utime(path, ns=(2, 2))
    assert shown.authorization() == "Bearer second", "a file that is being written"
    path.unlink()
    assert shown.authorization() == "Bearer second"


@each_row("content", [b"", b"two words", b"\xff", b"a\nb"])
def test_a_file_without_a_token_stops_the_start(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(InvalidInput, match="token file"):
        TokenFile(tmp_path / "token")
