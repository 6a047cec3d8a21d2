"""Headrace: what a user holds. `headrace.Client` is the Python client of the platform, `headrace.PredictionClient` the
one of predictions alone; `headrace` on the command line is the rest.
"""

from typing import TYPE_CHECKING, Any

from common.errors import (
    Conflict,
    DataLoss,
    HeadraceError,
    InvalidInput,
    NotFound,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from headrace.client.ingesting import Appended
from headrace.client.platform import Client, ServiceStatus
from headrace.places import Addresses

if TYPE_CHECKING:
    from headrace.client.prediction_types import PendingPrediction, Prediction
    from headrace.client.predictions import PredictionClient
    from headrace.notebook import connect, run

__all__ = [
    "Addresses",
    "Appended",
    "Client",
    "Conflict",
    "DataLoss",
    "HeadraceError",
    "InvalidInput",
    "NotFound",
    "Overloaded",
    "PendingPrediction",
    "PermissionDenied",
    "Prediction",
    "PredictionClient",
    "ServiceStatus",
    "Unauthenticated",
    "Unavailable",
    "connect",
    "run",
]


def __getattr__(name: str) -> Any:
    """What needs numpy is imported when it is first used."""
    if name == "PredictionClient":
        from headrace.client.predictions import PredictionClient

        return PredictionClient
    if name in ("PendingPrediction", "Prediction"):
        from headrace.client import prediction_types

        return getattr(prediction_types, name)
    if name in ("connect", "run"):
        from headrace import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module headrace has no attribute {name!r}")
