"""What a version of a big table costs on its way to the registry, and to a replica that holds an older version.

`python -m benchmarks.patches [--rows 1000000] [--touched 10000] [--versions 6]`

A table of float32 [rows, 32] stands in for a version's variables; between two versions a number of rows, drawn anew,
change. A real registry over loopback gets each version beside its predecessor, as a trainer uploads it, and gives it
twice: whole, and to a client that holds its predecessor.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.report import Cell, publish
from common.registry.catalog import FileEntry
from common.registry.client import RegistryClient, manifest_of
from testing.registry_server import RegistryServer

_COLUMNS = 32
_LIMIT_BYTES = 3_000_000


def _write_versions(directory: Path, *, rows: int, touched: int, versions: int) -> None:
    random = np.random.default_rng(1)
    table = random.standard_normal((rows, _COLUMNS), np.float32)
    directory.mkdir()
    for number in range(versions):
        chosen = random.choice(rows, touched, replace=False)
        table[chosen] += random.standard_normal((touched, _COLUMNS), np.float32) * np.float32(0.01)
        (directory / f"version-{number + 1}").write_bytes(table.tobytes())


def _fetched(
    client: RegistryClient, file: FileEntry, to: Path, bases: Mapping[str, Path] | None = None
) -> tuple[int, float]:
    """(bytes that came, seconds)."""
    began = time.perf_counter()
    count = client.download([file], to, bases=bases or {})
    return count, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patches")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--touched", type=int, default=10_000)
    parser.add_argument("--versions", type=int, default=6)
    options = parser.parse_args()
    lines: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _write_versions(root / "from", rows=options.rows, touched=options.touched, versions=options.versions)
        server = RegistryServer(root / "registry")
        server.start()
        client = RegistryClient(server.address)
        try:
            files = manifest_of(root / "from")
            held: dict[str, Path] = {}
            for file in files:
                began = time.perf_counter()
                uploaded = client.upload(root / "from", [file], bases=held)
                upload_seconds = time.perf_counter() - began
                whole, whole_seconds = _fetched(client, file, root / "whole")
                patch, patch_seconds = _fetched(client, file, root / "patched", held)
                lines.append({
                    "version": file.path, "uploaded bytes": uploaded, "s": upload_seconds,
                    "fetched beside the one before": patch, "s ": patch_seconds,
                    "limit": _LIMIT_BYTES if held else None, "fetched whole": whole, "s  ": whole_seconds,
                })  # fmt: skip
                held = {file.digest: root / "patched" / file.path}
        finally:
            client.close()
            server.stop()
    publish(
        "patches",
        f"Moving a table of {options.rows:,} x {_COLUMNS} of which {options.touched:,} rows change per version",
        lines,
        notes=["The first version has none before it. The registry and the client run on the same machine."],
    )


if __name__ == "__main__":
    main()
