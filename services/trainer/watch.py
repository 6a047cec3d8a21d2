"""Hears of changes in the registry, so that the next round is planned, and a planned one taken, without delay."""

import logging
import random
from collections.abc import Callable

from common.errors import Overloaded, Unavailable
from common.process.lifecycle import Stop
from common.registry.catalog import ChangeKind
from common.registry.client import RegistryClient

logger = logging.getLogger(__name__)
_RECONNECT_SECONDS = 0.5


def follow(registry: RegistryClient, on_change: Callable[[ChangeKind, str], None], stop: Stop) -> None:
    """Tells of every change until the stop; RESET stands for "anything may have changed".

    Runs in a thread of its own. It may hang in the stream for a heartbeat's time after the stop.
    """
    revision = 0
    while not stop.is_requested():
        try:
            for change in registry.watch(revision):
                if stop.is_requested():
                    return
                revision = change.revision
                if change.kind is not ChangeKind.HEARTBEAT:
                    on_change(change.kind, change.name)
        except (Unavailable, Overloaded) as error:
            logger.debug("the registry cannot be watched", extra={"error": error.message})
        except Exception:
            logger.exception("watching the registry failed unexpectedly")
        on_change(ChangeKind.RESET, "")
        stop.wait(_RECONNECT_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
