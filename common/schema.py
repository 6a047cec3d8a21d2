"""A stream's schema: what an event may hold. Checked at the door, stored with every version.

As a mapping (YAML or JSON) it reads:

    features:
      - {name: distance, dtype: float32, min: 0}
      - {name: carrier, dtype: string, vocabulary: [AA, UA]}
      - {name: pixels, dtype: float32, shape: [784]}
      - {name: tags, dtype: string, shape: [null]}          # any length, the empty list too
      - {name: dep_delay, dtype: float32, required: false, default: 0.0}
    labels:
      - {name: late, dtype: int64, min: 0, max: 1}
    weight: sample_weight        # optional: the name of a scalar float32 feature
    event_time: time_hour        # optional: the name of a scalar int64 or float32 feature, epoch seconds
    key: tailnum                 # optional: the name of a scalar feature; events of one key keep their order

Vocabulary, min and max are the domain: an event outside it is refused. To let unknown words in and treat them in the
model, leave `vocabulary` out here and name the words in the model's feature spec.
"""

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from common.errors import Conflict, InvalidInput
from common.suggestions import did_you_mean

Dtype = Literal["float32", "int64", "string"]
Scalar = float | int | str
PADDING: Mapping[str, int | str] = {"int64": -(2**63), "string": "\uffff"}
"""By dtype, what fills up a list of any length where lists of different lengths lie in one tensor. No event holds it in
such a list: ingest refuses it. (The smallest int64 is NumPy's "not a time"; U+FFFF is no character, and Unicode leaves
it to programs for such an end.) float32 has none: no estimator takes a list of floats of any length."""
MAX_RANK, MAX_VALUES = 16, 1 << 24
"""Of one feature of one event: more would not fit into a request of 64 MiB."""
NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
FEATURE_KEYS: Mapping[str, str] = {
    "name": "a name: a letter or _, then up to 127 letters, digits, _ . -; required",
    "dtype": "float32, int64 or string; required",
    "shape": "a list of sizes, or [null] for any length; default: a scalar",
    "required": "true or false; default true",
    "default": "a value of the dtype; only with required: false, and needed there unless the shape is [null]",
    "min": "a number; default: no bound",
    "max": "a number; default: no bound",
    "vocabulary": "a list of different strings; strings only; default: any",
}
SCHEMA_KEYS: Mapping[str, str] = {
    "features": "a list of features; required",
    "labels": "a list of features; default: none",
    "weight": "the name of a scalar float32 feature; default: none",
    "event_time": "the name of a scalar int64 or float32 feature; default: none",
    "key": "the name of a scalar string or int64 feature; default: none",
}
"""Every key of a stream and of a feature, with what it must be; the reference is made from them (docs/generate)."""


def check_name(kind: str, name: object) -> str:
    """The name itself.

    Raises:
        InvalidInput: it is not a name (a letter or _, then letters, digits, _ . -, 128 at most).
    """
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise InvalidInput(
            f"{kind} name {name!r} is not a name: a letter or _, then up to 127 letters, digits, _ . -{_as_name(name)}"
        )
    return name


def _as_name(text: object) -> str:
    """What a column of somebody's table could be called: no slash, no space."""
    if not isinstance(text, str):
        return ""
    close = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_")[:128]
    close = close if close[:1].isalpha() else f"_{close}"
    return (
        f"; call it {close}, and rename the column where the events are made" if NAME_PATTERN.fullmatch(close) else ""
    )


@dataclass(frozen=True)
class Feature:
    """One feature or label.

    Attributes:
        shape: () for a scalar, (n, m, ...) for a fixed shape (values in C order), (None,) for any length.
        required: an event without it is refused; otherwise `default` is filled in (a scalar repeated over the
            shape; an empty list for shape (None,)).
        minimum, maximum: inclusive bounds of every value (numbers only).
        vocabulary: the words allowed (strings only); empty means any.
    """

    name: str
    dtype: Dtype
    shape: tuple[int | None, ...] = ()
    required: bool = True
    default: Scalar | None = None
    minimum: float | None = None
    maximum: float | None = None
    vocabulary: tuple[str, ...] = ()

    @property
    def is_scalar(self) -> bool:
        return self.shape == ()

    @property
    def is_variable_length(self) -> bool:
        return self.shape == (None,)

    @property
    def value_count(self) -> int | None:
        """How many values an event holds; None for any number."""
        return None if self.is_variable_length else math.prod(size for size in self.shape if size is not None)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Raises InvalidInput with the fault in words."""
        if not isinstance(mapping, Mapping):
            raise InvalidInput(f"a feature must be a mapping with name and dtype, got {mapping!r}")
        unknown = sorted(map(str, set(mapping) - FEATURE_KEYS.keys()))
        if unknown:
            raise InvalidInput(
                f"feature {mapping.get('name')!r} has unknown keys {unknown}{did_you_mean(unknown, FEATURE_KEYS)}; "
                f"known: {sorted(FEATURE_KEYS)}"
            )
        name = check_name("feature", mapping.get("name"))
        dtype = mapping.get("dtype")
        if dtype not in ("float32", "int64", "string"):
            raise InvalidInput(f"feature {name}: dtype {dtype!r} is not float32, int64 or string")
        shape = _shape(name, mapping.get("shape", ()))
        required = mapping.get("required", True)
        if not isinstance(required, bool):
            raise InvalidInput(f"feature {name}: required must be true or false, got {required!r}")
        default = mapping.get("default")
        if not required and default is None and shape != (None,):
            raise InvalidInput(f"feature {name} is optional and needs a default")
        if default is not None and required:
            raise InvalidInput(f"feature {name} has a default but is required; add required: false")
        feature = cls(
            name=name,
            dtype=dtype,
            shape=shape,
            required=required,
            default=_value_of(name, "default", dtype, default),
            minimum=_bound(name, "min", dtype, mapping.get("min")),
            maximum=_bound(name, "max", dtype, mapping.get("max")),
            vocabulary=_vocabulary(name, dtype, mapping.get("vocabulary", ())),
        )
        if feature.minimum is not None and feature.maximum is not None and feature.minimum > feature.maximum:
            raise InvalidInput(f"feature {name}: min {feature.minimum} is above max {feature.maximum}")
        return feature

    def to_mapping(self) -> dict[str, Any]:
        """The inverse of from_mapping, without defaults."""
        mapping: dict[str, Any] = {"name": self.name, "dtype": self.dtype}
        if self.shape:
            mapping["shape"] = list(self.shape)
        if not self.required:
            mapping["required"] = False
        optional = {"default": self.default, "min": self.minimum, "max": self.maximum}
        mapping.update({key: value for key, value in optional.items() if value is not None})
        if self.vocabulary:
            mapping["vocabulary"] = list(self.vocabulary)
        return mapping


@dataclass(frozen=True)
class Schema:
    """Features and labels of a stream, and which of them play a part (weight, event time, key)."""

    features: tuple[Feature, ...]
    labels: tuple[Feature, ...]
    weight: str | None = None
    event_time: str | None = None
    key: str | None = None

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

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Raises InvalidInput with the fault in words."""
        if not isinstance(mapping, Mapping):
            raise InvalidInput("a schema must be a mapping with features and labels")
        unknown = sorted(map(str, set(mapping) - SCHEMA_KEYS.keys()))
        if unknown:
            meant = did_you_mean(unknown, SCHEMA_KEYS)
            raise InvalidInput(f"the schema has unknown keys {unknown}{meant}; known: {sorted(SCHEMA_KEYS)}")
        features = tuple(Feature.from_mapping(item) for item in _items("features", mapping.get("features")))
        labels = tuple(Feature.from_mapping(item) for item in _items("labels", mapping.get("labels", [])))
        if not features:
            raise InvalidInput("the schema has no features")
        counts = Counter(feature.name for feature in features + labels)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        if repeated:
            raise InvalidInput(f"the schema names {', '.join(repeated)} more than once")
        schema = cls(features, labels, mapping.get("weight"), mapping.get("event_time"), mapping.get("key"))
        schema._check_parts()
        return schema

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

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            mapping = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"the schema is not JSON: {error}") from error
        return cls.from_mapping(mapping)

    def to_mapping(self) -> dict[str, Any]:
        mapping: dict[str, Any] = {
            "features": [feature.to_mapping() for feature in self.features],
            "labels": [feature.to_mapping() for feature in self.labels],
        }
        parts = {"weight": self.weight, "event_time": self.event_time, "key": self.key}
        mapping.update({key: value for key, value in parts.items() if value is not None})
        return mapping

    def to_json(self) -> str:
        """Canonical: equal schemas give equal text."""
        return json.dumps(self.to_mapping(), sort_keys=True, separators=(",", ":"))


def check_compatible(old: Schema, new: Schema) -> None:
    """Passes when every event written under `old` can be read under `new`: the schema only widens.

    A new optional feature, a wider range, more words (at any place: what was learned moves by word), an optional
    feature that was required and another default are wider. What was written before keeps the values it has.

    Raises:
        Conflict: with each reason.
    """
    reasons: list[str] = []
    old_columns = {feature.name: feature for feature in old.columns}
    new_columns = {feature.name: feature for feature in new.columns}
    for name, before in old_columns.items():
        after = new_columns.get(name)
        reasons += [f"{name} was dropped"] if after is None else _narrowings(before, after)
    reasons += [
        f"{name} is new and required; give it required: false and a default"
        for name, feature in new_columns.items()
        if name not in old_columns and feature.required
    ]
    if [label.name for label in old.labels] != [label.name for label in new.labels]:
        reasons.append("the labels changed")
    for part in ("weight", "event_time", "key"):
        if getattr(old, part) != getattr(new, part):
            reasons.append(f"{part} changed from {getattr(old, part)!r} to {getattr(new, part)!r}")
    if reasons:
        raise Conflict(
            f"the new schema is not compatible: {'; '.join(reasons)}. A schema may widen: new optional features, wider "
            f"ranges, more words. For anything else make another stream"
        )


def _narrowings(before: Feature, after: Feature) -> list[str]:
    """Why events with the old feature may not be read as the new one."""
    name = before.name
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        kinds = [f"{feature.dtype} {list(feature.shape)}".removesuffix(" []") for feature in (before, after)]
        return [f"{name} changed from {kinds[0]} to {kinds[1]}"]
    reasons = [f"{name} is required now"] if after.required and not before.required else []
    if after.minimum is not None and (before.minimum is None or after.minimum > before.minimum):
        reasons.append(f"the range of {name} is narrower: its min was {before.minimum} and is {after.minimum}")
    if after.maximum is not None and (before.maximum is None or after.maximum < before.maximum):
        reasons.append(f"the range of {name} is narrower: its max was {before.maximum} and is {after.maximum}")
    if after.vocabulary and not before.vocabulary:
        reasons.append(f"{name} has a vocabulary now and took any word before")
    gone = [word for word in before.vocabulary if after.vocabulary and word not in set(after.vocabulary)]
    if gone:
        reasons.append(f"the vocabulary of {name} lost {', '.join(map(repr, gone[:5]))}{' ...' * (len(gone) > 5)}")
    return reasons


def _items(part: str, value: object) -> Iterable[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{part} must be a list, got {value!r}")
    return value


def _shape(name: str, value: object) -> tuple[int | None, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"feature {name}: shape must be a list of sizes, got {value!r}")
    shape = tuple(value)
    if shape == (None,):
        return shape
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in shape):
        raise InvalidInput(f"feature {name}: shape {list(shape)} must be positive sizes, or [null] for any length")
    if len(shape) > MAX_RANK or math.prod(shape) > MAX_VALUES:
        raise InvalidInput(
            f"feature {name}: shape {str(list(shape))[:100]} has {len(shape)} sizes; expected at most {MAX_RANK}, and "
            f"{MAX_VALUES} values in all"
        )
    return shape


def _bound(name: str, part: str, dtype: Dtype, value: object) -> float | None:
    if value is None:
        return None
    if dtype == "string":
        raise InvalidInput(f"feature {name}: {part} does not apply to strings")
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise InvalidInput(f"feature {name}: {part} must be a number, got {value!r}")
    return value


def _is_finite(value: float) -> bool:
    """Also for whole numbers that no float can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_text(value: object) -> bool:
    """Whether UTF-8 can write it: JSON may hold half a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _vocabulary(name: str, dtype: Dtype, value: object) -> tuple[str, ...]:
    words = tuple(_items(f"feature {name}: vocabulary", value))
    if words and dtype != "string":
        raise InvalidInput(f"feature {name}: vocabulary applies to strings only")
    if not all(_is_text(word) for word in words) or len(set(words)) != len(words):
        raise InvalidInput(f"feature {name}: vocabulary must be different strings")
    return words


def _value_of(name: str, part: str, dtype: Dtype, value: object) -> Scalar | None:
    if value is None:
        return None
    if dtype == "string" and isinstance(value, str) and _is_text(value):
        return value
    if dtype == "int64" and isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    if dtype == "float32" and isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value):
        return float(value)
    raise InvalidInput(f"feature {name}: {part} {value!r} is not a {dtype}")
