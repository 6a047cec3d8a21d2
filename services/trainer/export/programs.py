"""Programs that this trainer has exported: a later version of one takes its files and writes its state beside them.

    <directory>/<key>/files/          a version's files that are of the program, by their paths among the version's
    <directory>/<key>/object_graph    of variables/ (state.py)
    <directory>/<key>/program.json    the other facts of `Program`

Losing them loses time. A crash leaves a folder whose name ends in .part, which the next program removes.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.saved_model.graph import MODEL_FILE, read, tagged
from common.saved_model.program import is_state, program_digest
from common.whole_files import write_whole
from services.trainer.export import state

_MOST = 32
"""Of all models of a trainer; those that were used longest ago go first."""
_SAVED_MODEL = "saved_model/"


@dataclass(frozen=True)
class Program:
    """Attributes:
    digests: SHA-256 by path among a version's files.
    signatures: names of those in saved_model.pb.
    warnings: of the version that was tried last.
    is_confirmed: another version than the one that it was exported with was tried, and answered as its model.
    """

    folder: Path
    digests: Mapping[str, str]
    signatures: Sequence[str]
    warnings: Mapping[str, str]
    is_confirmed: bool = False

    @property
    def digest(self) -> str:
        """As common/saved_model/program.py has it."""
        return program_digest(
            {p.removeprefix(_SAVED_MODEL): digest for p, digest in self.digests.items() if p.startswith(_SAVED_MODEL)}
        )

    @property
    def object_graph(self) -> bytes:
        return (self.folder / "object_graph").read_bytes()

    def copy_to(self, output: Path) -> None:
        shutil.copytree(self.folder / "files", output, dirs_exist_ok=True)

    def confirm(self, warnings: Mapping[str, str]) -> None:
        """Another version has been tried, with these warnings."""
        _write(self.folder, _facts(self) | {"is_confirmed": True, "warnings": dict(warnings)})


class Programs:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, key: str) -> Program | None:
        """None where it is not there, or damaged: it is removed then."""
        folder = self._directory / key
        try:
            facts = json.loads((folder / "program.json").read_bytes())
            program = Program(folder, **facts)
            if _digests_of(folder / "files") == program.digests:
                os.utime(folder)
                return program
        except (OSError, ValueError, TypeError):
            pass
        self.drop(key)
        return None

    def keep(self, key: str, output: Path, warnings: Mapping[str, str]) -> Program:
        """Of a version's files those that belong to the program: all but the state, of what is there yet."""
        part = self._directory / f"{key}.{os.getpid()}.part"
        self._make_room()
        shutil.rmtree(part, ignore_errors=True)
        for path in _files_of(output):
            target = part / "files" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(output / path, target)
        saved_model = output / _SAVED_MODEL
        (part / "object_graph").write_bytes(state.object_graph_of(saved_model))
        signatures = sorted(tagged(read((saved_model / MODEL_FILE).read_bytes())).signature_def)
        program = Program(part, _digests_of(part / "files"), signatures, warnings)
        _write(part, _facts(program))
        self.drop(key)
        part.rename(self._directory / key)
        return replace(program, folder=self._directory / key)

    def drop(self, key: str) -> None:
        shutil.rmtree(self._directory / key, ignore_errors=True)

    def _make_room(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        folders = sorted(self._directory.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
        for folder in folders[_MOST - 1 :]:
            shutil.rmtree(folder, ignore_errors=True)


def _facts(program: Program) -> dict[str, Any]:
    return {name: fact for name, fact in asdict(program).items() if name != "folder"}


def _write(folder: Path, facts: Mapping[str, Any]) -> None:
    write_whole(folder / "program.json", json.dumps(facts, sort_keys=True).encode(), flush=False)


def _files_of(output: Path) -> list[str]:
    paths = [path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()]
    return sorted(path for path in paths if not is_state(path.removeprefix(_SAVED_MODEL)))


def _digests_of(folder: Path) -> dict[str, str]:
    return {path: hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in _files_of(folder)}
