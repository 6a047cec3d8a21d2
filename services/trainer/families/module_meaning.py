"""What rows of a module's variables mean: which input's column each of them takes.

Known of a functional or Sequential network, for layers that its inputs reach unmixed: Dense kernels, the numbers that
BatchNormalization, LayerNormalization and Normalization keep per column, rows of an Embedding. All other variables,
and those of a subclassed network, are carried by path and shape. Of an input that is a feature of the definition's
section the columns and rows mean what an estimator's would (common/definition/identity.py).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from common.definition.identity import SPARE, Axis, Run, VariableMeaning
from services.trainer.keras_internals import kernel_of, nodes_of, table_of

_KEEPS_COLUMNS = frozenset(
    {"Activation", "Cast", "Dropout", "GaussianDropout", "GaussianNoise", "Identity", "LeakyReLU", "ReLU", "Rescaling"}
)
"""Of layers and of keras.ops, beside those of _PER_COLUMN: number k of what goes in becomes number k."""
_INPUT = "column"
_RESHAPES = frozenset({"ExpandDims", "Flatten", "Reshape", "Squeeze"})
_PER_COLUMN = (keras.layers.BatchNormalization, keras.layers.LayerNormalization, keras.layers.Normalization)


def meaning_of(
    network: keras.Model, columns: Mapping[str, Axis] | None = None, rows: Mapping[str, Axis] | None = None
) -> dict[str, VariableMeaning]:
    """By path of the variable. `columns` and `rows`: of features of the section, as identity.section_of says them."""
    nodes = nodes_of(network)
    if nodes is None:
        return {}
    axes, calls = dict[int, Axis](), dict[int, int]()
    for node in nodes:
        calls[id(node.operation)] = calls.get(id(node.operation), 0) + 1
    found = dict[str, VariableMeaning]()
    for node in nodes:
        given = [axes.get(id(tensor)) for tensor in node.input_tensors]
        for tensor in node.outputs if node.is_input else ():
            axes[id(tensor)] = (columns or {}).get(tensor.name) or _columns_of(tensor)
        if not given or None in given:
            continue
        known = [axis for axis in given if axis is not None]
        if calls[id(node.operation)] == 1:  # a layer that is called twice has rows of two meanings
            found |= dict(_variables(node.operation, known[0], rows or {}))
        axis = _passed_on(node, known)
        if axis is not None:
            axes[id(node.outputs[0])] = axis
    return found


def _columns_of(tensor: keras.KerasTensor) -> Axis:
    """The last axis of an input; of [n] one column. Of any length: 0."""
    count = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    return (Run((_INPUT, tensor.name), count or 0),)


def _width(axis: Axis) -> int:
    return sum(run.count for run in axis)


def _passed_on(node: Any, given: list[Axis]) -> Axis | None:
    """The columns of what the operation gives; None where it mixes them."""
    name, before, after = type(node.operation).__name__, node.input_tensors[0].shape, node.outputs[0].shape
    if name == "Concatenate":
        is_last = node.operation.axis in (-1, len(after) - 1)
        return tuple(run for axis in given for run in axis) if is_last else None
    if len(given) > 1:
        return None
    (axis,) = given
    if name in _KEEPS_COLUMNS:
        return axis
    if isinstance(node.operation, _PER_COLUMN):
        return axis if _axis(node.operation) in ((-1,), (len(before) - 1,)) else None
    if name not in _RESHAPES or len(after) < 2 or None in after[1:]:
        return None
    if len(axis) == 1 and None not in before[1:] and len(after) == 2:
        return (Run(axis[0].label, after[1]),)  # one input: its numbers in their order
    return axis if after[-1] == _width(axis) and (len(before) <= 2 or before[-1] == after[-1]) else None


def _axis(layer: Any) -> tuple[int, ...]:
    return tuple(layer.axis) if isinstance(layer.axis, list | tuple) else (layer.axis,)


def _variables(layer: Any, axis: Axis, rows: Mapping[str, Axis]) -> Iterator[tuple[str, VariableMeaning]]:
    is_kernel = isinstance(layer, keras.layers.Dense)
    found = list[tuple[Any, tuple[Axis, ...]]]()
    if is_kernel:
        found.append((kernel_of(layer), (axis, (Run(("units", layer.name, str(layer.units)), layer.units),))))
    elif isinstance(layer, _PER_COLUMN):
        found += [(variable, (axis,)) for variable in layer.variables]
    elif isinstance(layer, keras.layers.Embedding) and len(axis) == 1 and axis[0].label[0] == _INPUT:
        name, numbers = axis[0].label[1], Run(("dimension",), layer.output_dim)
        ids = rows.get(name) or (Run(("id", name), layer.input_dim),)
        spare = layer.input_dim - _width(ids)
        ids = (*ids, Run(SPARE, spare)) if spare > 0 else ids
        found.append((table_of(layer), (ids, (numbers,))))
    for variable, axes in found:
        meaning = VariableMeaning(axes, is_kernel=is_kernel)
        if meaning.shape == tuple(variable.shape):
            yield variable.path, meaning
