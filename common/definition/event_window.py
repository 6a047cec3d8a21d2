"""What a model sees of an event: of some features, the values of the events of its key before it, too.

event_window: {features: [amount, merchant], size: 10, stride: 1, lookback_records: 1000}
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from common.definition.fields import Allowed, optional
from common.errors import InvalidInput
from common.schema import Feature, Schema

_MOST_EVENTS = 10_000
_MOST_RECORDS = 1_000_000


@dataclass(frozen=True)
class EventWindow:
    """Attributes:
    features: of the stream; each becomes a list, a step for each event of the window, the oldest first.
    size: events of a window at most, the event itself among them.
    stride: from the event back, every stride-th event of the key.
    lookback_records: in how many records of the log before the event's its window begins at the earliest.
    """

    features: tuple[str, ...]
    size: Annotated[int, Allowed(minimum=2, maximum=_MOST_EVENTS)]
    stride: Annotated[int, Allowed(maximum=_MOST_EVENTS)] = 1
    lookback_records: Annotated[int, Allowed(maximum=_MOST_RECORDS)] = 1000

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self) | {"features": list(self.features)}

    def seen(self, schema: Schema) -> Schema:
        """The stream as the model sees it. A window ends with its event: labels and other features are that event's.
        Raises InvalidInput: the stream has no key, or a feature cannot be a list."""
        if schema.key is None:
            raise InvalidInput("event_window: the stream needs a key: a window has events of one key, in their order")
        for name in self.features:
            _check(schema.own_feature(name, "event_window"), schema)
        steps = tuple(
            replace(feature, shape=(None, *feature.shape)) if feature.name in self.features else feature
            for feature in schema.features
        )
        return replace(schema, features=steps)


def read_event_window(section: object) -> EventWindow | None:
    """Raises InvalidInput."""
    window = optional(section, "event_window", lambda fields: fields.made(EventWindow))
    if window is None:
        return None
    if not window.features:
        raise InvalidInput("event_window: features is empty; name what becomes a list")
    if window.size * window.stride > _MOST_EVENTS:
        raise InvalidInput(
            f"event_window: size times stride is at most {_MOST_EVENTS}, got {window.size * window.stride}"
        )
    return window


def _check(feature: Feature, schema: Schema) -> None:
    roles: Sequence[tuple[str | None, str]] = (
        (schema.key, "the key"), (schema.weight, "the weight"), (schema.event_time, "the event time"),
        (schema.late_labels.key if schema.late_labels else None, "the key of late labels"),
    )  # fmt: skip
    role = next((role for name, role in roles if name == feature.name), "")
    if not role and (feature.is_variable_length or feature.is_decoded or feature.dtype == "bytes"):
        role = "a list of any length" if feature.is_variable_length else "bytes"
    if role:
        raise InvalidInput(f"event_window: {feature.name} is {role}, which cannot be the step of a list")
