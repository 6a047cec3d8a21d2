"""Which changes of a schema are compatible: events of the old schema are read under the new schema."""

import json

from common.errors import Conflict
from common.schema import Feature, Schema


def check_compatible(old: Schema, new: Schema) -> None:
    """Passes when every event written under `old` can be read under `new`: the schema only widens.

    A new optional feature, a wider range, more words (at any place: what was learned moves by word), an optional
    feature that was required and another default are wider. What was written before keeps the values it has. Raises
    Conflict: with each reason."""
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
    keys = [schema.late_labels.key if schema.late_labels else None for schema in (old, new)]
    if keys[0] not in (None, keys[1]):
        reasons.append(f"the key of late_labels changed from {keys[0]!r} to {keys[1]!r}")
    topics = [schema.source.topic if schema.source else None for schema in (old, new)]
    if topics[0] != topics[1]:
        here = [f"Kafka topic {topic}" if topic else "ingest" for topic in topics]
        reasons.append(f"the events came from {here[0]} and would come from {here[1]}, where offsets mean others")
    if reasons:
        raise Conflict(
            f"the new schema is not compatible: {'; '.join(reasons)}. A schema may widen: new optional features, wider "
            f"ranges, more words. For anything else make another stream"
        )


def _narrowings(before: Feature, after: Feature) -> list[str]:
    """Why events with the old feature may not be read as the new feature."""
    name = before.name
    kinds = [_in_words(feature) for feature in (before, after)]
    if kinds[0] != kinds[1]:
        return [f"{name} changed from {kinds[0]} to {kinds[1]}"]
    reasons = [f"{name} is required now"] if after.required and not before.required else []
    if before.image and after.image and after.image.format not in ("any", before.image.format):
        reasons.append(f"{name} takes {after.image.format} images now and took {before.image.format} before")
    if after.weights_of not in (None, before.weights_of):
        reasons.append(f"{name} is weights_of {after.weights_of} now and could hold any number before")
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


def _in_words(feature: Feature) -> str:
    """Dtype, shape and kind, without what may widen."""
    words = f"{feature.dtype} {list(feature.shape)}".removesuffix(" []")
    kinds = {"tensor": feature.tensor, "image": feature.image}
    for key, kind in kinds.items():
        if kind is not None:
            sizes = {part: value for part, value in kind.to_mapping().items() if part != "format"}
            words += f" {key} {json.dumps(sizes)}"
    return words
