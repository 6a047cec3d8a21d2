"""What is in a .tflite file, and how much of it an accelerator's operations cover.

question   {"model": a .tflite file, "target": "" or "nnapi", "strip": "" or a file to write}
answer     {"operations": {name: times}, "tensors": [{"name", "dtype", "shape"}], "signatures": {name: {"inputs",
            "outputs"}}, "bytes": n}, with a target also {"as_of", "covered": {operation: level}, "missing": [...]};
            where it was packed again, without the names of its tensors, {"stripped_bytes": n}
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.trainer.export.converting import NotMadeError

_TABLES = {"nnapi": Path(__file__).with_name("nnapi.tsv")}


def describe(question: Mapping[str, Any]) -> dict[str, Any]:
    from ai_edge_litert.interpreter import Interpreter

    path = Path(question["model"])
    interpreter = Interpreter(str(path), num_threads=1)
    operations = Counter(
        operation["op_name"] for operation in interpreter._get_ops_details() if operation["op_name"] != "DELEGATE"
    )
    tensors = [
        {"name": tensor["name"], "dtype": tensor["dtype"].__name__, "shape": tensor["shape_signature"].tolist()}
        for tensor in interpreter.get_tensor_details()
    ]
    found = {
        "operations": dict(sorted(operations.items())), "tensors": tensors,
        "signatures": interpreter.get_signature_list(), "bytes": path.stat().st_size,
    }  # fmt: skip
    if question["strip"]:
        found |= {"stripped_bytes": strip(path, Path(question["strip"]))}
    return found | (coverage(question["target"], sorted(operations)) if question["target"] else {})


def strip(source: Path, target: Path) -> int:
    """Packs the file again without names of tensors and descriptions; how many bytes it then has. Raises ValueError: it
    does not run, or answers otherwise."""
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model(str(source))
    signatures = model.signatureDefs
    flatbuffer_utils.strip_strings(model)
    model.signatureDefs = signatures  # by which it is called and served
    packed = bytes(flatbuffer_utils.convert_object_to_bytearray(model))
    expected, got = _answers(source.read_bytes()), _answers(packed)
    if not all(np.array_equal(first, second) for first, second in zip(expected, got, strict=True)):
        raise ValueError("the file that was packed again answers otherwise")
    target.write_bytes(packed)
    return len(packed)


def _answers(content: bytes) -> list[NDArray[Any]]:
    """Of every output, to inputs drawn from a seed."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    draw = np.random.default_rng(7)
    for tensor in interpreter.get_input_details():
        interpreter.set_tensor(tensor["index"], draw.uniform(0, 4, tensor["shape"]).astype(tensor["dtype"]))
    interpreter.invoke()
    return [interpreter.get_tensor(tensor["index"]) for tensor in interpreter.get_output_details()]


def coverage(target: str, operations: list[str]) -> dict[str, Any]:
    """By the dated table of the target; nothing is run on a device. Raises NotMadeError: there is no such table."""
    if target not in _TABLES:
        raise NotMadeError(f"there is no table of {target}, expected {', '.join(_TABLES)}")
    head, *lines = _TABLES[target].read_text().splitlines()
    levels = {name: int(level) for name, level in (line.split("\t") for line in lines)}
    return {
        "as_of": head.removeprefix("# "),
        "covered": {name: levels[name] for name in operations if name in levels},
        "missing": [name for name in operations if name not in levels],
    }
