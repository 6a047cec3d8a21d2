"""Which versions run with oneDNN's operations, and which with TensorFlow's own (Eigen's).

oneDNN makes a primitive per operation and batch size, at the first call with that size: a third of a millisecond and
more each, and 14 MB for a small dense network once it has seen batches of 1 to 64. Called, its dense layers take up to
twice the time of Eigen's at one row and the same at many. Convolutions and attention it computes up to 1.8 times as
fast. TensorFlow chooses once per process, while it is imported, so a zygote has either; see zygote.py.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
"""TensorFlow's own switch. Set by the operator, it holds for every version."""
_MARKS = (
    b"Conv2D", b"Conv3D", b"DepthwiseConv2dNative", b"BatchMatMul", b"Einsum", b"Quantized",
    # An attribute T (AttrValue.type) that is bfloat16 or float16; Eigen has no fast product of those.
    b"\x0a\x01T\x12\x02\x30\x0e", b"\x0a\x01T\x12\x02\x30\x13",
)  # fmt: skip


def is_on(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the operator, or the zygote, has switched it on; a process without the variable is off here, although
    TensorFlow itself would then use oneDNN."""
    return environment.get(VARIABLE, "0").lower() in ("1", "true")


def is_faster_for(directory: Path) -> bool:
    """Whether the SavedModel in the folder names operations that oneDNN computes faster; False without a graph."""
    try:
        with (
            (directory / "saved_model.pb").open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text,
        ):
            return any(text.find(mark) >= 0 for mark in _MARKS)
    except (OSError, ValueError):  # ValueError: the file is empty
        return False
