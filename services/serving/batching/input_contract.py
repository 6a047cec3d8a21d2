"""The inputs of a version by its schema, kept in front of the model: bounds, words, and how lists are filled up.

A batch is checked at once, after it was put together: a minimum and a maximum per bounded input, or a comparison of
sets. Only where that fails the row is searched.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from common.counted import counted
from common.definition.inputs import INPUTS_PATH, SignatureInputs, is_nan, parse_inputs
from common.errors import InvalidInput
from common.examples.naming import name_of_alias
from common.feature_keys import Scalar
from common.kinds import ITEM_BYTES, MAX_VALUES, too_wide
from common.schema import PADDING, Feature
from common.tensors import NUMPY_TYPES
from services.serving.batching.class_words import ClassWords
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed, check_filled, invalid
from services.serving.wire.replica_state import Signature

_TENSORFLOW_TYPES = {"float32": "DT_FLOAT", "int64": "DT_INT64", "string": "DT_STRING", "bytes": "DT_STRING"}
_OF_EXAMPLES = ("tensorflow/serving/classify", "tensorflow/serving/regress")
_WORDS_SHOWN = 10
_MOST_TIMES = 8
"""A batch of lists of lists may be so many times as large as a table as its values are, where it is large."""


class OutOfBounds(RequestFailed):
    """A value that the schema does not allow."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.INVALID_ARGUMENT, message)


def _checks_of(inputs: SignatureInputs) -> tuple[Callable[[Arrays], None], ...]:
    features, padding = inputs.features, inputs.padding
    return (
        *(_Gaps(feature.name, PADDING[feature.dtype]) for feature in features if _ends_lists(inputs, feature)),
        *(_Finite(feature, padding.get(feature.name)) for feature in features if _is_float(feature)),
        *(_Check(feature, padding.get(feature.name)) for feature in features if _is_bound(feature)),
        *(_Bytes(feature) for feature in features if feature.is_decoded),
        *(_Rows(feature) for feature in features if feature.row_lengths_name in _names(inputs)),
        *_weights_checks(inputs),
    )


class InputContract:
    """Of a version; empty for a SavedModel without a schema. Immutable."""

    def __init__(self, inputs: Mapping[str, SignatureInputs] | None = None) -> None:
        self._inputs = dict(inputs or {})
        self.class_words = ClassWords({name: taken.words for name, taken in self._inputs.items() if taken.words})
        self._checks = {name: _checks_of(taken) for name, taken in self._inputs.items()}

    def check(self, signature: str, inputs: Arrays) -> None:
        """Looks at every value of a request or of a batch. Raises OutOfBounds: the first input, row and value that the
        schema does not allow, and the allowed values."""
        for check in self._checks.get(signature, ()):
            check(inputs)

    def pads(self, signature: str) -> Mapping[str, Any] | None:
        """The padding of inputs of any length, by input; None: TensorFlow Serving's rule."""
        inputs = self._inputs.get(signature)
        return None if inputs is None else inputs.padding

    def applied(self, signatures: Mapping[str, Signature]) -> dict[str, Signature]:
        """The signatures of the version with the schema's additions. Raises RequestFailed: FAILED_PRECONDITION, the
        schema is not that of these signatures."""
        unknown = self._inputs.keys() - signatures.keys()
        if unknown:
            raise _unfit(f"there is no signature {', '.join(sorted(unknown))}")
        features = [feature for taken in self._inputs.values() for feature in taken.features]
        return {
            name: _with_schema(name, signature, self._inputs[name])
            if name in self._inputs
            else _of_examples(signature, features)
            for name, signature in signatures.items()
        }


def read_contract(directory: Path) -> InputContract:
    """The contract that lies beside an export, if any. Raises RequestFailed: FAILED_PRECONDITION, it cannot be read."""
    path = directory / INPUTS_PATH
    if not path.is_file():
        return InputContract()
    try:
        return InputContract(parse_inputs(orjson.loads(path.read_bytes())))
    except (OSError, ValueError) as error:
        raise _unfit(str(error)) from error
    except InvalidInput as error:
        raise _unfit(error.message) from error


def _unfit(reason: str) -> RequestFailed:
    return RequestFailed(Code.FAILED_PRECONDITION, f"{INPUTS_PATH} does not fit the version: {reason}")


def _with_schema(name: str, signature: Signature, inputs: SignatureInputs) -> Signature:
    features = {feature.name: feature for feature in inputs.features}
    if features.keys() != signature.inputs.keys():
        raise _unfit(f"signature {name} has inputs {sorted(signature.inputs)}, the schema {sorted(features)}")
    for feature in inputs.features:
        dtype = signature.inputs[feature.name].dtype
        if dtype != _TENSORFLOW_TYPES[feature.dtype]:
            raise _unfit(f"input {feature.name} of signature {name} has type {dtype}, the schema {feature.dtype}")
    optional = {feature.name: feature.json_default for feature in inputs.features if not feature.required}
    nested = {feature.name: feature.row_lengths_name for feature in inputs.features if feature.row_lengths_name}
    return dataclasses.replace(
        signature, optional=optional, padding=inputs.json_padding, nested=nested, has_schema=True,
        aliases=name_of_alias(inputs.features), yes_no=_yes_no(inputs.features),
    )  # fmt: skip


def _of_examples(signature: Signature, features: list[Feature]) -> Signature:
    """With what may stand in the Examples that it takes, where it takes any."""
    if signature.method_name not in _OF_EXAMPLES:
        return signature
    return dataclasses.replace(signature, aliases=name_of_alias(features), yes_no=_yes_no(features))


def _yes_no(features: Iterable[Feature]) -> dict[str, str]:
    return {feature.name: feature.dtype for feature in features if feature.yes_no}


def _names(inputs: SignatureInputs) -> set[str]:
    return {feature.name for feature in inputs.features}


def _is_bound(feature: Feature) -> bool:
    return bool(feature.vocabulary) or feature.minimum is not None or feature.maximum is not None


def _is_float(feature: Feature) -> bool:
    """Whose values its bounds do not keep finite."""
    is_within = feature.minimum is not None and feature.maximum is not None
    return feature.dtype == "float32" and not feature.is_decoded and not is_within


def _ends_lists(inputs: SignatureInputs, feature: Feature) -> bool:
    """Versions of before took the empty word or -1 for "nothing there", wherever it stood in a list."""
    given = inputs.padding.get(feature.name)
    return given is not None and (is_nan(given) or given == PADDING.get(feature.dtype))


class _Gaps:
    """Padding stands at the end of a list: between values it would be read as nothing, silently."""

    def __init__(self, name: str, padding: Scalar) -> None:
        self.name = name
        self._shown = "U+FFFF" if isinstance(padding, str) else str(padding)
        self._padding = _encoded(padding)

    def __call__(self, inputs: Arrays) -> None:
        """Raises OutOfBounds."""
        array = inputs[self.name]
        is_padding = _is_padding(array, self._padding)
        if not is_padding.any():
            return
        if array.ndim > 2:
            is_padding = self._whole_steps(is_padding)
        gaps = np.argwhere(is_padding[:, :-1] & ~is_padding[:, 1:])
        if len(gaps):
            row, place = gaps[0]
            raise OutOfBounds(
                f'input "{self.name}", row {row}: {self._shown} at place {place} is followed by a value; it fills '
                "lists up at their end and is no value of one"
            )

    def _whole_steps(self, is_padding: np.ndarray) -> np.ndarray:
        """[n, steps] of [n, steps, ...]. Raises OutOfBounds for a step of which a part is missing."""
        within = tuple(range(2, is_padding.ndim))
        missing = np.asarray(is_padding.all(axis=within))
        parts = np.argwhere(is_padding.any(axis=within) & ~missing)
        if len(parts):
            row, place = parts[0]
            raise OutOfBounds(
                f'input "{self.name}", row {row}: step {place} holds {self._shown}, which fills lists up and is no '
                "value of one"
            )
        return missing


class _Finite:
    """Of an input of floats: as in events, NaN and infinities are no values. NaN may fill lists up."""

    def __init__(self, feature: Feature, padding: Any) -> None:
        self._name, self._is_filled = feature.name, padding is not None and is_nan(padding)

    def __call__(self, inputs: Arrays) -> None:
        """Raises OutOfBounds."""
        array = inputs[self._name]
        flat = array.ravel()
        if math.isfinite(np.vdot(flat, flat)):  # One pass; of numbers whose squares are infinite it is not sure.
            return
        is_wrong = np.isinf(array) if self._is_filled else ~np.isfinite(array)
        if is_wrong.any():
            place = tuple(np.argwhere(is_wrong)[0])
            raise OutOfBounds(
                f'input "{self._name}", row {place[0]}: the value {array[place]} is no finite number of float32'
            )


class _Bytes:
    """Of an input that is a tensor or an image: checks of its bytes before they are decoded."""

    def __init__(self, feature: Feature) -> None:
        self._feature = feature
        self._shape_field = feature.tensor.shape_field if feature.tensor else None
        self._value_bytes = ITEM_BYTES[feature.seen_dtype]

    def __call__(self, inputs: Arrays) -> None:
        """Raises OutOfBounds; RequestFailed where all together take too much once they are decoded."""
        feature = self._feature
        check_filled(feature.name, len(inputs[feature.name]) * (feature.seen_count or 0) * self._value_bytes)
        for row, value in enumerate(inputs[feature.name].ravel().tolist()):
            if self._shape_field is not None and feature.tensor is not None:
                fault = feature.tensor.fault_of(value, inputs[self._shape_field][row].tolist())
            else:
                fault = feature.fault_of_bytes(value)
            if fault:
                raise OutOfBounds(f'input "{feature.name}", row {row} {fault}')


class _Rows:
    """Of a list of lists: its rows hold as many values as there are."""

    def __init__(self, feature: Feature) -> None:
        self._name, self._lengths = feature.name, feature.row_lengths_name
        self._padding = _encoded(PADDING[feature.dtype])

    def __call__(self, inputs: Arrays) -> None:
        """Raises OutOfBounds; RequestFailed where all together take too much as a table."""
        values, lengths = inputs[self._name], inputs[self._lengths]
        counts = np.sum(~_is_padding(values, self._padding), axis=1)
        held = np.sum(np.where(lengths == PADDING["int64"], 0, lengths), axis=1)
        for row in np.flatnonzero(counts != held)[:1]:
            raise OutOfBounds(
                f'input "{self._name}", row {row}: {counted(counts[row], "value")}, and its rows ({self._lengths}) '
                f"hold {held[row]}"
            )
        longest = int(lengths.max(initial=0))
        if lengths.size * longest > max(MAX_VALUES, _MOST_TIMES * values.size):
            fault = too_wide(lengths.size, longest)
            raise invalid(f'input "{self._name}" {fault}; send large rows alone')


class _Check:
    """Of an input."""

    def __init__(self, feature: Feature, padding: Any) -> None:
        self.name = feature.name
        self._vocabulary = feature.vocabulary
        self._words = frozenset(word.encode() for word in feature.vocabulary)
        self._padding = _encoded(padding)
        if self._words and self._padding is not None:
            self._words |= {self._padding}
        self._low, self._high = _limits(feature)

    def __call__(self, inputs: Arrays) -> None:
        """Raises OutOfBounds."""
        array = inputs[self.name]
        if not array.size:
            return
        if self._words:
            if not self._words.issuperset(array.ravel().tolist()):
                self._fail(array, np.vectorize(self._words.__contains__, otypes=[bool])(array))
            return
        # The other way round, NaN would be within all bounds.
        if self._padding is None and array.min() >= self._low and array.max() <= self._high:
            return
        is_within = (array >= self._low) & (array <= self._high)
        if self._padding is not None:
            is_within |= _is_padding(array, self._padding)
        if not is_within.all():
            self._fail(array, is_within)

    def _fail(self, array: np.ndarray, is_within: np.ndarray) -> None:
        place = tuple(np.argwhere(~is_within)[0])
        value = array[place]
        shown = orjson.dumps(value.decode(errors="replace")).decode() if isinstance(value, bytes) else f"{value!s}"
        raise OutOfBounds(f'input "{self.name}", row {place[0]}: the value {shown} is not {self._expected()}')

    def _expected(self) -> str:
        if self._vocabulary:
            more = len(self._vocabulary) - _WORDS_SHOWN
            words = ", ".join(self._vocabulary[:_WORDS_SHOWN])
            return f"one of {words} and {more} more" if more > 0 else f"one of {words}"
        if math.isinf(self._low):
            return f"at most {self._high:g}"
        return f"at least {self._low:g}" if math.isinf(self._high) else f"from {self._low:g} to {self._high:g}"


class _Weights:
    """Of an input that weighs the values of another: as many in every row."""

    def __init__(self, weights: Feature, ids: Feature) -> None:
        self._name, self._ids = weights.name, ids.name
        self._paddings = _encoded(PADDING[weights.dtype]), _encoded(PADDING[ids.dtype])

    def __call__(self, inputs: Arrays) -> None:
        """Raises OutOfBounds."""
        counts, expected = (
            (~_is_padding(inputs[name], padding)).sum(axis=1)
            for name, padding in zip((self._name, self._ids), self._paddings, strict=True)
        )
        for row in np.flatnonzero(counts != expected)[:1].tolist():
            raise OutOfBounds(
                f'input "{self._name}", row {row} holds {counted(counts[row], "weight")}, {self._ids} '
                f"{counted(expected[row], 'value')}; expected one weight for each"
            )


def _weights_checks(inputs: SignatureInputs) -> Iterator[_Weights]:
    lists = {feature.name: feature for feature in inputs.features if _ends_lists(inputs, feature)}
    for feature in lists.values():
        ids = lists.get(feature.weights_of or "")
        if ids is not None:
            yield _Weights(feature, ids)


def _encoded(padding: Any) -> Any:
    """As it stands in an array."""
    return padding.encode() if isinstance(padding, str) else padding


def _is_padding(array: np.ndarray, padding: Any) -> np.ndarray:
    return np.asarray(np.isnan(array) if is_nan(padding) else array == padding, bool)


def _limits(feature: Feature) -> tuple[float, float]:
    """Inclusive, as numbers of the feature's own type: a float32 at the bound is within it, as at ingest."""
    low = -math.inf if feature.minimum is None else feature.minimum
    high = math.inf if feature.maximum is None else feature.maximum
    if feature.dtype == "float32":
        single = np.dtype(NUMPY_TYPES["DT_FLOAT"]).type
        return float(single(low)), float(single(high))
    return low, high
