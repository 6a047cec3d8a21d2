"""What is in a .tflite file, and how much of it an accelerator's operations cover.

question   {"model": a .tflite file, "target": "" or "nnapi"}
answer     {"operations": {name: times}, "tensors": [{"name", "dtype", "shape"}], "signatures": {name: {"inputs",
            "outputs"}}, "bytes": n}, with a target also {"as_of", "covered": {operation: level}, "missing": [...]}
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import InvalidInput

_TABLES = {"nnapi": Path(__file__).with_name("nnapi.tsv")}


def describe(question: Mapping[str, Any]) -> dict[str, Any]:
    from ai_edge_litert.interpreter import Interpreter

    path = Path(question["model"])
    interpreter = Interpreter(str(path), num_threads=1)
    operations = Counter(one["op_name"] for one in interpreter._get_ops_details() if one["op_name"] != "DELEGATE")
    tensors = [
        {"name": one["name"], "dtype": one["dtype"].__name__, "shape": one["shape_signature"].tolist()}
        for one in interpreter.get_tensor_details()
    ]
    found = {
        "operations": dict(sorted(operations.items())), "tensors": tensors,
        "signatures": interpreter.get_signature_list(), "bytes": path.stat().st_size,
    }  # fmt: skip
    return found | (coverage(question["target"], sorted(operations)) if question["target"] else {})


def coverage(target: str, operations: list[str]) -> dict[str, Any]:
    """By the dated table of the target; nothing is run on a device.

    Raises:
        InvalidInput: there is no such table.
    """
    if target not in _TABLES:
        raise InvalidInput(f"there is no table of {target}, expected {', '.join(_TABLES)}")
    head, *lines = _TABLES[target].read_text().splitlines()
    levels = {name: int(level) for name, level in (line.split("\t") for line in lines)}
    return {
        "as_of": head.removeprefix("# "),
        "covered": {name: levels[name] for name in operations if name in levels},
        "missing": [name for name in operations if name not in levels],
    }
