"""What an author's code may try once a round runs it. Each attempt raises where it does not get what it is after."""

import ctypes
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Done, Failed, FailureKind, Report

SECRET = "THE_KEY_OF_THE_STORE"
FORKS, FILES, FILE_BYTES, DATA_BYTES = 40, 300, 3 << 20, 6 << 30
"""More than the limits of the sandbox that the tests make."""
_PTRACE_SEIZE, _PTRACE_DETACH, _CLONE_NEWUSER, _MULTIPATH_TCP = 0x4206, 17, 0x10000000, 262
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Ground:
    """Attributes:
    own: the round's own folder. registry, other_model, events, elsewhere: folders that are not its own.
    closed_port: somebody listens there, and the sandbox does not name it. unix_socket, unix_datagrams: the same.
    """

    own: Path
    registry: Path
    other_model: Path
    events: Path
    elsewhere: Path
    closed_port: int
    unix_socket: str
    unix_datagrams: str


def run_round(assignment: RoundAssignment, report: Report, stop_requested: Callable[[], bool]) -> None:
    """Makes the attempt that the plan names; it is done where it was successful."""
    told = dict(assignment.plan.configuration)
    attempt = {**ATTEMPTS, **NEEDS, **OF_CUDA}[told["attempt"]]
    folders = {name: Path(told[name]) for name in ("registry", "other_model", "events", "elsewhere")}
    ground = Ground(
        Path(assignment.work_dir), **folders, closed_port=told["closed_port"], unix_socket=told["unix"],
        unix_datagrams=told["unix_datagrams"],
    )  # fmt: skip
    try:
        attempt(ground)
    except (OSError, MemoryError, KeyError, ValueError, subprocess.SubprocessError) as error:
        report(Failed(f"{type(error).__name__}: {error}", FailureKind.DEFINITION))
    else:
        report(Done())


def _called(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def write_its_own_metrics_into_the_registry(ground: Ground) -> None:
    with (ground.registry / "catalog.sqlite").open("ab") as file:
        file.write(b"auc: 1.0")


def add_events_to_its_stream(ground: Ground) -> None:
    with (ground.events / "records").open("ab") as file:
        file.write(b"an event that nobody has sent")


def run_a_program_of_its_own(ground: Ground) -> None:
    program = ground.own / "program"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    subprocess.run([str(program)], check=True)


def trace_the_process_above(ground: Ground) -> None:
    _called(_libc.ptrace(_PTRACE_SEIZE, os.getppid(), None, None))
    _libc.ptrace(_PTRACE_DETACH, os.getppid(), None, None)


def copy_the_memory_of_the_process_above(ground: Ground) -> None:
    class Part(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    buffer = ctypes.create_string_buffer(8)
    here, there = (Part(ctypes.addressof(buffer), 8), Part(id(None), 8))  # a fork: None is at the same place
    _called(_libc.process_vm_readv(os.getppid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def signal_the_process_above(ground: Ground) -> None:
    """0 is no signal, and asks for the same right as SIGKILL."""
    os.kill(os.getppid(), 0)


def make_a_user_namespace(ground: Ground) -> None:
    """In a child: a process of several users' threads may make none."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _libc.unshare(_CLONE_NEWUSER) == 0 else 1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise PermissionError("no namespace")


def connect_over_multipath_tcp(ground: Ground) -> None:
    """Over TCP where the kernel has none."""
    has_it = Path("/proc/sys/net/mptcp").is_dir()
    with socket.socket(proto=_MULTIPATH_TCP if has_it else 0) as out:
        out.connect(("127.0.0.1", ground.closed_port))


def listen_for_others(ground: Ground) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))


def send_a_datagram(ground: Ground) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as out:
        out.sendto(b"weights", ("127.0.0.1", 9))


def talk_to_a_daemon_over_a_unix_socket(ground: Ground) -> None:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect(ground.unix_socket)


def send_a_datagram_to_a_daemon_from_a_pair(ground: Ground) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.sendto(b"weights", ground.unix_datagrams)


def watch_the_registrys_folder(ground: Ground) -> None:
    """It would hear the names of all files that are made there, and who reads them when."""
    _called(_libc.inotify_add_watch(_libc.inotify_init(), bytes(ground.registry), 0x100))  # IN_CREATE


def share_memory_that_outlives_the_round(ground: Ground) -> None:
    found = _libc.shmget(0, 4096, 0o600)  # IPC_PRIVATE
    _called(found)
    _libc.shmctl(found, 0, None)  # IPC_RMID


def leave_messages_for_others_by_a_key(ground: Ground) -> None:
    found = _libc.msgget(0, 0o600)
    _called(found)
    _libc.msgctl(found, 0, None)


def write_a_huge_file(ground: Ground) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with (ground.own / "huge").open("wb") as file:
        file.truncate(FILE_BYTES)


def share_memory_past_the_limit_by_a_device(ground: Ground) -> None:
    with Path("/dev/zero").open("r+b", buffering=0) as zero:
        mmap.mmap(zero.fileno(), DATA_BYTES).close()


def open_files_without_end(ground: Ground) -> None:
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(FILES)]
    for descriptor in opened:
        os.close(descriptor)


def fork_without_end(ground: Ground) -> None:
    pids = list[int]()
    try:
        for _ in range(FORKS):
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
                os._exit(0)
            pids.append(pid)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def make_a_socket(ground: Ground) -> None:
    with socket.socket():
        pass


def talk_to_itself(ground: Ground) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        with ours, theirs:
            ours.send(b"x")
            theirs.recv(1)


def begin_as_cuda_does(ground: Ground) -> None:
    """cuInit names its threads, and binds a socket of packets that other processes may ask for memory."""
    has_name = threading.Event()
    thread = threading.Thread(target=has_name.wait, args=(60,))
    thread.start()
    try:
        with Path(f"/proc/self/task/{thread.native_id}/comm").open("r+") as name:
            name.write("cuda")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as shared:
            shared.bind(f"\0cuda-uvmfd-{os.getpid()}")
            shared.listen()
    finally:
        has_name.set()
        thread.join()


def connect_a_socket_of_packets(ground: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as out:
        out.connect("\0somebody")


def leave_a_process_behind(ground: Ground) -> None:
    """In a session of its own, with nobody above it; it says its number."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if left := os.fork():
            os.write(writer, str(left).encode())
            os._exit(0)
        time.sleep(600)
        os._exit(0)
    (ground.own / "left").write_bytes(os.read(reader, 20))


def start_an_interpreter_as_for_the_converters(ground: Ground) -> None:
    code = (
        "from common.process.lean_imports import without_optional_libraries\n"
        "with without_optional_libraries():\n"
        "    import services.trainer.export.answers\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ground.own)


ATTEMPTS: Mapping[str, Callable[[Ground], object]] = {
    "read_the_registrys_database": lambda ground: (ground.registry / "catalog.sqlite").read_bytes(),
    "list_the_registrys_files": lambda ground: list(ground.registry.iterdir()),
    "cut_the_registrys_database_short": lambda ground: os.truncate(ground.registry / "catalog.sqlite", 0),
    "remove_the_registrys_database": lambda ground: (ground.registry / "removable").unlink(),
    "change_the_mode_of_the_registrys_database": lambda ground: (ground.registry / "catalog.sqlite").chmod(0o666),
    "set_an_attribute_of_the_registrys_database":
        lambda ground: os.setxattr(ground.registry / "catalog.sqlite", "user.own", b"auc: 1.0"),
    "list_what_lies_beside_programs_and_libraries": lambda ground: list(Path("/usr/local").iterdir()),
    "read_another_models_weights": lambda ground: (ground.other_model / "weights.npz").read_bytes(),
    "change_another_rounds_assignment": lambda ground: (ground.other_model / "assignment.json").write_text("{}"),
    "write_elsewhere": lambda ground: (ground.elsewhere / "left_behind").write_text("x"),
    "link_out_of_its_folder": lambda ground: (ground.own / "link").symlink_to(ground.registry / "catalog.sqlite"),
    "link_a_file_into_its_folder": lambda ground: os.link(ground.registry / "catalog.sqlite", ground.own / "hard"),
    "move_a_file_into_its_folder": lambda ground: (ground.registry / "movable").rename(ground.own / "moved"),
    "make_a_named_pipe": lambda ground: os.mkfifo(ground.own / "pipe"),
    "read_a_secret_of_the_environment": lambda ground: os.environ[SECRET],
    "read_the_environment_that_it_began_with":
        lambda ground: Path("/proc/self/environ").read_bytes().index(SECRET.encode()),
    "read_the_environment_of_the_process_above": lambda ground: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "read_the_memory_of_the_process_above": lambda ground: os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY)),
    "slow_the_process_above_down":
        lambda ground: os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid())),
    "limit_the_process_above": lambda ground: resource.prlimit(
        os.getppid(), resource.RLIMIT_NOFILE, resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)
    ),
    "become_root": lambda ground: os.setuid(0),
    "leave_by_another_root": lambda ground: os.chroot("/"),
    "connect_to_a_service_of_the_machine":
        lambda ground: socket.create_connection(("127.0.0.1", ground.closed_port), timeout=60).close(),
    "read_packets_of_the_network": lambda ground: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
    "take_all_memory": lambda ground: np.empty(DATA_BYTES, np.uint8),  # nothing of it is touched
    "share_memory_past_the_limit": lambda ground: mmap.mmap(-1, DATA_BYTES).close(),
    "take_memory_as_a_file_without_a_folder": lambda ground: os.close(os.memfd_create("weights")),
    **{
        found.__name__: found
        for found in (
            write_its_own_metrics_into_the_registry, add_events_to_its_stream, run_a_program_of_its_own,
            trace_the_process_above, copy_the_memory_of_the_process_above, signal_the_process_above,
            make_a_user_namespace, watch_the_registrys_folder, connect_over_multipath_tcp, listen_for_others,
            send_a_datagram,
            talk_to_a_daemon_over_a_unix_socket, send_a_datagram_to_a_daemon_from_a_pair,
            share_memory_that_outlives_the_round, leave_messages_for_others_by_a_key, write_a_huge_file,
            share_memory_past_the_limit_by_a_device,
            open_files_without_end, fork_without_end,
        )
    },
}  # fmt: skip
NEEDS: Mapping[str, Callable[[Ground], None]] = {
    found.__name__: found
    for found in (start_an_interpreter_as_for_the_converters, make_a_socket, talk_to_itself, leave_a_process_behind)
}
"""What a round has to be able to do."""
OF_CUDA: Mapping[str, Callable[[Ground], None]] = {
    found.__name__: found for found in (begin_as_cuda_does, connect_a_socket_of_packets)
}
