"""Which server holds which variable."""

from collections.abc import Mapping

from common.definition.asynchronous import ROUND_ROBIN


def placed(sizes: Mapping[str, int], servers: int, rule: str) -> dict[str, int]:
    """Path to number of the server.

    round_robin   in turns, in the order of the variables
    greedy        the largest first, each to the server that has the fewest bytes so far

    Args:
        sizes: of each variable, in bytes.
    """
    if rule == ROUND_ROBIN:
        return {path: index % servers for index, path in enumerate(sizes)}
    loads, found = [0] * servers, dict[str, int]()
    for path in sorted(sizes, key=lambda path: -sizes[path]):
        found[path] = loads.index(min(loads))
        loads[found[path]] += sizes[path]
    return {path: found[path] for path in sizes}
