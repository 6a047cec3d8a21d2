"""What a prediction client is asked and answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import InvalidInput
from headrace.client.tensor_values import Array


@dataclass(frozen=True)
class Target:
    """What is asked: a model, and one of its versions by number or label, or neither."""

    model: str
    version: int | None = None
    label: str | None = None
    signature_name: str = ""

    def __post_init__(self) -> None:
        if self.version is not None and self.label is not None:
            raise InvalidInput("predict takes a version or a label, not both")


@dataclass(frozen=True)
class Prediction:
    """An answer.

    Attributes:
        outputs: {output: array}; strings are object arrays of bytes.
        version: the version that answered; 0 where the server does not tell (TensorFlow Serving over REST).
        request_id: under which the server logged the request.
    """

    outputs: Mapping[str, Array]
    version: int
    request_id: str = ""

    def rows(self) -> list[Any]:
        """The answer row by row: {output: value}, or the bare value where there is one output; plain Python values.
        Raises InvalidInput: the outputs do not have a first dimension of one size."""
        sizes = {array.shape[:1] for array in self.outputs.values()}
        if len(sizes) != 1 or () in sizes:
            raise InvalidInput(f"the outputs have no rows: { ({n: a.shape for n, a in self.outputs.items()}) }")
        columns = {name: array.tolist() for name, array in self.outputs.items()}
        if len(columns) == 1:
            return list(next(iter(columns.values())))
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True)
class PendingPrediction:
    """A prediction that was submitted; `prediction_id` is all the server needs to know it again."""

    prediction_id: str
    target: Target
    output_filter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """One request as a transport sends it."""

    target: Target
    inputs: Any
    """{input: value}, or the value of the only input."""
    output_filter: tuple[str, ...]
    request_id: str
    deadline: float
    """time.monotonic() by which it must be answered."""
