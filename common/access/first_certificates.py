"""Certificates for the platform in containers, from its own authority, made or renewed at each start:

    python -m common.access.first_certificates DIR [HOST]...

DIR/<name>/ holds what one container needs and no other sees: its certificate, its key, and ca.pem. HAProxy takes
certificate and key from one file. HOST is a further name or address of the machine, for clients of the proxy.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from common.access.authority import AUTHORITY, CERTIFICATE, KEY, LOCAL_HOSTS, issue_missing
from common.errors import HeadraceError
from common.whole_files import write_whole

PROXY, PAIR = "proxy", "pair.pem"
NAMES = ("registry", "ingest", "trainer", "serving", "tensorboard", PROXY)
_DAYS = 365
_MODE = 0o640
"""HAProxy's image runs as another user, who is in the services' group here."""


def make(directory: Path, hosts: Sequence[str]) -> list[str]:
    """The names of new certificates. Raises InvalidInput: files cannot be used or written."""
    issued = issue_missing(directory, NAMES, hosts=[*LOCAL_HOSTS, *hosts], days=_DAYS)
    for name in NAMES:
        write_whole(directory / name / AUTHORITY, (directory / AUTHORITY).read_bytes())
    proxy = directory / PROXY
    write_whole(proxy / PAIR, (proxy / CERTIFICATE).read_bytes() + (proxy / KEY).read_bytes(), mode=_MODE)
    return [folder.name for folder in issued]


def main() -> int:
    try:
        issued = make(Path(sys.argv[1]), [host for text in sys.argv[2:] for host in text.split()])
    except HeadraceError as error:
        print(error.message, file=sys.stderr)
        return 1
    print(f"new certificates: {', '.join(issued) or 'none'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
