"""A user's Keras model: what build_model returns, checked, and how it is called.

The module named by the definition has model_fn (model_fn.py), or

    build_model(schema, parameters) -> keras.Model     functional, Sequential or subclassed; inputs named after features
                                                       of the stream or of the section `features`; outputs: logits (no
                                                       softmax or sigmoid at the end) or predictions, as
                                                       common/definition/heads.py says by task
    inputs                                             for a subclassed model, which is called with {name: tensor}: the
                                                       names; every feature of the stream where it is not there
    loss(labels, outputs) -> Tensor                    optional: one loss per example, shape [n]; of several heads both
                                                       are dicts by head, and so is what it returns
    loss = {head: function}                            the same, a function per head; the others keep model.yaml's
    metrics(labels, outputs) -> {name: number}         optional: numpy arrays in, measured on the held-out slice; of
                                                       several heads dicts by head
    adapt(network, dataset)                            optional: fits preprocessing layers in the first round to a
                                                       tf.data.Dataset of {input: batch} of its trained examples

A feature of any length comes as [n, longest of the batch, ...], filled up with the empty word, -1 or 0.0. Its mask and
its length are inputs too (module_inputs.py): a model whose answer shall not depend on the others of a batch takes one.

A model with several outputs names them (a dict, or layers' names), one after each head (a single head: after itself or
its label): these are taught and measured, the others are served under their names, and loss() gets the dict. What the
model compiles is used or refused (compiled.py). Files of one definition import each other relatively
(`from . import blocks`); other files lie beside them (`pathlib.Path(__file__).with_name("vocab.txt")`).
"""

import copy
import re
from collections.abc import Mapping
from typing import Any

import keras

from common.definition.features import Crossed
from common.definition.heads import Head
from common.definition.model import Definition
from common.schema import Schema
from common.suggestions import did_you_mean
from services.trainer.families import module_inputs
from services.trainer.families.heads import VECTORS
from services.trainer.families.model_fn import build_from_model_fn
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.families.user_module import UserModule
from services.trainer.families.wiring import Wiring, wiring_of


def build_from_module(module: UserModule, schema: Schema, definition: Definition) -> tuple[keras.Model, Wiring]:
    """Calls build_model, checks what it returns, and finds out how it is called. Raises DefinitionFailedError: it
    raises, or returns something that is not the model described above."""
    path = str(definition.module)
    if module.model_fn is not None:
        built, wiring = build_from_model_fn(module.model_fn, schema, definition)
        for head in definition.heads:
            _check_output(wiring, head, path)
        return built, wiring
    assert module.build_model is not None
    with blame_definition(path):
        network = module.build_model(schema, copy.deepcopy(dict(definition.module_parameters)))
    if not isinstance(network, keras.Model):
        raise DefinitionFailedError(f"{path}: build_model returned {type(network).__name__}, expected a keras.Model")
    inputs, outputs, names = _connected(network, module, schema, definition)
    _check_inputs(keras.tree.flatten(inputs), schema, definition)
    wiring = wiring_of(inputs, outputs, names, _taught_outputs(names, definition, path))
    for head in definition.heads:
        _check_output(wiring, head, path)
    return network, wiring


def _connected(
    network: keras.Model, module: UserModule, schema: Schema, definition: Definition
) -> tuple[Any, Any, tuple[str, ...]]:
    """Symbolic inputs and outputs, and the outputs' names. A subclassed model is called once to find out."""
    path = str(definition.module)
    is_sequential = isinstance(network, keras.Sequential)
    try:
        inputs, outputs = (network.inputs[0], network.outputs[0]) if is_sequential else (network.input, network.output)
    except (AttributeError, ValueError, TypeError, IndexError):
        inputs = None
    if inputs is None:
        if is_sequential:
            raise DefinitionFailedError(
                f"{path}: the Sequential model has no inputs yet; begin it with keras.Input(shape, name=FEATURE)"
            )
        every = [feature.name for feature in schema.features if not feature.rows_of]
        names = module.inputs or tuple(dict.fromkeys([*every, *definition.features]))
        inputs = {name: _symbolic(schema, name, definition) for name in names}
        with blame_definition(path, doing="calling the model with {name: tensor}"):
            outputs = network(inputs)
    count = len(keras.tree.flatten(outputs))
    if isinstance(outputs, Mapping):
        return inputs, dict(outputs), _names_within(outputs)
    if isinstance(outputs, list | tuple) and hasattr(network, "output_names"):
        return inputs, outputs, tuple(network.output_names)
    if count != 1:
        raise DefinitionFailedError(f"{path}: the model returns {count} outputs without names; return a dict of them")
    return inputs, outputs, ("outputs",)


def _names_within(outputs: Any, place: str = "") -> tuple[str, ...]:
    """The paths of an output's tensors, in the order in which keras.tree flattens them: `kind`, `extra/hidden`."""
    if isinstance(outputs, Mapping):
        items = [(name, outputs[name]) for name in sorted(outputs)]
    elif isinstance(outputs, list | tuple):
        items = [(str(number), value) for number, value in enumerate(outputs)]
    else:
        return (place,)
    return tuple(
        path for name, value in items for path in _names_within(value, f"{place}/{name}" if place else str(name))
    )


def _symbolic(schema: Schema, name: str, definition: Definition) -> keras.KerasTensor:
    if name in definition.features:
        return module_inputs.of_section(definition.features, name, schema)
    if module_inputs.feature_behind(schema, name) is None:
        known = ", ".join(feature.name for feature in schema.features)
        section = f"; nor of the section features: {', '.join(definition.features)}" if definition.features else ""
        meant = did_you_mean([name], [*(feature.name for feature in schema.features), *definition.features])
        if re.fullmatch(r"(keras_tensor|input(_layer)?)(_\d+)?", name):
            meant = "; an input has the name of its feature: keras.Input(shape, name=FEATURE)"
        place = f"{definition.module}: input {name!r}"
        raise DefinitionFailedError(f"{place} is no feature of the stream: {known}{section}{meant}")
    return module_inputs.symbolic(schema, name)


def _taught_outputs(names: tuple[str, ...], definition: Definition, path: str) -> dict[str, str]:
    """The output of each head: that of its name; of a single head also that of its label's name, or the only output."""
    heads = definition.heads
    if len(heads) == 1:
        head = heads[0]
        found = names[0] if len(names) == 1 else next((name for name in (head.name, head.label) if name in names), None)
        if found is None:
            raise DefinitionFailedError(
                f"{path}: the model has outputs {', '.join(names)}; name the taught output after the label, "
                f"{head.label}"
            )
        return {head.name: found}
    without = [head.name for head in heads if head.name not in names]
    if without:
        raise DefinitionFailedError(
            f"{path}: the model's outputs are {', '.join(names)}; none is named after head {', '.join(without)}; "
            f"return a dict with an output for each head: {', '.join(head.name for head in heads)}"
        )
    return {head.name: head.name for head in heads}


def _check_inputs(inputs: list[keras.KerasTensor], schema: Schema, definition: Definition) -> None:
    path, section = definition.module, definition.features
    for tensor in inputs:
        expected = _symbolic(schema, tensor.name, definition)
        feature = None if tensor.name in section else module_inputs.feature_behind(schema, tensor.name)
        if module_inputs.is_list(tensor) and not (
            feature and feature.is_variable_length and feature.name == tensor.name and len(feature.raw_shape) == 1
        ):
            raise DefinitionFailedError(
                f"{path}: input {tensor.name} is ragged or sparse, and only a feature of shape [null] is a list, "
                f"and one of shape [null, null]"
            )
        if not module_inputs.fits(tensor, expected):
            origin = "the section's" if tensor.name in section else "the stream's"
            raise DefinitionFailedError(
                f"{path}: input {tensor.name} is {tensor.dtype} {tuple(tensor.shape[1:])}, "
                f"{origin} feature is {expected.dtype} {tuple(expected.shape[1:])}"
            )
    taken = {tensor.name for tensor in inputs}
    taken |= {member for name in taken if isinstance(spec := section.get(name), Crossed) for member in spec.of}
    if unused := [name for name in section if name not in taken]:
        raise DefinitionFailedError(
            f"{path}: the section features has {', '.join(unused)}, and the network has no input of that name"
        )


def _check_output(wiring: Wiring, head: Head, path: str) -> None:
    shape = wiring.shape_of(head.name)
    of_head = f" of head {head.name}" if len(wiring.taught) > 1 else ""
    is_vector = len(shape) == 2 and isinstance(shape[1], int) and shape[1] > (1 if head.task == "multiclass" else 0)
    if not (is_vector if head.task in VECTORS else shape in ((None,), (None, 1))):
        expected = {"multiclass": "[n, classes]", "quantiles": "[n, levels]"}.get(head.task, "[n, k]")
        expected = expected if head.task in VECTORS else "[n] or [n, 1]"
        raise DefinitionFailedError(
            f"{path}: the output's shape{of_head} is {shape}, a {head.task} model gives {expected}"
        )
