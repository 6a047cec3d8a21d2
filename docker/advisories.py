"""Known weaknesses of what images install, by a folder of advisories instead of a database on the network.

    python docker/advisories.py FOLDER PIP_AUDIT requirements/*.txt

The folder holds records of OSV (https://ossf.github.io/osv-schema/), a file each: JSON, as OSV's PyPI/all.zip has
them, or YAML, as in `vulns` of https://github.com/pypa/advisory-database; the newest record's day is printed.
pip-audit asks a server on loopback that answers from them as OSV's does. Exit status 1: there is a weakness; 2: the
folder has no advisory.
"""

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_ECOSYSTEM = "PyPI"
Advisory = dict[str, Any]
_READERS: Mapping[str, Callable[[bytes], Advisory]] = {
    ".json": json.loads,
    ".yaml": partial(yaml.load, Loader=yaml.CBaseLoader),
}
"""The loader takes a day for a text, as JSON has it."""


def read(folder: Path) -> dict[str, list[Advisory]]:
    """By package; those of other ecosystems and those that were withdrawn are left out."""
    found = defaultdict(list)
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _READERS):
        advisory: Advisory = _READERS[path.suffix](path.read_bytes())
        packages = [affected.get("package", {}) for affected in advisory.get("affected", ())]
        names = {canonicalize_name(one["name"]) for one in packages if one.get("ecosystem") == _ECOSYSTEM}
        for name in names if not advisory.get("withdrawn") else ():
            found[str(name)].append(advisory)
    return dict(found)


def known(advisories: Mapping[str, Sequence[Advisory]], package: str, version: str) -> list[Advisory]:
    """Those that affect this version of the package."""
    name = canonicalize_name(package)
    return [
        advisory
        for advisory in advisories.get(name, ())
        if any(
            _affects(affected, version)
            for affected in advisory["affected"]
            if canonicalize_name(affected.get("package", {}).get("name", "")) == name
        )
    ]


def _affects(affected: Mapping[str, Any], version: str) -> bool:
    """As the schema evaluates it: by its versions, and by its ranges."""
    if version in affected.get("versions", ()):
        return True
    ranges = [one["events"] for one in affected.get("ranges", ()) if one["type"] == "ECOSYSTEM"]
    return any(_is_in(events, Version(version)) for events in ranges)


def _is_in(events: Sequence[Mapping[str, str]], version: Version) -> bool:
    """A bound that is no version as PyPI has them counts for nothing; `versions` of such an advisory has all."""
    bounds = [(_version_of(bound), kind) for event in events for kind, bound in event.items()]
    is_in = False
    for at, kind in sorted((at, kind) for at, kind in bounds if at is not None):
        if kind == "introduced" and version >= at:
            is_in = True
        if (kind == "fixed" and version >= at) or (kind == "last_affected" and version > at):
            is_in = False
    return is_in


def _version_of(text: str) -> Version | None:
    """ "0" is before every version."""
    try:
        return Version("0.dev0" if text == "0" else text)
    except InvalidVersion:
        return None


def server_of(advisories: Mapping[str, Sequence[Advisory]]) -> ThreadingHTTPServer:
    """OSV's POST /v1/query (https://google.github.io/osv.dev/post-v1-query/) on a free port of loopback; starts it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps({"vulns": known(advisories, asked["package"]["name"], asked["version"])}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """pip-audit says what it has found."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(folder: str, pip_audit: str, *files: str) -> int:
    advisories = read(Path(folder))
    if not advisories:
        print(f"{folder} has no advisory of a package of PyPI in OSV's format", file=sys.stderr)
        return 2
    newest = max(str(advisory.get("modified", "")) for records in advisories.values() for advisory in records)
    print(f"advisories of {len(advisories)} packages from {folder}, the newest of {newest[:10] or 'no day'}")
    server, failed = server_of(advisories), 0
    asks = ["--vulnerability-service=osv", f"--osv-url=http://127.0.0.1:{server.server_port}/v1/query"]
    how = ["--strict", "--no-deps", "--disable-pip", "--progress-spinner=off", *asks]
    for file in files:
        print(file, flush=True)
        done = subprocess.run([pip_audit, *how, "--requirement", file], check=False, timeout=600)
        failed |= done.returncode != 0
    server.shutdown()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
