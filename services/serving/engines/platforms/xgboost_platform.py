"""The platform `xgboost`: a version is `model.json` or `model.ubj`, as Booster.save_model writes them.

Signature `serving_default`: features, float32 [n, count of the model's features], NaN where a value is missing ->
predictions, float32, as Booster.predict gives them: [n], or [n, classes]. Needs the extra serving-xgboost.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xgboost

from services.serving.engines.platforms.loading import LoadRequest
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed
from services.serving.wire.replica_state import Signature, TensorSpec

FILE_NAMES = ("model.json", "model.ubj")
_INPUT, _OUTPUT = "features", "predictions"


class XGBoostModel:
    """A Booster; its in-place prediction is thread-safe."""

    reasons: Mapping[str, str] = {}

    def __init__(self, booster: xgboost.Booster) -> None:
        self._booster = booster
        self._width = booster.num_features()
        self.kind = f"xgboost {xgboost.__version__}, {booster.num_boosted_rounds()} rounds"
        self._classes = self._predict(np.zeros((1, self._width), np.float32)).shape[1:]
        self.signatures = {
            "serving_default": Signature(
                "tensorflow/serving/predict",
                inputs={_INPUT: TensorSpec("DT_FLOAT", (-1, self._width))},
                outputs={_OUTPUT: TensorSpec("DT_FLOAT", (-1, *self._classes))},
            )
        }

    def callable_signatures(self) -> tuple[str, ...]:
        return tuple(self.signatures)

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        """Raises RequestFailed, INVALID_ARGUMENT, for rows of another width than the model's."""
        features = inputs[_INPUT]
        if features.ndim != 2 or features.shape[1] != self._width:
            raise RequestFailed(
                Code.INVALID_ARGUMENT, f"{_INPUT} has shape {list(features.shape)}, expected [n, {self._width}]"
            )
        return {_OUTPUT: self._predict(features)}

    def _predict(self, features: np.ndarray) -> np.ndarray:
        if not len(features):
            return np.zeros((0, *self._classes), np.float32)
        try:
            found: np.ndarray = self._booster.inplace_predict(features, validate_features=False)
        except (xgboost.core.XGBoostError, ValueError) as error:
            raise RequestFailed(Code.INVALID_ARGUMENT, f"xgboost: {error}") from error
        return found


def load(request: LoadRequest) -> XGBoostModel:
    """Raises RequestFailed: there is no model file, or XGBoost cannot read it."""
    path = _model_file(request.directory)
    booster = xgboost.Booster({"nthread": request.options.engine.intra_op_threads})
    try:
        booster.load_model(path)
    except xgboost.core.XGBoostError as error:
        raise RequestFailed(Code.FAILED_PRECONDITION, f"xgboost cannot read {path.name}: {error}") from error
    return XGBoostModel(booster)


def _model_file(directory: Path) -> Path:
    for name in FILE_NAMES:
        if (directory / name).is_file():
            return directory / name
    raise RequestFailed(Code.FAILED_PRECONDITION, f"version {directory.name} has neither {' nor '.join(FILE_NAMES)}")
