# ruff: noqa: PTH109, PTH110, PTH112, PTH118, PTH120, PTH123, PTH208  # pathlib takes as long to import as all the rest
"""What stands for the interpreter: asks a server for a process, or becomes the interpreter. It imports little, since it
starts for every process."""

import fcntl
import os
import signal
import socket
import zlib

_TRIES = ("services.trainer.rounds.check", "services.trainer.export.inspecting", "services.trainer.features.show")
_TRAINER = (*_TRIES, "pytest")
"""The last for functions of tests that are called there: their modules import it."""
_TEST_SUPPORT = (
    "contract_client", "contract_model", "custom_op_model", "engine_comparison", "engine_faults", "engine_models",
    "reload_client", "same_program_models", "saved_models",
)  # fmt: skip
_SERVING = ("services.serving.runner.process",)
_OTHERS = (
    "services.trainer.export.converting", "services.trainer.export.session_script",
    "services.trainer.rounds.point_export", "services.trainer.summaries.transformed",
    "services.trainer.summaries.board_door", "services.trainer.tests.support.fresh_process",
    "services.trainer.tests.support.sharded_training", "tensorboard.main",
)  # fmt: skip
_FRONTS = (
    "services.serving", "services.serving.replica.manager", "services.serving.tests.support.stubbed_serving",
    "services.serving.tests.support.stub_manager", "services.serving.tests.support.front_server",
)  # fmt: skip
_SERVICES = ("services.registry", "services.trainer", "services.ingest")
_WITHOUT_TENSORFLOW = (*_SERVICES, "services.ingest.codec.check_file", "common.eventlog.tests.writer")
_IMPORTS = {
    **dict.fromkeys(
        _WITHOUT_TENSORFLOW,
        (*(f"{name}.__main__" for name in _SERVICES), "psycopg", "s3fs", "testing.forked", "testing.frozen"),
    ),
    **dict.fromkeys((*_TRIES, *_OTHERS), _TRAINER),
    **{f"services.serving.tests.support.{name}": _TRAINER for name in _TEST_SUPPORT},
    **dict.fromkeys(_FRONTS, ("services.serving.__main__", "services.serving.replica.manager")),
    **dict.fromkeys(("services.serving.runner.zygote", "services.serving.engines.call_times"), _SERVING),
}
"""By module, what the server imports before a process becomes that module. Of the services it is what
testing/forked.py names."""
_ROUNDS_ZYGOTE = "services.trainer.rounds.zygote"
"""Becomes the module of the function that it is given."""
_FORKSERVER = "from multiprocessing.forkserver import main"
"""Begins its code, in which a list names what it is to import."""
_DECIDES = ("TF_", "XLA_", "KERAS_", "PYTHON", "LD_")
"""Python reads such variables as it starts, TensorFlow as it is imported: every set of them has a server."""
_READ_LATER = (
    "TF_CPP_MIN_LOG_LEVEL", "TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PYTHONUNBUFFERED",
    "TF_CLI_CONFIG_FILE",
)  # fmt: skip
"""By a fork, or as TensorFlow begins to compute; the last is Terraform's."""
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(folder: str, interpreter: str, owner: int, arguments: list[str]) -> None:
    """Ends as the process ends that became the arguments."""
    modules = _imports_for(arguments)
    if not modules:
        os.execv(interpreter, [f"{folder}/bin/python", *arguments])
    descriptors = [number for number in map(int, os.listdir("/proc/self/fd")) if _is_open(number)]
    with _connected(folder, interpreter, owner, modules) as connection:
        socket.send_fds(connection, [" ".join(map(str, descriptors)).encode()], descriptors)
        for number in _FORWARDED:
            signal.signal(number, lambda number, frame: connection.sendall(bytes([number])))
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in descriptors:  # or the other end of a pipe would not see the process close it
            os.dup2(nothing, descriptor)
        status = int(connection.recv(16) or -signal.SIGKILL)
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_open(descriptor: int) -> bool:
    """Not so of the process that listed the others."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def _imports_for(arguments: list[str]) -> tuple[str, ...]:
    if arguments[:2] == ["-m", _ROUNDS_ZYGOTE]:
        module = arguments[4].partition(":")[0]
        return _TRAINER if module.startswith("services.trainer.rounds.") else (module,)
    if arguments[:1] == ["-m"]:
        return _IMPORTS.get(arguments[2 if arguments[1] == "common.process.lean_imports" else 1], ())
    code = arguments[1] if arguments[:1] == ["-c"] else ""
    if code.startswith(_FORKSERVER):
        return tuple(code[code.index("[") + 1 : code.index("]")].replace("'", "").split(", "))
    if arguments and not arguments[0].startswith("-"):
        with open(arguments[0]) as script:
            code = script.read()
    return _TRAINER if "tensorflow" in code or "keras" in code else ()


def _connected(folder: str, interpreter: str, owner: int, modules: tuple[str, ...]) -> socket.socket:
    """To the server for these modules and this environment; the first client starts it."""
    environment = dict(os.environ)
    environment.setdefault("PYTHONHASHSEED", "0")  # as a trainer's zygote has it
    if modules == _SERVING:
        environment.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # the zygote sets it before it imports TensorFlow
        environment.setdefault("MALLOC_ARENA_MAX", "1")  # the C library reads it as a process starts
    places = (os.getcwd(), *environment.get("PYTHONPATH", "").split(os.pathsep))
    tree = next((place for place in places if os.path.isdir(os.path.join(place, "services"))), "")
    if tree:  # which is what the server imports from; a process gets its PYTHONPATH beside it
        environment.pop("PYTHONPATH", None)
    decides = {
        name: value for name, value in environment.items() if name.startswith(_DECIDES) and name not in _READ_LATER
    }
    decides["."] = tree  # of those that there may be
    path = f"{folder}/{zlib.crc32(repr((modules, sorted(decides.items()))).encode())}"
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            _start_server(path, interpreter, owner, modules, environment, tree)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


def _start_server(
    path: str, interpreter: str, owner: int, modules: tuple[str, ...], environment: dict[str, str], tree: str
) -> None:
    import subprocess

    single_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # a fork copies no other thread
    server = os.path.join(os.path.dirname(__file__), "server.py")
    with open(f"{path}.log", "w") as log:
        process = subprocess.Popen(
            [interpreter, server, path, str(owner), *modules], env=environment | single_thread, cwd=tree or None,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    is_ready = process.stdout.read(1)
    process.wait()
    if not is_ready:
        raise SystemExit(f"the server of warm processes has not started: {path}.log")
