"""The section `features` beside a module: which of its features a module may take as inputs, beside the stream's own.

Numeric features come as float32 [n, columns], all others as int32 ids [n, values] with -1 where there is none. What is
made of ids, and what has any length, is for the module's own layers.
"""

from collections.abc import Mapping

from common.definition.feature_sources import has_any_length, lists_of
from common.definition.features import Embedding, FeatureSpec, Indicator, Text, Vocabulary
from common.errors import InvalidInput
from common.schema import Schema


def check_module_features(specs: Mapping[str, FeatureSpec]) -> None:
    """Raises InvalidInput where a module has layers of its own for a feature, or could not follow it."""
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
