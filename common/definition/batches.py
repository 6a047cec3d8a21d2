"""Which rows go into a batch, and how they are changed there (section `training`).

balance: late                                                            # or {head: late, at_most: 10}
bucket_by_sequence_length: {feature: tags, boundaries: [10, 50], batch_sizes: [256, 64, 16]}
augment: {photo: [random_flip, {name: random_rotation, factor: 0.1}]}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.definition.feature_sources import has_any_length
from common.definition.features import Embedding, FeatureSpec, Indicator, Text
from common.definition.fields import Fields
from common.definition.keras_names import AUGMENTATIONS, Named, read_options
from common.errors import InvalidInput
from common.schema import Feature, Schema
from common.suggestions import did_you_mean

MIXING = ("mix_up", "cut_mix")
"""Augmentations that mix examples, with their labels."""
_MOST_LAYERS = 16
_MOST_BUCKETS = 64


@dataclass(frozen=True)
class Balance:
    """Rows of a head's rarer classes are taken again until each class of a block has as many as the most frequent.

    Attributes:
        at_most: how often a row is taken in a pass.
    """

    head: str
    at_most: int = 10


@dataclass(frozen=True)
class Bucketing:
    """Batches of lists that are about as long, as tf.data's bucket_by_sequence_length makes them.

    Attributes:
        feature: an input of any length.
        boundaries: a length on one goes to the upper bucket.
        batch_sizes: of each bucket, one more than boundaries.
    """

    feature: str
    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]


Augmentations = Mapping[str, tuple[Named, ...]]
"""By feature, Keras's layers that change a batch of its images, one after the other."""


def read_balance(section: object) -> Balance | None:
    if section is None:
        return None
    fields = Fields("balance", {"head": section} if isinstance(section, str) else section)
    balance = Balance(fields.text("head"), fields.integer("at_most", Balance.at_most, minimum=2, maximum=1000))
    fields.finish()
    return balance


def read_bucketing(section: object) -> Bucketing | None:
    """Raises InvalidInput."""
    if section is None:
        return None
    fields = Fields("bucket_by_sequence_length", section)
    bucketing = Bucketing(
        fields.text("feature"),
        fields.integers("boundaries", maximum=1_000_000),
        fields.integers("batch_sizes", maximum=1_000_000),
    )
    fields.finish()
    boundaries, sizes = bucketing.boundaries, bucketing.batch_sizes
    if not boundaries or list(boundaries) != sorted(set(boundaries)) or len(boundaries) > _MOST_BUCKETS:
        raise InvalidInput(
            f"bucket_by_sequence_length: boundaries must be 1 to {_MOST_BUCKETS} lengths that increase, got "
            f"{list(boundaries)}"
        )
    if len(sizes) != len(boundaries) + 1:
        raise InvalidInput(
            f"bucket_by_sequence_length: batch_sizes has {len(sizes)}, expected {len(boundaries) + 1}: one for each "
            f"bucket, the last for lists longer than all boundaries"
        )
    return bucketing


def check_bucketing(bucketing: Bucketing, specs: Mapping[str, FeatureSpec], schema: Schema) -> None:
    """Raises InvalidInput where the feature has no lists of different lengths. `specs`: an estimator's; else none."""
    known = [*(specs or (feature.name for feature in schema.features))]
    if bucketing.feature not in known:
        meant = did_you_mean([bucketing.feature], known)
        raise InvalidInput(f"bucket_by_sequence_length: there is no feature {bucketing.feature!r}{meant}")
    if not _has_lists(bucketing.feature, specs, schema):
        raise InvalidInput(f"bucket_by_sequence_length: {bucketing.feature} has lists of one length only")


def _has_lists(name: str, specs: Mapping[str, FeatureSpec], schema: Schema) -> bool:
    if not specs:
        return schema.feature(name).is_variable_length
    spec = specs[name]
    ids = specs[spec.of] if isinstance(spec, Embedding | Indicator) else spec
    return isinstance(ids, Text) or has_any_length(ids, specs, schema)


def read_augmentations(section: object) -> Augmentations:
    """Raises InvalidInput."""
    if not isinstance(section, Mapping) or not all(isinstance(entries, list | tuple) for entries in section.values()):
        raise InvalidInput(f"training: augment must be a mapping of feature to a list of layers, got {section!r}")
    return {str(feature): _layers(str(feature), entries) for feature, entries in section.items()}


def _layers(feature: str, entries: Sequence[object]) -> tuple[Named, ...]:
    if not 1 <= len(entries) <= _MOST_LAYERS:
        raise InvalidInput(f"augment: {feature} needs 1 to {_MOST_LAYERS} layers, got {len(entries)}")
    return tuple(_layer(feature, entry) for entry in entries)


def _layer(feature: str, entry: object) -> Named:
    fields = Fields(f"augment: {feature}", {"name": entry} if isinstance(entry, str) else entry)
    name = fields.choice("name", tuple(AUGMENTATIONS))
    named = Named(name, read_options(fields, AUGMENTATIONS[name]))
    fields.finish()
    return named


def check_augmentations(augmentations: Augmentations, schema: Schema) -> None:
    """Raises InvalidInput where a feature is no image, or its values have no range that a layer needs."""
    for name, layers in augmentations.items():
        _check_image(schema.own_feature(name, "augment"), layers)


def _check_image(feature: Feature, layers: Sequence[Named]) -> None:
    shape = feature.seen_shape
    if len(shape) != 3 or None in shape or feature.seen_dtype != "float32":
        raise InvalidInput(
            f"augment: {feature.name} is {feature.seen_dtype} {list(shape)}; expected images, float32 [height, width, "
            f"channels]"
        )
    for layer in layers:
        takes_range = "value_range" in AUGMENTATIONS[layer.name].options and "value_range" not in layer.options
        if feature.image is None and takes_range:
            raise InvalidInput(
                f"augment: {feature.name}: {layer.name} needs value_range, [lowest, highest] of its values: the schema "
                f"does not say that it is an image"
            )
