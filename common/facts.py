"""Facts of records and status, where an object has some of those that there may be."""

from typing import Any


def present(**facts: Any) -> dict[str, Any]:
    """Without None, empty texts and empty collections; numbers and truth values stay, 0 and False too.

    >>> present(warnings={}, steps=0, parent=None, process={"warm": True})
    {'steps': 0, 'process': {'warm': True}}
    """
    return {name: fact for name, fact in facts.items() if fact or isinstance(fact, bool | int | float)}
