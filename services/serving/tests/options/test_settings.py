"""Settings that do not fit together, or a service, are refused with a sentence."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.serving.__main__ import make_data_dir
from services.serving.options.settings import ServingSettings
from testing.rows import each_row


@each_row("bytes_per_second", [0, 20_000_000, 10**12])
def test_a_pace_for_downloads_may_be_any_that_ends_in_time(bytes_per_second: int) -> None:
    settings = ServingSettings.model_validate({"download_bytes_per_second": bytes_per_second})
    assert settings.download_bytes_per_second == bytes_per_second


def test_a_pace_at_which_a_download_would_be_given_up_is_refused() -> None:
    with pytest.raises(ValidationError, match="download_bytes_per_second must be 0 or at least 20_000_000"):
        ServingSettings.model_validate({"download_bytes_per_second": 19_999_999})


def test_a_gpu_and_an_engine_that_computes_on_cpus_are_refused_together() -> None:
    assert ServingSettings.model_validate({"device": "gpu"}).device == "gpu"
    with pytest.raises(ValidationError, match="device gpu needs engine tensorflow: auto computes on CPUs"):
        ServingSettings.model_validate({"device": "gpu", "engine": "auto"})


def test_the_data_directory_is_made_for_its_owner_only(tmp_path: Path) -> None:
    make_data_dir(tmp_path / "a" / "serving")
    assert (tmp_path / "a" / "serving").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    make_data_dir(tmp_path / "file" / "serving")  # whoever needs it says that it cannot be
