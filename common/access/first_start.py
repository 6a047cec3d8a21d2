"""Makes the access file of a platform that has none, and a token for each of its services and for an operator:

    python -m common.access.first_start FILE TOKENS

FILE holds digests only. TOKENS/<principal>/token holds that principal's token, mode 0600, so that each service can be
given its own and no other. The operator's is printed, once. A crash leaves tokens without a file, which the next start
makes anew.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.access.tokens import digest_of, new_token
from common.whole_files import write_whole

OPERATOR = "operator"
ROLES: Mapping[str, str] = {
    OPERATOR: "operator", "registry": "service:registry", "ingest": "service:ingest", "trainer": "service:trainer",
    "serving": "service:serving", "tensorboard": "viewer", "prometheus": "viewer",
}  # fmt: skip
_GROUP_READS = {"prometheus"}
"""Its image runs as another user, who is in the services' group here."""


def make(access_file: Path, tokens: Path) -> str:
    """Makes what is not there yet; the operator's token, "" where there was a file already."""
    if access_file.exists():
        return ""
    made = {name: new_token() for name in ROLES}
    for name, token in made.items():
        _write(token_path(tokens, name), token + "\n", mode=0o640 if name in _GROUP_READS else 0o600)
    lines = "".join(lines_of(name, [ROLES[name]], digest_of(token)) for name, token in made.items())
    _write(access_file, f"principals:\n{lines}", mode=0o644)
    return made[OPERATOR]


def lines_of(name: str, roles: Sequence[str], digest: str) -> str:
    """A principal as the access file has it."""
    listed = ", ".join(map(json.dumps, roles))
    return f"  - name: {json.dumps(name)}\n    roles: [{listed}]\n    token_sha256: [{json.dumps(digest)}]\n"


def token_path(tokens: Path, name: str) -> Path:
    return tokens / name / "token"


def _write(path: Path, text: str, *, mode: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, text.encode(), mode=mode)


def main() -> int:
    access_file, tokens = map(Path, sys.argv[1:])
    token = make(access_file, tokens)
    if token:
        where = token_path(tokens, OPERATOR)
        print(f"the operator's token, which is not shown again ({where} keeps it):\n{token}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
