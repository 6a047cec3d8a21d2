"""The platform `xgboost`: a version is `model.json` or `model.ubj`, as Booster.save_model writes them.

Signature `serving_default`: features, float32 [n, count of the model's features], NaN where a value is missing ->
predictions, float32, as Booster.predict gives them: [n], or [n, classes]. Needs the extra serving-xgboost.
"""

import json
import os
import select
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import xgboost

from common.counted import counted
from services.serving.engines.platforms.loading import LoadedModel, LoadRequest
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed, invalid
from services.serving.wire.replica_state import Signature, TensorSpec

FILE_NAMES = ("model.json", "model.ubj")
_TRY_SECONDS = 120.0
_INPUT, _OUTPUT = "features", "predictions"


class XGBoostModel(LoadedModel):
    """A Booster; its in-place prediction is thread-safe."""

    reasons: Mapping[str, str] = {}

    def __init__(self, booster: xgboost.Booster) -> None:
        self._booster = booster
        self._width = booster.num_features()
        self.kind = f"xgboost {xgboost.__version__}, {counted(booster.num_boosted_rounds(), 'round')}"
        self._classes = self._predict(np.zeros((1, self._width), np.float32)).shape[1:]
        self.signatures = {
            "serving_default": Signature(
                "tensorflow/serving/predict",
                inputs={_INPUT: TensorSpec("DT_FLOAT", (-1, self._width))},
                outputs={_OUTPUT: TensorSpec("DT_FLOAT", (-1, *self._classes))},
            )
        }

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        """Raises RequestFailed, INVALID_ARGUMENT, for rows of another width than the model's."""
        features = inputs[_INPUT]
        if features.ndim != 2 or features.shape[1] != self._width:
            raise invalid(f"{_INPUT} has shape {list(features.shape)}, expected [n, {self._width}]")
        return {_OUTPUT: self._predict(features)}

    def _predict(self, features: np.ndarray) -> np.ndarray:
        if not len(features):
            return np.zeros((0, *self._classes), np.float32)
        try:
            found: np.ndarray = self._booster.inplace_predict(features, validate_features=False)
        except (xgboost.core.XGBoostError, ValueError) as error:
            raise invalid(f"xgboost: {error}") from error
        return found


def load(request: LoadRequest) -> XGBoostModel:
    """Raises RequestFailed: there is no model file, XGBoost cannot read it, or it is damaged."""
    path = _model_file(request.directory)
    threads = request.options.engine.intra_op_threads
    if path.read_bytes()[:1] != b"{":
        raise RequestFailed(
            Code.FAILED_PRECONDITION,
            f"{path.name} is neither JSON nor UBJSON, as Booster.save_model writes them; a pickle is never opened",
        )
    reason = _tried(path)
    if reason:
        raise RequestFailed(Code.FAILED_PRECONDITION, f"xgboost cannot read {path.name}: {reason}")
    booster = xgboost.Booster({"nthread": threads})
    booster.load_model(path)
    return XGBoostModel(booster)


def _tried(path: Path) -> str:
    """Why it cannot be served; empty where it can. In a process of its own: XGBoost checks little of what it reads, and
    a damaged tree ends the process that walks it."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _report_fault(path, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as report:
        is_reported = bool(select.select([report], [], [], _TRY_SECONDS)[0])
        if not is_reported:
            os.kill(child, signal.SIGKILL)
        fault = report.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if not is_reported:
        return f"it is not read within {_TRY_SECONDS:g} s"
    if os.WIFSIGNALED(status):
        return f"the file is damaged: reading it ends XGBoost with signal {os.WTERMSIG(status)}"
    return fault


def _report_fault(path: Path, writer: int) -> NoReturn:
    fault = ""
    try:
        booster = xgboost.Booster({"nthread": 1})
        booster.load_model(path)
        fault = _fault_of(json.loads(bytes(booster.save_raw("json"))), booster.num_features())
    except Exception as error:  # damaged bytes raise what they like (UnicodeDecodeError, KeyError)
        lines = str(error).splitlines() or [""]
        fault = f"{type(error).__name__}: {lines[0].rpartition('] ')[2][:300]}"
    finally:
        os.write(writer, fault.encode())
        os._exit(0)


def _fault_of(model: Mapping[str, Any], width: int) -> str:
    """Of its trees: every node is reached once from the root, and uses a feature that exists."""
    boosted = model["learner"]["gradient_booster"]
    trees = boosted.get("gbtree", boosted)["model"].get("trees", ())  # dart has its trees below gbtree, gblinear none
    for number, tree in enumerate(trees):
        left, right, features = tree["left_children"], tree["right_children"], tree["split_indices"]
        seen, waiting = set(), [0]
        while waiting:
            node = waiting.pop()
            if node in seen or not 0 <= node < len(left):
                return f"the file is damaged: node {node} of tree {number} is none of its {len(left)}, or is met twice"
            seen.add(node)
            if left[node] == -1:
                continue
            if not 0 <= features[node] < width:
                return f"the file is damaged: tree {number} uses feature {features[node]} of {width}"
            waiting += (left[node], right[node])
    return ""


def _model_file(directory: Path) -> Path:
    for name in FILE_NAMES:
        if (directory / name).is_file():
            return directory / name
    raise RequestFailed(Code.FAILED_PRECONDITION, f"version {directory.name} has neither {' nor '.join(FILE_NAMES)}")
