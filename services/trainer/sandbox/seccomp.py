"""seccomp: a filter over system calls, for this process and all that it forks, for good (seccomp(2)).

It answers EPERM to calls that no computation needs and that reach other processes or the kernel, and EACCES to sockets:
to all where a process connects nowhere, otherwise to those of other protocols than TCP, since Landlock's rules for
ports see no Multipath TCP and no SCTP. Where memory has a limit, which for the kernel is one of private memory
(RLIMIT_DATA), it answers ENOMEM to shared memory that is no file's.

The filter is classic BPF over `struct seccomp_data` (include/uapi/linux/seccomp.h, filter.h); numbers of calls are
those of arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
from collections.abc import Mapping, Sequence

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _AND, _RETURN, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x20, 0x54, 0x06, 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 24, 32, 40
"""Offsets in seccomp_data; of an argument the lower half."""
_NAMESPACES = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_SOCKET_TYPE = 0xF
_X32_BIT = 0x40000000
_AUDIT_ARCH: Mapping[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET_CALL: Mapping[str, int] = {"x86_64": 41, "aarch64": 198}
_SOCKETPAIR_CALL: Mapping[str, int] = {"x86_64": 53, "aarch64": 199}
"""Of datagrams, one end of a pair reaches every Unix socket of datagrams that has a name."""
_CONNECT: Mapping[str, int] = {"x86_64": 42, "aarch64": 203}
_MMAP: Mapping[str, int] = {"x86_64": 9, "aarch64": 222}
_MEMFD: Mapping[str, tuple[int, ...]] = {"x86_64": (319, 447), "aarch64": (279, 447)}
"""memfd_create, memfd_secret."""
_MAP_TYPE_AND_ANONYMOUS, _SHARED_ANONYMOUS = 0x2F, 0x21
_CLONE: Mapping[str, int] = {"x86_64": 56, "aarch64": 220}
_PRLIMIT: Mapping[str, int] = {"x86_64": 302, "aarch64": 261}
"""A process sets its own limits as number 0; those of others are the trainer's, where it is of the same user."""
_CLONE3 = 435
"""Its flags lie in memory, where no filter sees them: glibc goes on with clone when it hears ENOSYS."""
_DENIED_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "mount_setattr": 442,
    "setxattrat": 463, "removexattrat": 466,
}  # fmt: skip
"""io_uring opens sockets behind a filter's back. Landlock has no rules for attributes of files, and none for those who
watch a folder."""
DENIED: Mapping[str, Mapping[str, int]] = {
    "x86_64": _DENIED_EVERYWHERE | {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "perf_event_open": 298,
        "bpf": 321, "userfaultfd": 323, "add_key": 248, "request_key": 249, "keyctl": 250, "mount": 165, "umount2": 166,
        "pivot_root": 155, "chroot": 161, "setns": 308, "unshare": 272, "open_by_handle_at": 304, "init_module": 175,
        "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320, "reboot": 169,
        "swapon": 167, "swapoff": 168, "acct": 163, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
        "clock_adjtime": 305, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "quotactl": 179,
        "syslog": 103, "vhangup": 153, "shmget": 29, "semget": 64, "msgget": 68,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "inotify_init": 253, "inotify_init1": 294, "fanotify_init": 300,
    },
    "aarch64": _DENIED_EVERYWHERE | {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "perf_event_open": 241,
        "bpf": 280, "userfaultfd": 282, "add_key": 217, "request_key": 218, "keyctl": 219, "mount": 40, "umount2": 39,
        "pivot_root": 41, "chroot": 51, "setns": 268, "unshare": 97, "open_by_handle_at": 265, "init_module": 105,
        "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294, "reboot": 142,
        "swapon": 224, "swapoff": 225, "acct": 89, "settimeofday": 170, "clock_settime": 112, "adjtimex": 171,
        "clock_adjtime": 266, "sethostname": 161, "setdomainname": 162, "quotactl": 60, "syslog": 116, "vhangup": 58,
        "shmget": 194, "semget": 190, "msgget": 186,
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "inotify_init1": 26, "fanotify_init": 262,
    },
}  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def is_known() -> bool:
    """Whether there is a filter for this machine; the kernel may still lack seccomp."""
    return platform.machine() in _AUDIT_ARCH


def is_there() -> bool:
    """Whether the kernel takes filters (prctl(2): EFAULT for one at address 0, EINVAL where it has none)."""
    _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0)
    return is_known() and ctypes.get_errno() == errno.EFAULT


def forbid_new_privileges() -> None:
    """From now on no program that is run has more rights than this process (no_new_privs)."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")


def restrict(*, allow_tcp: bool, allow_udp: bool, allow_shared_memory: bool, allow_gpu: bool = False) -> None:
    """Needs no_new_privs. Raises OSError: the kernel refuses.

    Args:
        allow_gpu: Unix sockets of packets: cuInit binds one to an abstract name. None is connected where the process
            connects nowhere.
    """
    machine = platform.machine()
    memory = [] if allow_shared_memory else _no_shared_memory(machine)
    program = _program(machine, memory, allow_tcp, allow_udp, allow_gpu)
    whole = _Program(len(program) // 8, program)
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(whole), 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"the filter of system calls is refused: {os.strerror(code)}")


def _no_shared_memory(machine: str) -> list[bytes]:
    """Steps behind the number of a call."""
    of_mmap = [
        _step(_LOAD, _FOURTH_ARGUMENT), _step(_AND, _MAP_TYPE_AND_ANONYMOUS),
        *_if(_IF_EQUAL, _SHARED_ANONYMOUS, [_errno(errno.ENOMEM)]), _step(_RETURN, _ALLOW),
    ]  # fmt: skip
    of_memfd = (step for number in _MEMFD[machine] for step in _if(_IF_EQUAL, number, [_errno(errno.ENOMEM)]))
    return [*of_memfd, *_if(_IF_EQUAL, _MMAP[machine], of_mmap)]


def _program(machine: str, memory: list[bytes], allow_tcp: bool, allow_udp: bool, allow_gpu: bool) -> bytes:
    types = [*([socket.SOCK_STREAM] if allow_tcp else []), *([socket.SOCK_DGRAM] if allow_udp else [])]
    protocols = [socket.IPPROTO_IP, socket.IPPROTO_TCP, *([socket.IPPROTO_UDP] if allow_udp else [])]
    no_socket = _errno(errno.EACCES)
    of_type = [
        _step(_LOAD, _SECOND_ARGUMENT), _step(_AND, _SOCKET_TYPE),
        *_unless(_IF_EQUAL, types, no_socket), _step(_LOAD, _THIRD_ARGUMENT),
        *_unless(_IF_EQUAL, protocols, no_socket), _step(_RETURN, _ALLOW),
    ]  # fmt: skip
    of_packets = [
        _step(_LOAD, _SECOND_ARGUMENT), _step(_AND, _SOCKET_TYPE),
        *_unless(_IF_EQUAL, [socket.SOCK_SEQPACKET], no_socket), _step(_RETURN, _ALLOW),
    ]  # fmt: skip
    of_sockets = [
        _step(_LOAD, _FIRST_ARGUMENT), *(_if(_IF_EQUAL, socket.AF_UNIX, of_packets) if allow_gpu else []),
        *_unless(_IF_EQUAL, [socket.AF_INET, socket.AF_INET6], no_socket), *of_type,
    ]  # fmt: skip
    of_pairs = [
        _step(_LOAD, _SECOND_ARGUMENT), _step(_AND, _SOCKET_TYPE),
        *_unless(_IF_EQUAL, [socket.SOCK_STREAM, socket.SOCK_SEQPACKET], no_socket), _step(_RETURN, _ALLOW),
    ]  # fmt: skip
    of_clone = [
        _step(_LOAD, _FIRST_ARGUMENT), *_if(_IF_ANY_BIT, _NAMESPACES, [_errno(errno.EPERM)]), _step(_RETURN, _ALLOW)
    ]  # fmt: skip
    of_prlimit = [
        _step(_LOAD, _FIRST_ARGUMENT), *_unless(_IF_EQUAL, [0], _errno(errno.EPERM)), _step(_RETURN, _ALLOW)
    ]  # fmt: skip
    steps = [
        _step(_LOAD, _ARCHITECTURE), *_unless(_IF_EQUAL, [_AUDIT_ARCH[machine]], _step(_RETURN, _KILL_PROCESS)),
        _step(_LOAD, _NUMBER), *_if(_IF_AT_LEAST, _X32_BIT, [_errno(errno.ENOSYS)]),
        *_if(_IF_EQUAL, _CLONE3, [_errno(errno.ENOSYS)]),
        *(step for number in DENIED[machine].values() for step in _if(_IF_EQUAL, number, [_errno(errno.EPERM)])),
        *memory,
        *(_if(_IF_EQUAL, _CONNECT[machine], [no_socket]) if allow_gpu and not allow_tcp else []),
        *_if(_IF_EQUAL, _CLONE[machine], of_clone),
        *_if(_IF_EQUAL, _PRLIMIT[machine], of_prlimit),
        *_if(_IF_EQUAL, _SOCKET_CALL[machine], of_sockets),
        *_if(_IF_EQUAL, _SOCKETPAIR_CALL[machine], of_pairs),
        _step(_RETURN, _ALLOW),
    ]  # fmt: skip
    return b"".join(steps)


def _step(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """struct sock_filter."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _errno(code: int) -> bytes:
    return _step(_RETURN, _ERRNO | code)


def _if(test: int, value: int, then: list[bytes]) -> list[bytes]:
    return [_step(test, value, if_false=len(then)), *then]


def _unless(test: int, values: Sequence[int], otherwise: bytes) -> list[bytes]:
    """Goes on behind `otherwise` where the loaded value is one of these."""
    tests = [_step(test, value, if_true=len(values) - index) for index, value in enumerate(values)]
    return [*tests, otherwise]
