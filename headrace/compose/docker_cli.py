"""The container engine of this machine, asked through its own command line: no package is needed for it."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from common.errors import NotFound, Unavailable
from headrace.local.ports import PortsTaken

_TIMEOUT_SECONDS = 30.0
_COMPOSE_TIMEOUT_SECONDS = 300.0
_PORT_TAKEN = ("address already in use", "port is already allocated")
_BYTES_OF_UNIT = {
    "B": 1, "kB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip


def run_docker(*arguments: str) -> str:
    """What `docker ARGUMENTS` printed.

    Raises:
        NotFound: there is no docker on PATH. Unavailable: no engine answers, or it refused; says why.
    """
    try:
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise NotFound("there is no `docker` on PATH; install a container engine, or use --platform local") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the container engine did not answer within {_TIMEOUT_SECONDS:.0f} s") from error
    if done.returncode:
        raise Unavailable(f"the container engine cannot be used: {_reason(done.stderr)}")
    return done.stdout


def containers(label: str) -> list[Mapping[str, Any]]:
    """What the engine knows of every container with the label, stopped or not, as `docker inspect` has it."""
    ids = run_docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}").split()
    try:
        found = json.loads(run_docker("inspect", "--type", "container", *ids)) if ids else []
    except Unavailable as error:
        # One was removed between the two questions: asked again, it is not among them.
        if "no such container" not in error.message.lower():
            raise
        return containers(label)
    return found


def memory_bytes(ids: Sequence[str]) -> dict[str, int]:
    """Bytes of memory by container id, without the page cache, as `docker stats` counts them."""
    if not ids:
        return {}
    lines = run_docker("stats", "--no-stream", "--no-trunc", "--format", "{{json .}}", *ids).splitlines()
    documents = [json.loads(line) for line in lines]
    return {document["ID"]: _bytes_of(document["MemUsage"].split("/")[0].strip()) for document in documents}


def read_logs(identity: str, *, lines: int, follow: bool) -> "subprocess.Popen[str]":
    """A process whose output is the container's last lines and, with follow, all that it writes from now on."""
    options = ["--tail", str(lines), *(["--follow"] if follow else [])]
    return subprocess.Popen(
        ["docker", "logs", *options, identity],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip


@cache
def compose_command() -> tuple[str, ...]:
    """`docker compose`, else docker-compose. Raises NotFound: there is neither."""
    for command in (("docker", "compose"), ("docker-compose",)):
        try:
            done = subprocess.run([*command, "version"], capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
        except FileNotFoundError:
            continue
        if done.returncode == 0:
            return command
    raise NotFound("there is neither `docker compose` nor docker-compose on PATH; install one of them")


def run_compose(folder: Path, environment: Mapping[str, str], *arguments: str) -> None:
    """`docker compose ARGUMENTS` in the folder.

    Raises:
        NotFound: there is no Compose. PortsTaken: a port is another process's. Unavailable: it failed; says why.
    """
    try:
        done = subprocess.run(
            [*compose_command(), *arguments],
            cwd=folder, env=dict(environment), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=_COMPOSE_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"compose {arguments[0]} did not end within {_COMPOSE_TIMEOUT_SECONDS:.0f} s") from error
    if done.returncode:
        reason = _reason(done.stderr)
        kind = PortsTaken if any(words in reason for words in _PORT_TAKEN) else Unavailable
        raise kind(f"compose {arguments[0]} failed: {reason}")


def _reason(printed: str) -> str:
    """The line with the fault: the first that has "error" or "cannot" and more than a container's state, else the last.

    Both releases of Compose print the name of a container that did not start, with "error", before its reason.
    """
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    faults = [line for line in lines if any(word in line.lower() for word in ("error", "cannot", "couldn't"))]
    reasons = [line for line in faults if not line.lower().endswith(" error")]
    return (reasons or faults or lines[-1:] or ["it gave no reason"])[0]


def _bytes_of(text: str) -> int:
    number = text.rstrip("kKMGiB")
    return round(float(number) * _BYTES_OF_UNIT[text[len(number) :]])
