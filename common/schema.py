"""A stream's schema: what an event may hold. Checked at the door, stored with every version.

Its form as a mapping is SCHEMA_KEYS below, and FEATURE_KEYS for a feature or label (docs/guide/stream.md has examples).
Vocabulary, min and max are the domain: an event outside it is refused. To let unknown words in and treat them in the
model, leave `vocabulary` out here and name the words in the model's feature spec.

A list of lists is two lists in an Example, as tf.io.RaggedFeature with a RowLengths partition reads them: its values
one after the other under its name, and under `<name>_row_lengths` (int64) how many of them each row has.
Schema.features has both, one after the other; the mapping has the first alone.
"""

import base64
import functools
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from common import feature_keys as keys
from common.errors import Conflict, InvalidInput
from common.feature_keys import DTYPES, FEATURE_KEYS, Dtype, Scalar, check_name
from common.kinds import ImageKind, TensorKind
from common.late_labels import LateLabels
from common.schema_links import check_aliases, check_links
from common.suggestions import did_you_mean, refuse_unknown
from common.topic_source import TopicSource

PADDING: Mapping[str, float | int | str] = {
    "float32": math.nan, "int64": -(2**63), "string": "\uffff", "bytes": "\uffff",
}  # fmt: skip
"""By dtype, what fills up a list of any length where lists of different lengths lie in one tensor. No event holds it in
such a list: ingest refuses it. (The smallest int64 is NumPy's "not a time"; U+FFFF is no character, and Unicode leaves
it to programs for such an end; NaN is refused in every float.)"""
ROW_LENGTHS = "_row_lengths"
"""Follows the name of a list of lists in that of its row lengths."""
SCHEMA_KEYS: Mapping[str, str] = {
    "features": "a list of features; required",
    "labels": "a list of features; default: none",
    "weight": "the name of a scalar float32 feature; default: none",
    "event_time": "the name of a scalar int64 or float32 feature; default: none",
    "key": "the name of a scalar string or int64 feature; default: none",
    "late_labels": "{key: FEATURE, wait_seconds: N}: labels come after their event, by the value of this scalar string "
    "or int64 feature, and are optional in events; default: every event has its labels",
    "source": "{kafka: {topic, format, ...}}: an existing topic whose records are the events; default: ingest's",
}
"""Every key of a stream, with what it must be, as FEATURE_KEYS has those of a feature."""


@dataclass(frozen=True)
class Feature:
    """One feature or label.

    Attributes:
        shape: () for a scalar, (n, m, ...) for a fixed shape (values in C order), (None,) for any length, (None, m,
            ...) for any number of steps of that shape, (None, None) for a list of lists.
        required: an event without it is refused; otherwise readers take `default` (a scalar repeated over the
            shape; an empty list where the length is free; no bytes, which decode to zeros, for a tensor or an image).
        minimum, maximum: inclusive bounds of every value (numbers only).
        vocabulary: the words allowed (strings only); empty means any.
        weights_of: the feature of which an event holds as many values as of this feature.
        tensor, image: what the bytes are; at most one of them.
        rows_of: the list of lists whose row lengths these are.
        aliases: other names of the value in what is sent (common/examples/naming.py); the log has the name alone.
        yes_no: words and truth values are taken for 1 and 0.
    """

    name: str
    dtype: Dtype
    shape: tuple[int | None, ...] = ()
    required: bool = True
    default: Scalar | None = None
    minimum: float | None = None
    maximum: float | None = None
    vocabulary: tuple[str, ...] = ()
    weights_of: str | None = None
    tensor: TensorKind | None = None
    image: ImageKind | None = None
    rows_of: str = ""
    aliases: tuple[str, ...] = ()
    yes_no: bool = False

    @property
    def json_default(self) -> object:
        """The default as JSON has it."""
        if isinstance(self.default, bytes):
            return {"b64": base64.b64encode(self.default).decode()}
        return self.default

    @property
    def row_lengths_name(self) -> str:
        """Of the row lengths of a list of lists; empty for any other feature."""
        return self.name + ROW_LENGTHS if self.shape == (None, None) else ""

    @property
    def raw_shape(self) -> tuple[int | None, ...]:
        """As an Example and a raw tensor hold it: a list of lists is one list of all its values."""
        return (None,) if self.row_lengths_name else self.shape

    @property
    def is_scalar(self) -> bool:
        return self.shape == ()

    @property
    def is_variable_length(self) -> bool:
        return self.shape[:1] == (None,)

    @property
    def may_be_missing(self) -> bool:
        """An optional label without a default: an event without it teaches the other heads only."""
        return not self.required and self.default is None and not self.is_variable_length

    @property
    def value_count(self) -> int | None:
        """How many values an event holds; None for any number."""
        return None if self.is_variable_length else self.step_size

    @property
    def step_size(self) -> int:
        """How many values a step of a list of any length holds; of other shapes, the whole."""
        return math.prod(size for size in self.shape if size is not None)

    @property
    def is_decoded(self) -> bool:
        """Whether a model sees something else than the event's bytes."""
        return self.tensor is not None or self.image is not None

    @property
    def seen_dtype(self) -> str:
        """What a model sees: bytes are strings, an image is float32, a tensor what it says."""
        if self.image is not None:
            return "float32"
        if self.tensor is not None:
            return self.tensor.dtype
        return "string" if self.dtype == "bytes" else self.dtype

    @property
    def seen_shape(self) -> tuple[int | None, ...]:
        """Of one example, None for sizes that differ; Schema.seen_shape knows those of a shape field."""
        if self.image is not None:
            return self.image.shape
        if self.tensor is not None:
            return self.tensor.shape or ()
        return self.shape

    @property
    def seen_count(self) -> int | None:
        """How many values a model sees of an event; None for any number."""
        sizes = [size for size in self.seen_shape if size is not None]
        return math.prod(sizes) if len(sizes) == len(self.seen_shape) else None

    def fault_of_bytes(self, value: bytes) -> str | None:
        """What is wrong with a tensor's or image's bytes, as the rest of a sentence; None for nothing, or where another
        feature has to say it (shape_field)."""
        if not value and not self.required:
            return None
        if self.image is not None:
            return self.image.fault_of(value)
        if self.tensor is not None and self.tensor.shape is not None:
            return self.tensor.fault_of(value)
        return None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], *, is_label: bool = False) -> Self:
        """Raises InvalidInput with the fault in words."""
        if not isinstance(mapping, Mapping):
            raise InvalidInput(f"a feature must be a mapping with name and dtype, got {mapping!r}")
        refuse_unknown(f"feature {mapping.get('name')!r}", mapping, FEATURE_KEYS)
        name = check_name("feature", mapping.get("name"))
        dtype = mapping.get("dtype")
        if dtype not in DTYPES:
            raise InvalidInput(f"feature {name}: dtype {dtype!r} is not float32, int64, string or bytes")
        shape = keys.shape(name, mapping.get("shape", ()))
        tensor, image = keys.kinds(name, dtype, mapping)
        required = mapping.get("required", True)
        if not isinstance(required, bool):
            raise InvalidInput(f"feature {name}: required must be true or false, got {required!r}")
        default = mapping.get("default")
        if tensor or image:
            if default is not None:
                raise InvalidInput(f"feature {name} is a tensor or image: leave default out, an absent one is zeros")
            default = None if required else ""
        if not required and default is None and shape[:1] != (None,) and not is_label:
            raise InvalidInput(f"feature {name} is optional and needs a default")
        if default is not None and required:
            raise InvalidInput(f"feature {name} has a default but is required; add required: false")
        feature = cls(
            name=name,
            dtype=dtype,
            shape=shape,
            required=required,
            default=keys.value(name, "default", dtype, default),
            minimum=keys.bound(name, "min", dtype, mapping.get("min")),
            maximum=keys.bound(name, "max", dtype, mapping.get("max")),
            vocabulary=keys.vocabulary(name, dtype, mapping.get("vocabulary", ())),
            weights_of=keys.weights_of(name, dtype, shape, mapping.get("weights_of")),
            tensor=tensor,
            image=image,
            aliases=keys.aliases(name, mapping.get("aliases", ())),
            yes_no=keys.yes_no(name, dtype, mapping.get("yes_no", False)),
        )
        if feature.minimum is not None and feature.maximum is not None and feature.minimum > feature.maximum:
            raise InvalidInput(f"feature {name}: min {feature.minimum} is above max {feature.maximum}")
        return feature

    def to_mapping(self) -> dict[str, Any]:
        """The inverse of from_mapping, without defaults."""
        optional = {
            "shape": list(self.shape) or None, "required": None if self.required else False,
            "min": self.minimum, "max": self.maximum, "weights_of": self.weights_of,
            "default": None if self.is_decoded else self.json_default,
            "tensor": self.tensor and self.tensor.to_mapping(), "image": self.image and self.image.to_mapping(),
            "vocabulary": list(self.vocabulary) or None, "aliases": list(self.aliases) or None,
            "yes_no": self.yes_no or None,
        }  # fmt: skip
        found = {key: value for key, value in optional.items() if value is not None}
        return {"name": self.name, "dtype": self.dtype, **found}


@dataclass(frozen=True)
class Schema:
    """Features and labels of a stream, and which of them play a part (weight, event time, key)."""

    features: tuple[Feature, ...]
    labels: tuple[Feature, ...]
    weight: str | None = None
    event_time: str | None = None
    key: str | None = None
    source: TopicSource | None = None
    late_labels: LateLabels | None = None

    @property
    def columns(self) -> tuple[Feature, ...]:
        """Everything an event holds: features, then labels."""
        return self.features + self.labels

    @functools.cached_property
    def _by_name(self) -> Mapping[str, Feature]:
        return {feature.name: feature for feature in self.columns}

    def feature(self, name: str) -> Feature:
        """Raises InvalidInput when there is none of that name."""
        found = self._by_name.get(name)
        if found is not None:
            return found
        names = list(self._by_name)
        raise InvalidInput(
            f"the schema has no feature {name!r}; it has {', '.join(names)}{did_you_mean([name], names)}"
        )

    def own_feature(self, name: str, place: str) -> Feature:
        """A feature, no label. Raises InvalidInput: there is none of that name; `place` begins the sentence."""
        known = {feature.name: feature for feature in self.features}
        if name in known:
            return known[name]
        listed = f"{', '.join(known)}{did_you_mean([name], known)}"
        raise InvalidInput(f"{place}: the stream has no feature {name!r}; it has {listed}")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Raises InvalidInput with the fault in words."""
        if not isinstance(mapping, Mapping):
            raise InvalidInput("a schema must be a mapping with features and labels")
        refuse_unknown("the schema", mapping, SCHEMA_KEYS)
        given_features = (Feature.from_mapping(item) for item in keys.items("features", mapping.get("features")))
        features = tuple(each for feature in given_features for each in _with_row_lengths(feature))
        late = None if mapping.get("late_labels") is None else LateLabels.from_mapping(mapping["late_labels"])
        given_labels = keys.items("labels", mapping.get("labels", []))
        labels = tuple(Feature.from_mapping(_optional(item) if late else item, is_label=True) for item in given_labels)
        if not features:
            raise InvalidInput("the schema has no features")
        counts = Counter(feature.name for feature in features + labels)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        if repeated:
            raise InvalidInput(f"the schema names {', '.join(repeated)} more than once")
        given = mapping.get("source")
        source = None if given is None else TopicSource.from_mapping(given)
        weight, event_time, key = (_part(part, mapping) for part in ("weight", "event_time", "key"))
        schema = cls(features, labels, weight, event_time, key, source, late)
        schema._check_parts()
        for name in source.fields if source else ():
            schema.feature(name)
        check_links(schema.features, schema.labels)
        check_aliases(schema.columns)
        return schema

    def seen_shape(self, feature: Feature) -> tuple[int | None, ...]:
        """What a model sees of the feature in one example; None for sizes that differ from example to example."""
        if feature.tensor is None or feature.tensor.shape_field is None:
            return feature.seen_shape
        return (None,) * self.feature(feature.tensor.shape_field).step_size

    def _check_parts(self) -> None:
        for part, name, dtypes in (
            ("weight", self.weight, ("float32",)),
            ("event_time", self.event_time, ("int64", "float32")),
            ("key", self.key, ("string", "int64")),
        ):
            if name is None:
                continue
            feature = self.feature(name)
            if not feature.is_scalar or feature.dtype not in dtypes:
                raise InvalidInput(f"{part} {name!r} must be a scalar of {' or '.join(dtypes)}")
        if self.late_labels:
            key = self.feature(self.late_labels.key)
            if not key.is_scalar or key.dtype not in ("string", "int64") or not key.required or key in self.labels:
                raise InvalidInput(
                    f"late_labels: key {key.name!r} must be a required scalar feature of string or int64"
                )
            if not self.labels:
                raise InvalidInput("late_labels: the schema has no labels that could come late")

    def of_late_labels(self, stream: str) -> "Schema":
        """Of the messages that bring labels to the stream: the key, and the labels; a single label is required. Raises
        Conflict: labels come with their events."""
        if self.late_labels is None:
            raise Conflict(
                f"stream {stream} takes labels with their events; late_labels: {{key: FEATURE, wait_seconds: N}} in "
                "stream.yaml has them come later"
            )
        labels = (replace(self.labels[0], required=True),) if len(self.labels) == 1 else self.labels
        return Schema((self.feature(self.late_labels.key),), labels, key=self.late_labels.key)

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            mapping = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"the schema is not JSON: {error}") from error
        return cls.from_mapping(mapping)

    def to_mapping(self) -> dict[str, Any]:
        mapping: dict[str, Any] = {
            "features": [feature.to_mapping() for feature in self.features if not feature.rows_of],
            "labels": [feature.to_mapping() for feature in self.labels],
        }
        parts = {"weight": self.weight, "event_time": self.event_time, "key": self.key}
        mapping.update({key: value for key, value in parts.items() if value is not None})
        optional = {"source": self.source, "late_labels": self.late_labels}
        mapping.update({key: value.to_mapping() for key, value in optional.items() if value})
        return mapping

    def to_json(self) -> str:
        """Canonical: equal schemas give equal text."""
        return json.dumps(self.to_mapping(), sort_keys=True, separators=(",", ":"))


def _optional(label: Any) -> Any:
    """A label that may come later."""
    if not isinstance(label, Mapping):
        return label
    if label.get("required") is True:
        raise InvalidInput(
            f"label {label.get('name')!r} is required, but late_labels has labels come after their event"
        )
    return {**label, "required": False}


def _with_row_lengths(feature: Feature) -> tuple[Feature, ...]:
    if not feature.row_lengths_name:
        return (feature,)
    name = check_name("feature", feature.row_lengths_name)
    return feature, Feature(name, "int64", (None,), required=False, minimum=0, rows_of=feature.name)


def _part(part: str, mapping: Mapping[str, Any]) -> str | None:
    name = mapping.get(part)
    if name is not None and not isinstance(name, str):
        raise InvalidInput(f"{part} must be the name of a feature, got {str(name)[:100]!r}")
    return name
