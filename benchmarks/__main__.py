"""`python -m benchmarks [NAME ...]`: runs every benchmark of this folder, or those named, each in its own process."""

import subprocess
import sys
from pathlib import Path

_NOT_BENCHMARKS = {"__init__", "__main__", "freshness_models", "paired", "report", "readings"}
_ONLY_WHEN_NAMED = {"compose"}
"""Needs a container engine and the images."""
_TIMEOUT_SECONDS = 900


def names() -> list[str]:
    folder = Path(__file__).parent
    return sorted(path.stem for path in folder.glob("*.py") if path.stem not in _NOT_BENCHMARKS)


def main() -> int:
    wanted = sys.argv[1:] or sorted(set(names()) - _ONLY_WHEN_NAMED)
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted:
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], timeout=_TIMEOUT_SECONDS, check=False)
        if done.returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
