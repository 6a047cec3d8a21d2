"""Imported last by a process that forks services from then on: what a fork need neither make anew nor look through for
garbage, which costs a copy of each of its pages. A start of a registry takes 0.1 s of a core so, in place of 0.45."""

import gc
from typing import Any

from common.process.health import Health
from services.registry.doors.http_api import create_registry_app

_nothing: Any = None
create_registry_app(_nothing, Health())  # compiles templates, patterns and types, which their libraries keep
gc.collect()
gc.freeze()
