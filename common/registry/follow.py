"""Follows the registry: each service hears of changes through this loop, with one rule for breaks."""

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from common.errors import HeadraceError, Unavailable
from common.process.lifecycle import Stop
from common.process.retry import Backoff, Pauses
from common.registry.catalog import Change, ChangeKind

logger = logging.getLogger(__name__)
_BACKOFF = Backoff(first_seconds=0.1, longest_seconds=3.0)
_BEYOND_ANY_REVISION = 2**62
"""The registry never came that far, so it answers with a RESET that names its newest revision."""


class Watched(Protocol):
    """The part of RegistryClient that is used here."""

    def watch(self, since_revision: int = 0) -> Iterator[Change]: ...


def follow(
    registry: Watched,
    on_change: Callable[[Change], None],
    *,
    stop: Stop,
    on_away: Callable[[str], None] = lambda reason: None,
) -> None:
    """Reports every change until the stop; run it in a separate thread.

    Each connection begins with a RESET: anything may have changed, and another registry may answer, so a caller that
    keeps a picture draws it anew. An error that `on_change` raises counts as a break. `on_away` hears the reason of
    each break. What it takes to end is a heartbeat's time at most, spent in the watch.
    """
    pauses = Pauses(_BACKOFF)
    while not stop.is_requested():
        try:
            for change in registry.watch(_BEYOND_ANY_REVISION):
                if stop.is_requested():
                    return
                if change.kind is not ChangeKind.HEARTBEAT:
                    on_change(change)
                pauses.begin_again()
            raise Unavailable("the registry ended the watch")
        except HeadraceError as error:
            if stop.is_requested():
                return
            logger.warning("the registry is away", extra={"reason": error.message})
            on_away(error.message)
        except Exception:  # outermost loop: a thread that ends would leave the picture as it is, unnoticed
            logger.exception("following the registry failed unexpectedly")
            on_away("following the registry failed unexpectedly")
        stop.wait(pauses.next_seconds())
