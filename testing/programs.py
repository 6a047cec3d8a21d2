"""The programs beside Python that suites may find on PATH, in one place. `.ci/run` installs those of the table and runs
`make test` with a PATH that holds nothing else. Imports Python's own modules only.

    python testing/programs.py packages     the Debian packages of those that are missing, in a line
    python testing/programs.py npm          the npm packages of those that are missing, in a line
    python testing/programs.py path FOLDER  fills a folder with links to those that are there
    python testing/programs.py bare FOLDER  the same without those of the table: what every machine has
"""

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

_NPM = "npm:"
PROGRAMS = {
    "azurite-blob": "npm:azurite@3.37.0",  # Azure Blob Storage
    "chromium-headless-shell": "chromium-headless-shell",  # the dashboard in a browser
    "curl": "curl",  # the tutorial's request
    "initdb": "postgresql",  # the catalog in PostgreSQL
    "haproxy": "haproxy",  # the proxy of the platform in containers
    "g++": "g++",  # a library of operations for TensorFlow
    "ip": "iproute2",  # network namespaces as hosts
    "java": "openjdk-17-jre-headless",  # Kafka, HDFS
    "mvn": "maven",  # their jars
    "node": "nodejs",  # Azurite
    "npm": "npm",  # Azurite's package
    "postgres": "postgresql",
    "prometheus": "prometheus",  # the dashboards and rules of the profile `observe`
    "promtool": "prometheus",
    "redis-server": "redis-server",  # a newer Redis than the wheel of `make install` has
}
"""Each with its Debian package, or npm's. The tests of a program have the mark `needs`: where it is missing they are
skipped, and fail in CI (conftest.py). Redis comes with `make install`, too, and needs no mark."""

# fmt: off
_EVERYWHERE = (
    "as", "basename", "bash", "cat", "chmod", "cp", "cut", "date", "dirname", "echo", "env", "expand", "expr", "false",
    "find", "grep", "gzip", "head", "id", "ld", "ls", "make", "mkdir", "mktemp", "mount", "mv", "nproc", "ps",
    "readlink", "realpath", "rm", "sed", "sh", "sleep", "sort", "tail", "tar", "tee", "test", "touch", "tr", "true",
    "uname", "unshare", "wc", "xargs",
)
# fmt: on
"""What a machine with make and a shell has. The compiler's own two are nothing without g++."""


def where(name: str) -> str | None:
    """The program's path. Debian keeps PostgreSQL's servers away from PATH, in a folder for each release."""
    releases = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(releases[-1]) if releases else None)


def is_there(name: str) -> bool:
    return where(name) is not None


def packages(*, of_npm: bool = False) -> list[str]:
    missing = {package for name, package in PROGRAMS.items() if not is_there(name)}
    return sorted(package.removeprefix(_NPM) for package in missing if package.startswith(_NPM) == of_npm)


def link(names: Iterable[str], folder: Path) -> None:
    """Fills a new folder; names that are not there are left out."""
    folder.mkdir(parents=True)
    for name in names:
        if found := where(name):
            (folder / name).symlink_to(found)


if __name__ == "__main__":
    group, *folders = sys.argv[1:]
    if group in ("packages", "npm"):
        print(*packages(of_npm=group == "npm"))
    else:
        link([*_EVERYWHERE, *(PROGRAMS if group == "path" else ())], Path(folders[0]))
