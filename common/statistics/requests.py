"""Statistics of what serving was asked: the sampled predictions that it writes into the event log."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.schema import Schema
from common.statistics.examples import of_examples
from common.statistics.sketches import FieldStatistics
from common.tensors import values_of
from protos.prediction_log_pb2 import PredictionLog
from protos.tfserving_pb2 import DataType, TensorProto

_EXAMPLES = "examples"
_TYPES = ("DT_FLOAT", "DT_DOUBLE", "DT_INT32", "DT_INT64", "DT_BOOL", "DT_STRING")
"""Other types (pictures) have no statistics."""
_MOST_VALUES = 4096
Array = NDArray[Any]


def of_predictions(records: Iterable[bytes], schema: Schema) -> dict[str, FieldStatistics]:
    """By input, of serialized PredictionLogs; requests of serialized Examples by the features that any of them has.
    Raises DecodeError, ValueError: a record is none, or a tensor's values and shape do not agree."""
    encoded = {feature.name for feature in schema.features if feature.dtype == "bytes"}
    columns: dict[str, list[Array]] = {}
    examples: list[bytes] = []
    for record in records:
        inputs = PredictionLog.FromString(record).predict_log.request.inputs
        if set(inputs) == {_EXAMPLES}:
            examples += inputs[_EXAMPLES].string_val
            continue
        for name, proto in inputs.items():
            array = array_of(proto)
            if array is not None and array.ndim and name not in encoded:
                columns.setdefault(name, []).append(array)
    found = {name: _of_column(arrays) for name, arrays in columns.items()}
    features = {feature.name for feature in schema.features} - found.keys()
    of_events = of_examples(examples, schema)
    return found | {
        name: statistics for name, statistics in of_events.items() if statistics.values and name in features
    }


def _of_column(arrays: Sequence[Array]) -> FieldStatistics:
    """Together; those of another kind than the first are left out."""
    kind = arrays[0].dtype.kind
    alike = [array for array in arrays if array.dtype.kind == kind]
    statistics = FieldStatistics(is_text=kind == "O")
    statistics.add_examples(sum(map(len, alike)), missing=0)
    flat = np.concatenate([array.ravel() for array in alike])
    if statistics.is_text:
        statistics.add_words(flat.tolist())
    else:
        statistics.add_numbers(flat)
    return statistics


def array_of(proto: TensorProto) -> Array | None:
    """None of other types, and of rows with more values than statistics take."""
    name, shape = DataType.Name(proto.dtype), [dim.size for dim in proto.tensor_shape.dim]
    if name not in _TYPES or int(np.prod(shape[1:])) > _MOST_VALUES:
        return None
    return values_of(name, proto).reshape(shape)
