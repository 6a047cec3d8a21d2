"""What beside the plan could change a round's arithmetic: libraries, processor, threads. Stored with each version,
and beside it what made the round due."""

import os
import platform
import resource
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from common.definition.trees import TREE_ESTIMATORS
from common.facts import present
from common.process.gpu import has_gpu
from common.registry.plan_notes import FIRED
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.rounds.parameter_servers import section_of

_CPU_FEATURES = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "asimd",
)
"""Those by which TensorFlow and oneDNN choose their kernels, as /proc/cpuinfo names them."""
_COMPARED = ("python", "tensorflow", "keras", "numpy", "xgboost", "machine", "cpu_features", "gpus")
_PAGE_BYTES = resource.getpagesize()


def environment_of(assignment: RoundAssignment) -> dict[str, Any]:
    """JSON-ready. Call it in a round's process only: it asks TensorFlow for its devices."""
    return {
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        **_engine_of(assignment),
        "machine": platform.machine(),
        "cpu_features": cpu_features(),
        "gpus": len(tf.config.list_physical_devices("GPU")),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "intra_op_threads": assignment.intra_op_threads,
        "inter_op_threads": assignment.inter_op_threads,
        "shards": assignment.shards,
        "workers": assignment.workers,
        "trainers": max(1, len(assignment.trainers)),
        "devices": assignment.devices,
        **present(
            device_reduction=assignment.device_reduction if assignment.devices > 1 else None,
            exchange=("memory" if assignment.shares_memory else "collectives") if assignment.workers > 1 else None,
            reproducible=False if section_of(assignment) else None,
            **{FIRED: assignment.plan.configuration.get(FIRED)},
        ),
    }


def misses_gpu() -> bool:
    """Whether TensorFlow was built for GPUs and finds none where the machine shows a GPU: rounds then take the CPU. As
    `environment_of`: in a round's process only."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return has_gpu() and tf.test.is_built_with_cuda() and not is_hidden and not tf.config.list_physical_devices("GPU")


def _engine_of(assignment: RoundAssignment) -> dict[str, str]:
    """What computes beside TensorFlow."""
    estimator = str(assignment.plan.configuration.get("estimator"))
    if estimator not in TREE_ESTIMATORS:
        return {}
    import xgboost  # an extra: other rounds do without

    return {"xgboost": str(xgboost.__version__)}


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The first processor's, of those that matter: "avx avx2 fma"; empty where the kernel does not tell."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return " ".join(feature for feature in _CPU_FEATURES if feature in flags)


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each thing that can change the arithmetic and is not the same; unrecorded things make none."""
    return tuple(
        f"{name.replace('_', ' ')} was {there[name]} where the version was trained and is {here[name]} here"
        for name in _COMPARED
        if name in there and there[name] != here[name]
    )


def memory_of_devices() -> tuple[dict[str, Any], ...]:
    """{"device", "memory_bytes", "peak_bytes"} of each that TensorFlow computes on, CPU:0 first.

    Other parts of the CPU share the memory of CPU:0 and count with it. Asked in a process that has started
    TensorFlow.
    """
    found: list[dict[str, Any]] = [{"device": "CPU:0", **_of_process()}]
    for name in _others():
        memory = tf.config.experimental.get_memory_info(name)
        found.append({"device": name, "memory_bytes": int(memory["current"]), "peak_bytes": int(memory["peak"])})
    return tuple(found)


@cache
def _others() -> tuple[str, ...]:
    """They do not change once TensorFlow has started."""
    devices = [device for device in tf.config.list_logical_devices() if device.device_type != "CPU"]
    return tuple(device.name.removeprefix("/device:") for device in devices)


def _of_process() -> dict[str, int]:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"memory_bytes": resident, "peak_bytes": max(peak, resident)}
