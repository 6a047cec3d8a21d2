"""A password file is read without its line end, or refused in a sentence that names it and the service."""

from pathlib import Path

import pytest

from common.errors import Unavailable
from common.peers import password_in


def test_a_password_file_is_read_or_named(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("s3cret\n")
    assert password_in(tmp_path / "good", "Redis") == "s3cret"
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("binary", "none"):
        with pytest.raises(Unavailable, match=f"{name} of Redis cannot be read"):
            password_in(tmp_path / name, "Redis")
