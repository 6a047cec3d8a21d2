"""Labels that come after their event, by a key: `late_labels: {key: order_id, wait_seconds: 3600}` in a stream.

The labels of a stream are then optional in its events, and come as messages of the key and the labels to the topic
`labels.<stream>`. For how they find their prediction see services/trainer/live.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from common.errors import InvalidInput
from common.suggestions import refuse_unknown

LONGEST_WAIT_SECONDS = 30 * 24 * 3600.0
_KEYS = ("key", "wait_seconds")


@dataclass(frozen=True)
class LateLabels:
    """`key`: the feature that names an example. `wait_seconds`: a label that comes later than this counts as late."""

    key: str
    wait_seconds: float

    @classmethod
    def from_mapping(cls, value: object) -> Self:
        """Raises InvalidInput with the fault in words."""
        if not isinstance(value, Mapping) or any(part not in value for part in _KEYS):
            raise InvalidInput(f"late_labels must be {{key: FEATURE, wait_seconds: N}}, got {str(value)[:100]}")
        refuse_unknown("late_labels", value, _KEYS)
        key, wait = value["key"], value["wait_seconds"]
        if not isinstance(key, str):
            raise InvalidInput(f"late_labels: key must be the name of a feature, got {str(key)[:100]!r}")
        is_number = isinstance(wait, int | float) and not isinstance(wait, bool) and math.isfinite(wait)
        if not is_number or not 0 < wait <= LONGEST_WAIT_SECONDS:
            raise InvalidInput(
                f"late_labels: wait_seconds must be more than 0 and at most {LONGEST_WAIT_SECONDS:.0f}, got "
                f"{str(wait)[:100]}"
            )
        return cls(key, float(wait))

    def to_mapping(self) -> dict[str, Any]:
        return {"key": self.key, "wait_seconds": self.wait_seconds}
