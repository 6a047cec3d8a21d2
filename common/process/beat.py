"""Moments at which all that happens now and then happens together, on a whole machine: after a message gRPC's threads
look out for the next one some twenty times, each for itself, before they sleep."""

import time


def until_next(period_seconds: float) -> float:
    """Seconds until the monotonic clock, which all processes of a machine share, is a multiple of the period."""
    return period_seconds - time.monotonic() % period_seconds
