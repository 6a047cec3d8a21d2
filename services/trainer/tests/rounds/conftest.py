"""What tests of whole rounds begin with."""

from pathlib import Path

import pytest

from services.trainer.tests.support.small_rounds import Platform


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    """Nothing is in its log, and its versions have no saved_model/."""
    return Platform(tmp_path, exports=False)


@pytest.fixture
def exporting_platform(tmp_path: Path) -> Platform:
    """Nothing is in its log."""
    return Platform(tmp_path)
