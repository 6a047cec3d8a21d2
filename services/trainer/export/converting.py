"""Writes a SavedModel's `serving_default` in other formats and asks each of them: `python -m ... WORK_DIR`.

A process of its own: converters take much memory, may crash, and import libraries that training must not.

    WORK_DIR/question.json           {"saved_model": folder, "target": folder, "formats": [...]}
    WORK_DIR/rows.npz                the inputs of `serving_default` by name, as many rows as there are
    WORK_DIR/answers.json            {format: {"problem": "", "note": ""}}, each a sentence
    WORK_DIR/outputs/<format>.npz    what it answers to the rows, by output
    target/<format>/                 the files: model.tflite | frozen_graph.pb and tensors.json | model.onnx
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import tensorflow as tf

from services.trainer.export.arrays import Arrays, read_arrays, write_arrays

Answer = Callable[[Arrays], dict[str, NDArray[Any]]]
SIGNATURE = "serving_default"
_CALIBRATION_ROWS = 200
_SMALLER = {"tflite_float16": "float16", "tflite_dynamic": "int8", "tflite_int8": "int8"}
"""Of what type weights are in the quantised formats."""
_OPSET = 18
_LONGEST_PROBLEM = 600


class NotMadeError(Exception):
    """The format cannot be made of this model; the message says why."""


def make(name: str, saved_model: Path, target: Path, rows: Arrays, calibration: str = "events") -> Answer:
    """Writes one format below `target` and opens what was written.

    Args:
        calibration: of tflite_int8; where it is made_up, `rows` say names, shapes and types alone.

    Raises:
        NotMadeError: it cannot be made, or what was made cannot be opened.
    """
    target.mkdir(parents=True)
    try:
        if name.startswith("tflite"):
            return _tflite(
                name, saved_model, target / "model.tflite", _made_up(rows) if calibration == "made_up" else rows
            )
        return {"frozen": _frozen, "onnx": _onnx}[name](saved_model, target)
    except NotMadeError:
        raise
    except ImportError as error:
        raise NotMadeError(f"{error}; pip install headrace[trainer-formats]") from error
    except Exception as error:  # converters raise whatever their handlers of single operations raise
        raise NotMadeError(
            _unsupported(str(error)) or f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def _unsupported(message: str) -> str:
    """The operations that LiteRT's converter names ("TF Select ops: AsString, Foo", "Custom ops: Bar"), or ONNX's."""
    onnx = sorted(set(re.findall(r"No Op registered for (\w+)", message)))
    if onnx:
        return f"ONNX has no operation for {', '.join(onnx)}"
    lines = re.findall(r"^\s*(?:Flex|TF Select|Custom) ops: (.+)$", message, re.MULTILINE)
    names = sorted({name.strip() for line in lines for name in line.split(",") if name.strip()})
    return f"LiteRT has no operation for {', '.join(names)}" if names else ""


def _tflite(name: str, saved_model: Path, path: Path, rows: Arrays) -> Answer:
    from ai_edge_litert.interpreter import Interpreter

    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved_model), signature_keys=[SIGNATURE])
    if name != "tflite":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if name == "tflite_float16":
        converter.target_spec.supported_types = [tf.float16]
    if name == "tflite_int8":
        converter.representative_dataset = lambda: _single_rows(rows)
    path.write_bytes(converter.convert())
    runner = Interpreter(str(path), num_threads=1).get_signature_runner(SIGNATURE)
    taken = set(runner.get_input_details())

    def answer(inputs: Arrays) -> dict[str, NDArray[Any]]:
        return {
            key: np.array(value) for key, value in runner(**{k: v for k, v in inputs.items() if k in taken}).items()
        }

    return answer


def _note(name: str, folder: Path) -> str:
    """What a person should know of a file that was made."""
    if name not in _SMALLER:
        return ""
    from ai_edge_litert.interpreter import Interpreter

    types = {np.dtype(tensor["dtype"]) for tensor in Interpreter(str(folder / "model.tflite")).get_tensor_details()}
    if np.dtype(_SMALLER[name]) in types:
        return ""
    return f"no weight is {_SMALLER[name]}: LiteRT leaves tensors of up to 1,024 values as they are, so it is tflite"


def _single_rows(rows: Arrays) -> Iterator[tuple[str, dict[str, NDArray[Any]]]]:
    count = min(_CALIBRATION_ROWS, *(len(value) for value in rows.values()))
    for row in range(count):
        yield SIGNATURE, {name: value[row : row + 1] for name, value in rows.items()}


def _made_up(rows: Arrays) -> Arrays:
    """Floats drawn from a normal distribution, and of other types what is empty."""
    draw = np.random.default_rng(7)
    return {
        name: draw.standard_normal((_CALIBRATION_ROWS, *value.shape[1:])).astype(value.dtype)
        if value.dtype.kind == "f"
        else np.full((_CALIBRATION_ROWS, *value.shape[1:]), b"" if value.dtype == object else 0, value.dtype)
        for name, value in rows.items()
    }


def _frozen(saved_model: Path, target: Path) -> Answer:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    loaded = tf.saved_model.load(str(saved_model))  # its variables live as long as it does
    function = loaded.signatures[SIGNATURE]
    outputs = sorted(function.structured_outputs)
    frozen = convert_variables_to_constants_v2(function, lower_control_flow=False)
    graph = frozen.graph.as_graph_def()
    left = sorted({node.op for node in graph.node if node.op in ("VarHandleOp", "VariableV2", "HashTableV2")})
    if left:
        raise NotMadeError(
            f"a graph of constants cannot hold {', '.join(left)}: a table or variable stays outside of it"
        )
    inputs = {tensor.name.partition(":")[0]: tensor.name for tensor in frozen.inputs}
    tensors = {"inputs": inputs, "outputs": dict(zip(outputs, (t.name for t in frozen.outputs), strict=True))}
    (target / "frozen_graph.pb").write_bytes(graph.SerializeToString(deterministic=True))
    (target / "tensors.json").write_text(json.dumps(tensors, sort_keys=True, indent=1) + "\n")

    read = tf.compat.v1.GraphDef.FromString((target / "frozen_graph.pb").read_bytes())
    return lambda rows: answers_of(read, tensors, rows)


def answers_of(graph_def: Any, tensors: Mapping[str, Mapping[str, str]], rows: Arrays) -> dict[str, NDArray[Any]]:
    """What a graph of constants answers. `tensors`: as tensors.json has them; a signature's placeholder is named after
    its input, sometimes behind the signature's name."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        tf.import_graph_def(graph_def, name="")
        feed = {
            tensor: rows[name if name in rows else name.removeprefix(f"{SIGNATURE}_")]
            for name, tensor in tensors["inputs"].items()
        }
        return {name: np.asarray(value) for name, value in session.run(tensors["outputs"], feed).items()}


def _onnx(saved_model: Path, target: Path) -> Answer:
    import onnxruntime
    from tf2onnx import optimizer, tf_loader, tfonnx

    graph_def, inputs, outputs, tables, names = tf_loader.from_saved_model(
        str(saved_model), None, None, tag=tf.saved_model.SERVING, signatures=[SIGNATURE],
        return_initialized_tables=True, return_tensors_to_rename=True,
    )  # fmt: skip
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        converted = tfonnx.process_tf_graph(
            graph, opset=_OPSET, input_names=inputs, output_names=outputs, initialized_tables=tables,
            tensors_to_rename=names,
        )  # fmt: skip
        model = optimizer.optimize_graph(converted).make_model("converted from a SavedModel")
    path = target / "model.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    taken = {tensor.name for tensor in session.get_inputs()}
    answered = [tensor.name for tensor in session.get_outputs()]

    def answer(rows: Arrays) -> dict[str, NDArray[Any]]:
        feed = {name: value.astype(str) if value.dtype == object else value for name, value in rows.items()}
        found = session.run(answered, {name: value for name, value in feed.items() if name in taken})
        return dict(zip(answered, found, strict=True))

    return answer


def _saved_model(saved_model: Path) -> Answer:
    loaded = tf.saved_model.load(str(saved_model))

    def answer(rows: Arrays) -> dict[str, NDArray[Any]]:
        outputs = loaded.signatures[SIGNATURE](**{name: tf.constant(value) for name, value in rows.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return answer


def main() -> None:
    work_dir = Path(sys.argv[1])
    question = json.loads((work_dir / "question.json").read_text())
    rows = read_arrays(work_dir / "rows.npz")
    saved_model, target = Path(question["saved_model"]), Path(question["target"])
    (work_dir / "outputs").mkdir()
    write_arrays(work_dir / "outputs" / "saved_model.npz", _saved_model(saved_model)(rows))
    results: dict[str, dict[str, Any]] = {}
    for name in question["formats"]:
        try:
            outputs = make(name, saved_model, target / name, rows, question["calibration"])(rows)
            write_arrays(work_dir / "outputs" / f"{name}.npz", outputs)
            results[name] = {"problem": "", "note": _note(name, target / name)}
        except NotMadeError as error:
            results[name] = {"problem": str(error)[:_LONGEST_PROBLEM]}
        except Exception as error:  # a runtime's own errors, when the file that it opened does not run
            results[name] = {"problem": f"it does not run: {' '.join(str(error).split())}"[:_LONGEST_PROBLEM]}
        (work_dir / "answers.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
