"""Names of a version's files, as paths on this machine."""

from pathlib import Path

from common.errors import InvalidInput


def path_below(directory: Path, name: str) -> Path:
    """directory/name. Raises InvalidInput when the name is not a relative path that stays below the directory."""
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(f"{name!r} is not a relative path with forward slashes")
    return directory.joinpath(*parts)
