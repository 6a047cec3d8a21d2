"""Lists of any length whose steps hold several values each, as JSON nests them and as a SequenceExample lists them.

The steps of a list of lists are its rows: each of any length, and the lengths are a separate list.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from common.counted import counted
from common.schema import Feature
from protos.example_pb2 import FeatureList


def flat_steps(value: list[Any], feature: Feature) -> list[Any]:
    """The values of all steps, in order. Raises ValueError: the rest of a sentence that begins with the feature's
    name."""
    step_shape = feature.raw_shape[1:]
    if not step_shape:
        return value
    flat: list[Any] = []
    for index, step in enumerate(value):
        if not isinstance(step, list):
            raise ValueError(f"holds one value in step {index}, expected a list of {feature.step_size}")
        values = _flat(step, len(step_shape))
        if len(values) != feature.step_size or not _is_nested_as(step, step_shape):
            nested = f" (flat, or nested as {list(step_shape)})" if len(step_shape) > 1 else ""
            raise ValueError(
                f"holds {counted(len(values), 'value')} in step {index}, expected {feature.step_size}{nested}"
            )
        flat += values
    return flat


def values_of_steps(steps: FeatureList, feature: Feature, *, is_in_context: bool) -> tuple[str | None, list[Any]]:
    """The kind of list that the steps of a SequenceExample hold (None without steps), and their values in order. Raises
    ValueError: the rest of a sentence that begins with the feature's name."""
    if is_in_context:
        raise ValueError("is in the context and in the feature lists, expected it in one of them")
    if not feature.is_variable_length:
        raise ValueError("is a list of steps, expected a feature of the context: the schema has a fixed shape")
    kinds = {step.WhichOneof("kind") for step in steps.feature}
    if feature.row_lengths_name:
        kinds.discard(None)
    if None in kinds or len(kinds) > 1:
        raise ValueError("holds steps of different kinds, or without values, expected one kind")
    kind = next(iter(kinds), None)
    values: list[Any] = []
    for index, step in enumerate(steps.feature):
        found = getattr(step, str(kind)).value if kind else []
        if len(found) != feature.step_size and not feature.row_lengths_name:
            raise ValueError(f"holds {counted(len(found), 'value')} in step {index}, expected {feature.step_size}")
        values += found
    return kind, values


def row_lengths_of_steps(steps: FeatureList) -> list[int]:
    """How many values each step holds."""
    kinds = [step.WhichOneof("kind") for step in steps.feature]
    return [len(getattr(step, kind).value) if kind else 0 for step, kind in zip(steps.feature, kinds, strict=True)]


def in_two_lists(event: Mapping[str, Any], nested: Sequence[Feature]) -> dict[str, Any]:
    """The event with each list of lists as its values and its row lengths; what came as these two stays. Raises
    ValueError: a row is no list; the sentence begins with the feature's name."""
    laid = dict(event)
    for feature in nested:
        rows = event.get(feature.name)
        if not isinstance(rows, list) or not any(isinstance(row, list) for row in rows):
            continue
        wrong = next((place for place, row in enumerate(rows) if not isinstance(row, list)), None)
        if wrong is not None:
            raise ValueError(f"{feature.name} holds one value in row {wrong}, expected a list")
        laid[feature.name] = [value for row in rows for value in row]
        laid[feature.row_lengths_name] = list(map(len, rows))
    return laid


def _flat(value: Any, depth: int) -> list[Any]:
    """Leaves down to `depth` lists in one another; a list further down is a leaf, which no type takes."""
    return [leaf for item in value for leaf in _flat(item, depth - 1)] if isinstance(value, list) and depth else [value]


def _is_nested_as(value: Any, shape: tuple[int | None, ...]) -> bool:
    """Flat, or nested as the shape."""
    if not any(isinstance(item, list) for item in value):
        return True
    return len(value) == shape[0] and all(isinstance(item, list) and _is_nested_as(item, shape[1:]) for item in value)
