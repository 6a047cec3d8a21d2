"""Which line of code made each operation of a traced function: a profile by code is read from it."""

import re
from typing import Any

from services.trainer.families.package_name import PACKAGE_PREFIX

_OF_DEFINITION = re.compile(rf"{PACKAGE_PREFIX}[^/]*/(.+)$")
_OURS = re.compile(r"/(services/trainer/.+)$")
_INNER = ("_body_graph", "_cond_graph", "_true_graph", "_false_graph")
LOOP = re.compile(r"^(?:.*/)?while/(?:body/_\d+/while/)?")
"""Before the name of an operation in the loop over batches, in the graph as it runs and as it was traced."""


def places_of(graph: Any) -> dict[str, str]:
    """{operation, without the loop that it is in: "net.py:9 (call)"}; "" where no line of ours or the definition's is.

    The definition's innermost line counts, and of what it has none the trainer's.

    Args:
        graph: of a concrete function; loops and branches are looked into.
    """
    found, waiting = dict[str, str](), [graph]
    while waiting:
        operations = waiting.pop().get_operations()
        found |= {LOOP.sub("", operation.name): _place_of(operation.traceback) for operation in operations}
        waiting += [
            inner
            for operation in operations
            for name in _INNER
            if (inner := getattr(operation, name, None)) is not None
        ]
    return found


def _place_of(traceback: Any) -> str:
    frames = [*reversed([*(traceback or ())])]
    for pattern in (_OF_DEFINITION, _OURS):
        for frame in frames:
            if matched := pattern.search(frame.filename):
                return f"{matched.group(1)}:{frame.lineno} ({frame.name})"
    return ""
