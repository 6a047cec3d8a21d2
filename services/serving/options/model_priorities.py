"""Which models go before others where they share a replica: in memory, on the cores, in the front's bound."""

from collections.abc import Mapping
from enum import IntEnum

from common.errors import InvalidInput


class ModelPriority(IntEnum):
    """Ascending."""

    LOW = 0
    NORMAL = 1
    HIGH = 2


Priorities = Mapping[str, ModelPriority]
"""By model; NORMAL for those that are not in it."""


def priorities_of(text: str) -> dict[str, ModelPriority]:
    """Of a setting like `flights=high,digits=low`. Raises InvalidInput: it is of another form, or names a model
    twice."""
    found = dict[str, ModelPriority]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        model, equals, name = (word.strip() for word in part.partition("="))
        if not (model and equals and name.upper() in ModelPriority.__members__):
            raise InvalidInput(f"SERVING_MODEL_PRIORITIES has {part!r}, expected model=low, model=normal or model=high")
        if model in found:
            raise InvalidInput(f"SERVING_MODEL_PRIORITIES names model {model} twice")
        found[model] = ModelPriority[name.upper()]
    return found
