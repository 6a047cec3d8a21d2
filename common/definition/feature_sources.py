"""Whether the features of a definition fit the raw features of its stream (names, dtypes and shapes), and which of them
a module may take as inputs, beside the stream's own.

A module gets numeric features as float32 [n, columns], all others as int32 ids [n, values] with -1 where there is none.
What is made of ids, and what has any length, is for its own layers.
"""

import math
from collections.abc import Collection, Mapping

from common.definition.features import (
    Bucketized,
    Crossed,
    Embedding,
    FeatureSpec,
    Hashed,
    Identity,
    Indicator,
    Numeric,
    Quantiles,
    Text,
    Vocabulary,
)
from common.errors import InvalidInput
from common.schema import Feature, Schema
from common.suggestions import did_you_mean


def check_against_schema(specs: Mapping[str, FeatureSpec], schema: Schema, *, sequences: Collection[str] = ()) -> None:
    """Raises InvalidInput when a raw feature is missing from the schema or has a dtype or shape that does not fit.

    Args:
        sequences: features whose values are steps of a list.
    """
    raw = {feature.name: feature for feature in schema.features}
    for spec in specs.values():
        if isinstance(spec, Crossed):
            for name in spec.of:
                member = specs.get(name)
                _check_raw(spec, raw, name if member is None else str(member.of), in_specs=member is not None)
            if len(lists := lists_of(spec, specs, schema)) > 2:
                raise InvalidInput(f"feature {spec.name}: two lists are crossed at most, and of has {', '.join(lists)}")
            continue
        if isinstance(spec, Embedding | Indicator):
            _check_weights(spec, specs[spec.of], raw)
            if spec.weights and lists_of(specs[spec.of], specs, schema) and isinstance(specs[spec.of], Crossed):
                raise InvalidInput(f"feature {spec.name}: {spec.of} crosses lists; its ids have no weights")
        else:
            _check_raw(spec, raw, spec.of, in_specs=False, is_sequence=spec.name in sequences)
    for name in sequences:
        _check_sequence(specs, name, schema)


def _check_sequence(specs: Mapping[str, FeatureSpec], name: str, schema: Schema) -> None:
    spec = specs[name]
    ids = specs[spec.of] if isinstance(spec, Embedding | Indicator) else spec
    if not isinstance(ids, Text) and not lists_of(ids, specs, schema):
        raise InvalidInput(f"parameters: sequence: {name} has one value in an event; it belongs to context")


def lists_of(spec: FeatureSpec, specs: Mapping[str, FeatureSpec], schema: Schema) -> list[str]:
    """The raw features below it, no embedding or indicator, that do not hold exactly one value."""
    members = spec.of if isinstance(spec, Crossed) else (str(spec.of),)
    sources = [str(specs[name].of) if isinstance(spec, Crossed) and name in specs else name for name in members]
    return [name for name in sources if schema.feature(name).seen_count != 1]


def has_any_length(spec: FeatureSpec, specs: Mapping[str, FeatureSpec], schema: Schema) -> bool:
    return any(schema.feature(name).is_variable_length for name in lists_of(spec, specs, schema))


def values_of_cross(spec: Crossed, specs: Mapping[str, FeatureSpec], schema: Schema) -> int:
    """Of a cross whose lists have fixed lengths."""
    return math.prod(schema.feature(name).seen_count or 1 for name in lists_of(spec, specs, schema))


def _check_weights(spec: Embedding | Indicator, ids: FeatureSpec, raw: Mapping[str, Feature]) -> None:
    if spec.weights is None:
        return
    if isinstance(ids, Text):
        raise InvalidInput(f"feature {spec.name}: {spec.of} is a text; its words have no weights")
    weights = raw.get(spec.weights)
    if weights is None:
        raise InvalidInput(
            f"feature {spec.name}: weights {spec.weights!r} is no feature of the stream; it has {', '.join(raw)}"
            f"{did_you_mean([spec.weights], raw)}"
        )
    if weights.dtype not in ("float32", "int64"):
        raise InvalidInput(f"feature {spec.name}: weights {spec.weights} is {weights.dtype}, expected float32 or int64")
    if weights.weights_of and ids.of != weights.weights_of:
        raise InvalidInput(
            f"feature {spec.name}: weights {spec.weights} are those of {weights.weights_of} (weights_of), "
            f"its ids are of {ids.of}"
        )
    shape = () if isinstance(ids, Crossed) else raw[str(ids.of)].shape
    if weights.shape != shape:
        raise InvalidInput(
            f"feature {spec.name}: weights {spec.weights} has shape {list(weights.shape)}, its ids {list(shape)}"
        )


def _check_raw(
    spec: FeatureSpec, raw: Mapping[str, Feature], name: str, *, in_specs: bool, is_sequence: bool = False
) -> None:
    feature = raw.get(name)
    if feature is None:
        raise InvalidInput(
            f"feature {spec.name}: the stream has no feature {name!r}; it has {', '.join(raw)}"
            f"{did_you_mean([name], raw)}"
        )
    dtypes: tuple[str, ...] = ("float32", "int64", "string")
    match spec:
        case Numeric() | Bucketized() | Quantiles():
            dtypes = ("float32", "int64")
        case Identity():
            dtypes = ("int64",)
        case Vocabulary() | Hashed():
            dtypes = ("string", "int64")
        case Text():
            dtypes = ("string",)
        case Crossed() if not in_specs:
            dtypes = ("string", "int64")
    is_number = feature.is_decoded and "float32" in dtypes
    if feature.dtype not in dtypes and not is_number:
        raise InvalidInput(f"feature {spec.name}: {name} is {feature.dtype}, expected {' or '.join(dtypes)}")
    _check_shape(spec, feature, is_sequence=is_sequence)


def _check_shape(spec: FeatureSpec, feature: Feature, *, is_sequence: bool) -> None:
    name = feature.name
    if feature.tensor is not None and feature.tensor.shape_field is not None:
        raise InvalidInput(f"feature {spec.name}: {name} has a shape_field; only a module takes it")
    if len(feature.raw_shape) > 1 and feature.is_variable_length:
        raise InvalidInput(f"feature {spec.name}: {name} has steps of several values; only a module takes them")
    if isinstance(spec, Numeric) and feature.is_variable_length and not is_sequence:
        raise InvalidInput(f"feature {spec.name}: {name} has any length; numeric needs a fixed shape")
    if isinstance(spec, Numeric):
        spec.width(feature.seen_count or 1)
    if isinstance(spec, Crossed) and len(feature.seen_shape) > 1:
        raise InvalidInput(
            f"feature {spec.name}: {name} must be a value or a list to be crossed, its shape is "
            f"{list(feature.seen_shape)}"
        )
    if isinstance(spec, Text) and feature.value_count != 1:
        raise InvalidInput(f"feature {spec.name}: {name} must hold one text, its shape is {list(feature.shape)}")
    if isinstance(spec, Bucketized | Quantiles) and feature.is_variable_length:
        raise InvalidInput(f"feature {spec.name}: {name} has any length; bucketized needs a fixed shape")


def check_module_features(specs: Mapping[str, FeatureSpec]) -> None:
    """Raises InvalidInput where a module has its own layers for a feature, or could not follow it."""
    for spec in specs.values():
        why = ""
        if isinstance(spec, Embedding | Indicator):
            why = f"a module makes numbers of ids itself (keras.layers.Embedding, CategoryEncoding); it takes {spec.of}"
        elif isinstance(spec, Text):
            why = "a module cuts texts itself, with keras.layers.TextVectorization"
        elif isinstance(spec, Vocabulary) and spec.forgetting:
            why = "ids of words that leave go to others, and a module's own tables would not follow"
        if why:
            raise InvalidInput(f"feature {spec.name}: {type(spec).__name__.lower()} beside a module: {why}")


def check_module_shapes(specs: Mapping[str, FeatureSpec], schema: Schema) -> None:
    """Raises InvalidInput where a raw feature has any length; the specs fit the schema otherwise."""
    for spec in specs.values():
        if has_any_length(spec, specs, schema):
            lists = ", ".join(lists_of(spec, specs, schema))
            raise InvalidInput(
                f"feature {spec.name}: {lists} has any length; a module takes such a list as it is, with a layer "
                f"that adapts, such as keras.layers.StringLookup"
            )
