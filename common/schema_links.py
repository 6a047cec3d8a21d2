"""Features that say something about others of their schema: the shape of a tensor, the weights of ids, their names."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from common.errors import InvalidInput
from common.suggestions import did_you_mean

if TYPE_CHECKING:
    from common.schema import Feature


def check_links(features: "Sequence[Feature]", labels: "Sequence[Feature]") -> None:
    """Raises InvalidInput: a name of another feature leads to none, or to a feature that does not fit."""
    for label in labels:
        if label.dtype == "bytes":
            raise InvalidInput(f"label {label.name} is bytes, expected float32, int64 or string")
        if label.row_lengths_name:
            raise InvalidInput(f"label {label.name} is a list of lists, expected a scalar or a list of one")
        if label.weights_of:
            raise InvalidInput(f"label {label.name}: weights_of is for features")
    known = {feature.name: feature for feature in features}
    for feature in features:
        if feature.tensor and feature.tensor.shape_field is not None:
            _check_shape_field(feature, feature.tensor.shape_field, known)
        if feature.weights_of is not None:
            _check_weights_of(feature, feature.weights_of, known)


def check_aliases(columns: "Sequence[Feature]") -> None:
    """Raises InvalidInput: an alias would hide a feature, or would be for two."""
    names = {feature.name for feature in columns}
    name_of: dict[str, str] = {}
    for feature in columns:
        for alias in feature.aliases:
            if alias == feature.name:
                raise InvalidInput(f"feature {feature.name}: alias {alias!r} is its own name; leave it out")
            if alias in names:
                raise InvalidInput(f"feature {feature.name}: alias {alias!r} is the name of another feature")
            if alias in name_of:
                both = dict.fromkeys((name_of[alias], feature.name))
                raise InvalidInput(f"the alias {alias!r} is there twice, of {' and '.join(both)}; expected one feature")
            name_of[alias] = feature.name


def _check_shape_field(feature: "Feature", name: str, known: "Mapping[str, Feature]") -> None:
    sizes = _linked(feature, "shape_field", name, known)
    if sizes.dtype != "int64" or len(sizes.shape) != 1 or sizes.is_variable_length or not sizes.required:
        raise InvalidInput(
            f"feature {feature.name}: shape_field {name} must be a required int64 feature of shape [rank]"
        )
    if not feature.required:
        raise InvalidInput(f"feature {feature.name}: a tensor with a shape_field is required")


def _check_weights_of(feature: "Feature", name: str, known: "Mapping[str, Feature]") -> None:
    ids = _linked(feature, "weights_of", name, known)
    if ids.shape != (None,) or ids.dtype not in ("int64", "string") or ids is feature:
        raise InvalidInput(
            f"feature {feature.name}: weights_of {name} must be an int64 or string feature of shape [null]"
        )


def _linked(feature: "Feature", key: str, name: str, known: "Mapping[str, Feature]") -> "Feature":
    found = known.get(name)
    if found is None:
        raise InvalidInput(
            f"feature {feature.name}: {key} {name!r} is no feature; there are {', '.join(known)}"
            f"{did_you_mean([name], known)}"
        )
    return found
