"""Headrace: what a user holds. `headrace.Client` is the Python client; `headrace` on the command line is the rest."""

from common.errors import Conflict, DataLoss, HeadraceError, InvalidInput, NotFound, Overloaded, Unavailable
from headrace.client import Appended, Client, ServiceStatus
from headrace.places import Addresses

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
    "ServiceStatus",
    "Unavailable",
]
