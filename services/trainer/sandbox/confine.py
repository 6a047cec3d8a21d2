"""Entering the sandbox, in a process that has one thread and has run nothing of an author's; there is no way back."""

import ctypes
import logging
import os
import resource
import struct
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from common.errors import Unavailable
from common.process.lifecycle import die_with_parent
from services.trainer.sandbox import landlock, seccomp, survivors
from services.trainer.sandbox.rules import OFF, REQUIRE, SandboxRules

logger = logging.getLogger(__name__)
_SYSTEM = ("/lib", "/lib32", "/lib64", "/bin", "/sbin", "/nix")
_PREFIXES = ("/usr", "/usr/local", sys.prefix, sys.base_prefix)
_OF_PREFIX = (
    "bin", "cuda*", "include", "lib", "lib32", "lib64", "libexec", "nvidia*", "pyvenv.cfg", "sbin", "share",
    "ssl/*.pem",
)  # fmt: skip
"""What programs and libraries are made of: a round that may read every user's files reads no others there, such as
those of a service or a platform below /usr/local or /opt."""
_ETC = (
    "alternatives", "gai.conf", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
    "mime.types", "nsswitch.conf", "OpenCL", "passwd", "protocols", "resolv.conf", "services", "ssl/certs",
    "ssl/openssl.cnf", "timezone",
)  # fmt: skip
_KERNEL = (
    "/proc", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/fs", "/sys/kernel/mm", "/sys/module",
)  # fmt: skip
_DEVICES = ("full", "null", "random", "urandom")
_GPUS = ("nvidia*", "dri", "kfd")
_FIRST_UID, _FIRST_SMALL_UID, _SMALL_UIDS, _MOST_PIDS = 0x6A000000, 50_000, 10_000, 1 << 22
_CAP_DAC_OVERRIDE = 1
_CAPABILITIES_VERSION_3 = 0x20080522
_PR_SET_SECUREBITS, _NO_SETUID_FIXUP_FOR_GOOD, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 28, 4 | 8, 47, 2
_libc = ctypes.CDLL(None, use_errno=True)


def enter(rules: SandboxRules) -> None:
    """Confines this process and all that it will fork. Raises Unavailable: the kernel refuses what is required."""
    if rules.mode == OFF:
        return
    is_own_user = has_own_user()
    steps: list[Callable[[], None]] = [lambda: _limit(rules, is_own_user=is_own_user), seccomp.forbid_new_privileges]
    if landlock.abi():
        steps += [lambda: landlock.restrict(_paths(rules), connect=rules.ports)]
    if seccomp.is_there():
        has_ports = rules.ports is None or bool(rules.ports)
        shares = rules.ports is None or not rules.memory_mib
        steps += [
            lambda: seccomp.restrict(
                allow_tcp=has_ports, allow_udp=rules.resolves_names, allow_shared_memory=shares, allow_gpu=rules.has_gpu
            )
        ]
    if is_own_user:
        steps.insert(0, _become_a_user_of_its_own)
    for step in steps:
        try:
            step()
        except OSError as error:
            if rules.mode == REQUIRE:
                raise Unavailable(f"the round cannot be confined: {error}") from error
            logger.warning("a round is confined in part only", extra={"error": str(error)})


def not_confined() -> list[str]:
    """The limits that this machine cannot set, a sentence each."""
    version = landlock.abi()
    return [
        sentence
        for sentence, is_so in {
            "files: the kernel has no Landlock": version == 0,
            f"TCP ports: Landlock's ABI is {version}, {landlock.TCP_ABI} is needed": 0 < version < landlock.TCP_ABI,
            f"signals to processes of the same user: Landlock's ABI is {version}, {landlock.SCOPE_ABI} is needed": 0
            < version
            < landlock.SCOPE_ABI
            and not has_own_user(),
            "system calls and sockets: there is no seccomp filter for this machine": not seccomp.is_there(),
            "processes that a round leaves behind: the kernel lists no children": not survivors.can_be_found(),
            "the number of processes, modes of the trainer's own files, and its priority: the trainer does not run as "
            "root, so a round has no separate user": not has_own_user(),
        }.items()
        if is_so
    ]


def has_own_user() -> bool:
    """Whether a round runs as another user: this process is root, with the right to read all users' files below the
    paths that Landlock permits."""
    if os.geteuid() != 0 or not landlock.abi():
        return False
    permitted = next(line for line in _status() if line.startswith("CapPrm:"))
    needed = sum(1 << capability for capability in (_CAP_DAC_OVERRIDE, 6, 7, 8))  # CAP_SETGID, CAP_SETUID, CAP_SETPCAP
    return int(permitted.split()[1], 16) & needed == needed


def _limit(rules: SandboxRules, *, is_own_user: bool) -> None:
    """The kernel counts processes by user, so their number is bounded only for a user that has nothing else running."""
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, rules.file_mib << 20 or None),
        (resource.RLIMIT_DATA, rules.memory_mib << 20 or None),
        (resource.RLIMIT_NOFILE, rules.open_files or None),
        (resource.RLIMIT_NPROC, rules.processes or None if is_own_user else None),
    ):
        hard = resource.getrlimit(limit)[1]
        if most is not None and (hard == resource.RLIM_INFINITY or most <= hard):
            resource.setrlimit(limit, (most, most))


def _become_a_user_of_its_own() -> None:
    """A user id that no other process has, with the right to read and write files of every mode (CAP_DAC_OVERRIDE), so
    that no file has to change its owner; Landlock limits which files. It cannot change modes or owners of others'."""
    parent, user = os.getppid(), _free_uid()
    # Without this, access(2) would not see the right that is kept (capabilities(7), SECBIT_NO_SETUID_FIXUP).
    if _libc.prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP_FOR_GOOD, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the rule for users and capabilities cannot be set")
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    header, kept = struct.pack("=Ii", _CAPABILITIES_VERSION_3, 0), 1 << _CAP_DAC_OVERRIDE
    if _libc.capset(header, struct.pack("=6I", kept, kept, kept, 0, 0, 0)):
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)  # also in programs that it runs
    die_with_parent(parent)  # another user: the kernel has forgotten it


def _free_uid() -> int:
    """By the process's number, which is its alone; a container may have 65,536 users only."""
    first, _, count = map(int, Path("/proc/self/uid_map").read_text().split()[:3])
    if first + count >= _FIRST_UID + _MOST_PIDS:
        return _FIRST_UID + os.getpid()
    return _FIRST_SMALL_UID + os.getpid() % _SMALL_UIDS


def _paths(rules: SandboxRules) -> Iterator[tuple[str, int]]:
    """(path, rights)."""
    libraries = [*_SYSTEM, *map(str, _installed())]
    yield from ((path, landlock.RUN) for path in libraries)
    yield from _own_code(libraries)
    yield from ((f"/etc/{name}", landlock.READ) for name in _ETC)
    yield from ((path, landlock.READ) for path in (*_KERNEL, *rules.read))
    yield from ((f"/dev/{name}", landlock.USE_DEVICE) for name in _DEVICES)
    yield "/dev/zero", landlock.READ  # written to and shared, it is memory that no limit counts
    yield from ((str(path), landlock.USE_DEVICE | landlock.READ) for name in _GPUS for path in Path("/dev").glob(name))
    if rules.has_gpu:  # CUDA names its threads there: of this process, not of those that it forks
        yield "/proc/self/task", landlock.UPDATE
    if rules.ports is None:  # several processes, which share memory
        yield "/dev/shm", landlock.WRITE  # noqa: S108 - where POSIX's shared memory lies
    yield from ((path, landlock.WRITE) for path in rules.write)


def _installed() -> Iterator[Path]:
    for prefix in _PREFIXES:
        for name in _OF_PREFIX:
            yield from Path(prefix).glob(name)
    named = f"{os.environ.get('PATH', '')}:{os.environ.get('LD_LIBRARY_PATH', '')}".split(":")
    yield from (Path(entry) for entry in named if entry.startswith("/opt/"))


def _own_code(libraries: Collection[str]) -> Iterator[tuple[str, int]]:
    """Of folders on the import path that hold other things as well, such as the platform's data: the packages, and the
    names of the others, without which a new interpreter, such as the converters', finds no package."""
    for entry in map(Path, sys.path):
        if not entry.is_dir() or any(entry.is_relative_to(library) for library in libraries):
            continue
        if entry.name in ("site-packages", "dist-packages"):
            yield str(entry), landlock.READ
            continue
        yield str(entry), landlock.LIST
        for path in entry.iterdir():
            if path.suffix in (".py", ".so") or (path / "__init__.py").is_file():
                yield str(path), landlock.READ


def _status() -> list[str]:
    return Path("/proc/self/status").read_text().splitlines()
