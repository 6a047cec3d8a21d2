"""Imported last by a process that forks services from then on: what a fork need neither make anew nor look through for
garbage, which costs a copy of each of its pages. A start of a registry takes 0.1 s of a core so, in place of 0.45."""

import gc
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from common.process.health import Health
from services.registry.doors.http_api import create_registry_app
from services.registry.tests.building import Clock, new_catalog, publish
from testing.compiled_once import share_what_is_compiled

_nothing: Any = None
create_registry_app(_nothing, Health())  # compiles templates, patterns and types, which their libraries keep
share_what_is_compiled()
with tempfile.TemporaryDirectory() as _folder, closing(new_catalog(Path(_folder), Clock())) as _catalog:
    publish(_catalog)  # whose statements are compiled by now
gc.collect()
gc.freeze()
