"""A platform of thirty lines: a version is a JSON file, `table.json`, and a prediction looks keys up in it.

    {"default": 0.0, "table": {"JFK": 12.5, "LGA": 9.0}}

Signature `serving_default`: keys, strings [n] -> values, float32 [n].
"""

import json
from collections.abc import Mapping

import numpy as np

from services.serving.engines.platforms.loading import LoadRequest
from services.serving.wire.prediction import Arrays
from services.serving.wire.replica_state import Signature, TensorSpec


class LookupTable:
    """Never written to once it is made, so that any thread may ask."""

    kind = "lookup table"
    reasons: Mapping[str, str] = {}

    def __init__(self, table: Mapping[str, float], default: float) -> None:
        self._table = {key.encode(): float(value) for key, value in table.items()}
        self._default = float(default)
        rows = (-1,)
        self.signatures = {
            "serving_default": Signature(
                "tensorflow/serving/predict",
                inputs={"keys": TensorSpec("DT_STRING", rows)},
                outputs={"values": TensorSpec("DT_FLOAT", rows)},
            )
        }

    def callable_signatures(self) -> tuple[str, ...]:
        return tuple(self.signatures)

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        keys = inputs["keys"]
        values = np.array([self._table.get(key, self._default) for key in keys.ravel()], np.float32)
        return {"values": values.reshape(keys.shape)}


def load(request: LoadRequest) -> LookupTable:
    """What goes wrong in here fails the version's load, with the error's words in the status."""
    document = json.loads((request.directory / "table.json").read_text())
    return LookupTable(document["table"], document["default"])
