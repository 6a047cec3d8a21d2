"""Asynchronous steps (section `training`, key `asynchronous`): servers hold the variables and the optimizer,
workers fetch them, compute the gradient of a batch each and send it back (downpour SGD: Dean et al., NIPS 2012).

    asynchronous: {workers: 2, servers: 1, placement: greedy}            each gradient is a step as soon as it comes
    asynchronous: {workers: 2, max_staleness: 4}                         bounded staleness (Ho et al., NIPS 2013)
    asynchronous: {workers: 3, take: 2}                                  a step takes the first 2 and drops the later
    asynchronous: {workers: 3, stagger_steps: 100}                       the second begins at step 100, the third at 200

What comes out depends on who was faster, so such a version says `reproducible: false`, and training it again is
compared by its metrics.
"""

from dataclasses import dataclass
from typing import Annotated

from common.definition.fields import Allowed, optional
from common.errors import InvalidInput

ROUND_ROBIN, GREEDY = "round_robin", "greedy"
MOST_WORKERS, MOST_SERVERS = 32, 16


@dataclass(frozen=True)
class Asynchronous:
    """Attributes:
    workers: processes that compute gradients.
    servers: processes that hold the variables, their slots among them.
    placement: of variables on servers: in turns, or the largest first, each to the server with the fewest bytes.
    max_staleness: the most batches that a worker may be ahead of the slowest; None: any number.
    take: gradients that a step is the mean of, the first to come; None: each gradient is a step.
    stagger_steps: a worker gets its first batch this many steps after its predecessor; 0: all begin at once.
    tolerance: by which a metric of the version trained again may differ, as a share of the larger of both.
    """

    workers: Annotated[int, Allowed(maximum=MOST_WORKERS)] = 2
    servers: Annotated[int, Allowed(maximum=MOST_SERVERS)] = 1
    placement: Annotated[str, (ROUND_ROBIN, GREEDY)] = GREEDY
    max_staleness: Annotated[int | None, Allowed(minimum=0, maximum=1_000_000)] = None
    take: int | None = None
    stagger_steps: Annotated[int, Allowed(minimum=0, maximum=1_000_000)] = 0
    tolerance: Annotated[float, Allowed(minimum=0.0)] = 0.05


def parse_asynchronous(section: object) -> Asynchronous | None:
    """None where it is not asked for. Raises InvalidInput: which key, what was expected."""
    found = optional(section, "asynchronous", lambda fields: fields.made(Asynchronous))
    if found is None:
        return None
    if found.take and found.take > found.workers:
        raise InvalidInput(f"asynchronous: take is {found.take}, expected at most workers, {found.workers}")
    if found.take and found.max_staleness is not None:
        raise InvalidInput(
            "asynchronous: with take no gradient of an earlier step counts; leave max_staleness out, or take"
        )
    if found.stagger_steps and (found.take or found.max_staleness is not None):
        raise InvalidInput(
            "asynchronous: stagger_steps has workers begin late, for whom max_staleness or take would wait; keep one"
        )
    return found
