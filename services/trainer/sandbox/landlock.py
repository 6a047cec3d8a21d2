"""Landlock: a process gives up rights to files, ports and processes, for itself and all that it forks, for good.

System calls, structures and bits are those of include/uapi/linux/landlock.h. What each release of the interface (ABI)
brought stands at docs.kernel.org/userspace-api/landlock.html: 1 files, 2 moves between folders, 3 truncation, 4 TCP
ports, 5 ioctl on devices, 6 signals and abstract Unix sockets. glibc has no functions for them.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The same numbers on every architecture."""
_VERSION_FLAG, _PATH_BENEATH, _NET_PORT = 1, 1, 2
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _REFER = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 13
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1
_FILE_BITS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many of the bits above there are; 16 from ABI 5 on."""
LIST = _READ_DIR
READ = _READ_FILE | LIST
RUN = READ | _EXECUTE
WRITE = READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
"""Regular files and folders; no links, devices, pipes and sockets are made."""
UPDATE = READ | _WRITE_FILE
USE_DEVICE = _READ_FILE | _WRITE_FILE | _IOCTL_DEV
TCP_ABI, SCOPE_ABI = 4, 6
_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """Of this kernel; 0 where it has no Landlock, or has it switched off."""
    return max(0, int(_libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)))


def restrict(paths: Iterable[tuple[str, int]], *, connect: Iterable[int] | None) -> None:
    """Permits only this from now on, and ptrace no process outside. Needs no_new_privs, and an ABI of 1.

    Args:
        paths: (path, rights to it and to all below it); one that is not there is left out.
        connect: TCP ports; none may be listened on. None: every port, in both directions.

    Raises:
        OSError: the kernel refuses.
    """
    version = abi()
    handled = (1 << _FILE_BITS_OF_ABI.get(version, 16)) - 1
    has_ports = connect is not None and version >= TCP_ABI
    net = _BIND_TCP | _CONNECT_TCP if has_ports else 0
    scoped = _SCOPE_SIGNAL | _SCOPE_ABSTRACT_UNIX_SOCKET if version >= SCOPE_ABI else 0
    fields = [handled, *([net] if version >= TCP_ABI else []), *([scoped] if version >= SCOPE_ABI else [])]
    ruleset = _call(_CREATE_RULESET, *_buffer(struct.pack(f"={len(fields)}Q", *fields)), 0)
    try:
        for path, rights in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                _allow_path(ruleset, path, rights & handled)
        for port in sorted(set(connect or ())) if has_ports else ():
            rule, _ = _buffer(struct.pack("=QQ", _CONNECT_TCP, port))
            _call(_ADD_RULE, ruleset, _NET_PORT, rule, 0)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        rule, _ = _buffer(struct.pack("=Qi", rights, descriptor))
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _buffer(content: bytes) -> tuple[ctypes.Array[ctypes.c_char], int]:
    return ctypes.create_string_buffer(content, len(content)), len(content)


def _call(number: int, *arguments: object) -> int:
    found = int(_libc.syscall(number, *arguments))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock (system call {number}): {errno.errorcode.get(code, code)}")
    return found
