"""What the devices of a round's process hold: of a GPU as TensorFlow counts it, of the CPU what the process has."""

import resource
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

_PAGE_BYTES = resource.getpagesize()


def memory_of_devices() -> tuple[dict[str, Any], ...]:
    """{"device", "memory_bytes", "peak_bytes"} of each that TensorFlow computes on, CPU:0 first.

    Other parts of the CPU share the memory of CPU:0 and are not told apart. Asked in a process that has started
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
