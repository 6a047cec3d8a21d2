"""Logged requests as the events that they were, for the code that trains."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.schema import PADDING, Schema
from protos import example_pb2

_EXAMPLES = "examples"


def examples_of(inputs: Iterable[Mapping[str, NDArray[Any]]], schema: Schema) -> list[bytes]:
    """A serialized tf.train.Example for each row; what fills up a list is left out, and so is what is no feature."""
    found = list[bytes]()
    for request in inputs:
        if set(request) == {_EXAMPLES}:
            found += [bytes(example) for example in request[_EXAMPLES].ravel().tolist()]
            continue
        known = {feature.name: feature for feature in schema.features if feature.name in request}
        for row in range(max((len(request[name]) for name in known), default=0)):
            example = example_pb2.Example()
            for name, feature in known.items():
                values = np.asarray(request[name][row]).ravel()
                _add(example.features.feature[name], feature.dtype, values, is_list=feature.is_variable_length)
            found.append(example.SerializeToString(deterministic=True))
    return found


def _add(into: example_pb2.Feature, dtype: str, values: NDArray[Any], *, is_list: bool) -> None:
    filler = PADDING[dtype]
    if dtype in ("string", "bytes"):
        words = [value if isinstance(value, bytes) else str(value).encode() for value in values.tolist()]
        into.bytes_list.value.extend(word for word in words if not is_list or word != str(filler).encode())
    elif dtype == "float32":
        into.float_list.value.extend(values[~np.isnan(values)] if is_list else values)
    else:
        into.int64_list.value.extend(values[values != filler] if is_list else values)
