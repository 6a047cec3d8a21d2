"""Headrace: what a user holds. `headrace.Client` is the Python client; `headrace` on the command line is the rest."""

from headrace.client import Appended, Client, ServiceStatus
from headrace.places import Addresses

__all__ = ["Addresses", "Appended", "Client", "ServiceStatus"]
