"""The limits of a round's process, as control decides them."""

from collections.abc import Mapping
from dataclasses import dataclass

OFF, AUTO, REQUIRE = "off", "auto", "require"


@dataclass(frozen=True)
class SandboxRules:
    """Attributes:
    mode: off; auto: as far as the kernel goes; require: the process ends where it cannot be confined.
    write: folders, with all that is below them.
    read: files and folders besides the interpreter, its libraries and the system's.
    ports: TCP ports that may be connected to; None: any, and any may be listened on.
    resolves_names: UDP is needed, for DNS.
    processes, memory_mib, file_mib, open_files: limits; 0: none.
    has_gpu: CUDA may begin: it names its threads in /proc and binds a Unix socket of packets.
    """

    mode: str = OFF
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    ports: tuple[int, ...] | None = ()
    resolves_names: bool = False
    processes: int = 0
    memory_mib: int = 0
    file_mib: int = 0
    open_files: int = 0
    has_gpu: bool = False


_NAMES = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TMPDIR",
     "TZ", "USER"}
)  # fmt: skip
_BEGINNINGS = (
    "CUBLAS", "CUDA", "CUDNN", "GLIBC_", "GOMP_", "GRPC_", "KERAS_", "KMP_", "LC_", "MALLOC_", "MKL_", "NCCL_",
    "NUMEXPR_", "NVIDIA_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHON", "TF_", "TF2_", "VECLIB_", "VIRTUAL_ENV", "XLA_",
)  # fmt: skip
"""Of variables that tell the interpreter, TensorFlow and its libraries how to compute."""


def scrubbed(environment: Mapping[str, str], also: frozenset[str]) -> dict[str, str]:
    """The variables that hold no secrets: those named here, and those of `also`."""
    return {
        name: value
        for name, value in environment.items()
        if name in _NAMES or name in also or name.startswith(_BEGINNINGS)
    }
