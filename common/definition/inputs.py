"""A version's statement of its inputs: the trainer writes it beside an export, every server of the version keeps to it.

    {"serving_default": {"features": [{"name": "distance", "dtype": "float32", "min": 0}, ...],
                         "padding": {"tags": "\\uffff"}, "words": {"class_id": ["early", "late"]}}}

It is JSON under INPUTS_PATH; NaN, which fills up lists of floats, is null there. The features are those of the stream's
schema (common/schema.py) as it was when the version was trained. They say which inputs may be left out, what they are
then, and which values are allowed. A SavedModel without the file says nothing: its inputs are checked as TensorFlow
checks them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from common.definition.fields import Fields
from common.errors import InvalidInput
from common.feature_keys import Scalar
from common.schema import Feature

INPUTS_PATH = "assets.extra/headrace_inputs.json"
"""Below the SavedModel."""
WITH_CONTEXT = "serving_with_context"
"""The signature in which all rows of a request share the inputs whose first size is 1 (`export: context`)."""


@dataclass(frozen=True)
class SignatureInputs:
    """The inputs of one signature: one feature for each of them, of the same name.

    Attributes:
        padding: of inputs of any length, the value that the graph takes for "nothing there"; lists of different lengths
            may share a call when they are filled up with it. An input that is not named must not be filled up.
        words: of outputs that are a class's number, or the probability of the second of two, the label's words in their
            order; an output that the version does not have is passed over.
    """

    features: tuple[Feature, ...]
    padding: Mapping[str, Scalar] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        words = {"words": {name: list(known) for name, known in self.words.items()}} if self.words else {}
        return {"features": [feature.to_mapping() for feature in self.features], "padding": self.json_padding, **words}

    @property
    def json_padding(self) -> dict[str, Any]:
        """JSON has no NaN."""
        return {name: None if is_nan(value) else value for name, value in self.padding.items()}

    @classmethod
    def from_mapping(cls, signature: str, mapping: object) -> Self:
        """Raises InvalidInput with the fault in words."""
        fields = Fields(f"inputs of signature {signature}", mapping)
        features, padding = fields.take("features"), fields.take("padding", {})
        words = _words_of(signature, fields.take("words", {}))
        fields.finish()
        if not isinstance(features, list) or not isinstance(padding, dict):
            raise InvalidInput(f"inputs of signature {signature}: features must be a list, padding a mapping")
        if not all(isinstance(value, Scalar | None) for value in padding.values()):
            raise InvalidInput(f"inputs of signature {signature}: padding must name a number, a text or null")
        features = tuple(Feature.from_mapping(item) for item in features)
        padding = {name: math.nan if value is None else value for name, value in padding.items()}
        lengths = {feature.name for feature in features if feature.is_variable_length}
        for name in padding:
            if name not in lengths:
                raise InvalidInput(f"inputs of signature {signature}: padding names {name}, which has no free length")
        return cls(features, padding, words)


def _words_of(signature: str, given: object) -> dict[str, tuple[str, ...]]:
    """Raises InvalidInput."""
    is_good = isinstance(given, dict) and all(
        isinstance(known, list) and len(known) > 1 and all(isinstance(word, str) for word in known)
        for known in given.values()
    )
    if not is_good or not isinstance(given, dict):
        raise InvalidInput(f"inputs of signature {signature}: words must name two words or more for each output")
    return {str(name): tuple(known) for name, known in given.items()}


def is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def parse_inputs(document: object) -> dict[str, SignatureInputs]:
    """{signature: its inputs}, from the parsed JSON. Raises InvalidInput: which part is wrong and what was expected."""
    if not isinstance(document, Mapping):
        raise InvalidInput(f"inputs must be a mapping of signatures, got {str(document)[:100]}")
    return {str(name): SignatureInputs.from_mapping(str(name), item) for name, item in document.items()}
