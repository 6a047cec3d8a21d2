"""What tests of planning begin with."""

from pathlib import Path

import pytest

from common.registry.client import RegistryClient
from services.trainer.tests.support.plans import Plans
from services.trainer.tests.support.platform_processes import Events


@pytest.fixture
def plans(registry: RegistryClient, events: Events, tmp_path: Path) -> Plans:
    return Plans(registry, events, tmp_path)
