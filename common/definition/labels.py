"""Which labels of a stream a head may learn, and how many classes and outputs that makes."""

from common.counted import counted
from common.definition.heads import CLASSIFIERS, Head
from common.errors import InvalidInput
from common.schema import Feature, Schema
from common.suggestions import did_you_mean

_KINDS = {"string": "a string", "bytes": "bytes"}


def check_head(head: Head, schema: Schema, *, place: str, is_estimator: bool) -> None:
    """Raises InvalidInput where the stream's label is not there, or not of the kind that the task learns.

    A module's head may learn a feature: a stream then needs no label.
    """
    if head.task == "retrieval":
        _check_item(head, schema, place)
        return
    features = [feature.name for feature in schema.features]
    if head.label in features and is_estimator:
        raise InvalidInput(
            f"{place}: {head.label} is a feature of the stream, not a label; only a module's head may learn what the "
            f"model is given, as an autoencoder does"
        )
    labels = [label.name for label in schema.labels]
    names = labels if is_estimator else [*labels, *features]
    if head.label not in names:
        raise InvalidInput(
            f"{place}: the stream has no label {head.label!r}; its labels: {', '.join(labels) or 'none'}"
            f"{did_you_mean([head.label], names)}"
        )
    label = schema.feature(head.label)
    place = f"{place}: label {label.name}"
    if head.task == "embedding":
        _check_identity_label(label, place)
        return
    if head.task in CLASSIFIERS:
        _check_classes_label(head, label, place)
        count = class_count(head, label)
        if head.classes and head.classes != count:
            raise InvalidInput(f"{place} has {counted(count, 'class')}, the head says classes: {head.classes}")
        if count:
            check_classes(head, label, count, place=place)
        elif is_estimator or head.task == "multilabel":
            raise InvalidInput(f"{place}: the number of classes is not known; give the head classes, or the label a "
                               f"vocabulary or max")  # fmt: skip
        return
    _check_number_label(head, label, place)
    if head.task == "ranking":
        _check_ranked(head, label, schema, place)


def _check_ranked(head: Head, label: Feature, schema: Schema, place: str) -> None:
    if label.may_be_missing:
        raise InvalidInput(f"{place} may be missing, and a ranking compares every two events of a group")
    group = schema.own_feature(head.group, f"{place}: group")
    if not group.is_scalar or group.dtype not in ("string", "int64") or not group.required:
        raise InvalidInput(f"{place}: group {head.group} must be one required string or int64, whose events it orders")


def _check_item(head: Head, schema: Schema, place: str) -> None:
    item = schema.own_feature(head.label, f"{place}: the label of two_tower is the feature that names the item")
    if item.dtype not in ("string", "int64") or item.value_count != 1:
        raise InvalidInput(
            f"{place}: item {item.name} must be one string or int64, it is {item.dtype} {list(item.shape)}"
        )


def _check_classes_label(head: Head, label: Feature, place: str) -> None:
    if label.dtype == "bytes":
        raise InvalidInput(f"{place} is bytes, and a classifier learns classes")
    if label.dtype == "string" and not label.vocabulary:
        raise InvalidInput(
            f"{place} is a string without vocabulary; list the classes in the stream, as in vocabulary: [no, yes]"
        )
    if head.task == "multilabel":
        if label.is_variable_length and label.dtype != "float32" and len(label.shape) == 1:
            return
        if label.dtype == "string" or len(label.shape) != 1 or label.is_variable_length:
            raise InvalidInput(
                f"{place} is {label.dtype} {list(label.shape)}; a multilabel head learns [k] of 0 and 1 (int64 or "
                f"float32), or a list of any length of words with a vocabulary or of int64 ids"
            )
        return
    if head.task == "multiclass" and label.dtype == "float32" and len(label.shape) == 1 and label.value_count != 1:
        if head.loss.name == "categorical_generalized_cross_entropy":
            raise InvalidInput(f"{place} is a distribution, and loss {head.loss.name} takes classes (int64)")
        return
    if label.value_count != 1:
        raise InvalidInput(f"{place} must be one value, its shape is {list(label.shape)}")
    is_soft = label.minimum is not None and label.maximum is not None and 0 <= label.minimum <= label.maximum <= 1
    if label.dtype == "float32" and not (head.task == "binary" and is_soft):
        soft = "a probability as label says min: 0 and max: 1" if head.task == "binary" else "a distribution is [k]"
        raise InvalidInput(
            f"{place} is float32, and a classifier learns classes; make it int64 (0, 1, ...) or a string with the "
            f"classes as its vocabulary in the stream; {soft}"
        )


def _check_identity_label(label: Feature, place: str) -> None:
    is_known = label.dtype == "int64" or (label.dtype == "string" and label.vocabulary)
    if not is_known or label.value_count != 1:
        raise InvalidInput(f"{place} must be one int64 or one word of a vocabulary: which examples belong together")
    if label.may_be_missing:
        raise InvalidInput(f"{place} may be missing, and an embedding compares every two examples of a batch")


def _check_number_label(head: Head, label: Feature, place: str) -> None:
    if label.dtype in ("string", "bytes"):
        raise InvalidInput(
            f"{place} is {_KINDS[label.dtype]}, and a {head.task} learns numbers; make it float32 in the stream"
        )
    if head.task == "vector_regression":
        if len(label.shape) != 1 or label.is_variable_length:
            raise InvalidInput(f"{place} must be a list of fixed length, shape [k]; its shape is {list(label.shape)}")
        return
    if label.value_count != 1:
        raise InvalidInput(f"{place} must be one value, its shape is {list(label.shape)}")
    if head.task == "count" and label.maximum is not None and label.maximum < 0:
        raise InvalidInput(f"{place} may be {label.maximum:g} at most, and a count is 0 or more; see its max")


def class_count(head: Head, label: Feature) -> int:
    """What definition and stream say; 0 where only a module's network can (and for tasks without classes)."""
    if head.task == "binary":
        return 2
    if head.task not in CLASSIFIERS:
        return 0
    if len(label.shape) == 1 and not label.is_variable_length and (label.value_count or 0) > 1:
        return label.value_count or 0
    if head.classes:
        return head.classes
    return len(label.vocabulary) or (0 if label.maximum is None else int(label.maximum) + 1)


def unit_count(head: Head, label: Feature, classes: int) -> int:
    """How many numbers the network gives per example."""
    if head.task in ("multiclass", "multilabel"):
        return classes
    if head.task == "vector_regression":
        return label.value_count or 0
    return len(head.levels) or 1


def check_classes(head: Head, label: Feature, classes: int, *, place: str) -> None:
    """That every value the schema allows is one of the model's classes: what is none could never be trained on. Raises
    InvalidInput: the label's words or bounds, or the head's class_weights, do not go with the number of classes."""
    words = len(label.vocabulary)
    if label.dtype == "string" and words != classes:
        raise InvalidInput(
            f"{place} has {counted(words, 'class')} in its vocabulary and the model has {classes}; an estimator says "
            f"parameters: {{classes: {words}}}, a module's last layer has {counted(words, 'unit')}"
        )
    has_numbers = label.dtype == "int64" and (label.value_count == 1 or label.is_variable_length)
    if has_numbers and label.minimum is not None and label.minimum < 0:
        raise InvalidInput(f"{place} may be {label.minimum}, and classes are 0 to {classes - 1}; see its min")
    if has_numbers and label.maximum is not None and label.maximum > classes - 1:
        most = int(label.maximum)
        raise InvalidInput(
            f"{place} may be {most}, and the model has {counted(classes, 'class')}, 0 to {classes - 1}; an "
            f"estimator says parameters: {{classes: {most + 1}}}, a module's last layer has {counted(most + 1, 'unit')}"
        )
    known = label.vocabulary or tuple(str(number) for number in range(classes))
    if not any(head.class_weights.get(name, 1.0) for name in known):
        raise InvalidInput(f"{place}: class_weights are all 0, so nothing would be learned")
    unknown = [key for key in head.class_weights if key not in known]
    if unknown:
        raise InvalidInput(
            f"{place}: class_weights names {', '.join(unknown)}, which is no class; the classes are "
            f"{', '.join(known[:10])}{' ...' * (len(known) > 10)}"
        )
