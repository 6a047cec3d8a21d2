"""Settings come from the environment; what is misspelt or of the wrong type stops the start with its name."""

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.errors import InvalidInput
from common.process.settings import ServiceSettings


class _Settings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="TESTSERVICE_", frozen=True, extra="forbid")

    port: int = Field(8000, ge=0)
    name: str = "a"


def test_variables_with_the_prefix_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTSERVICE_PORT", "9000")
    monkeypatch.setenv("OTHER_PORT", "1")
    settings = _Settings.from_environment()
    assert (settings.port, settings.name) == (9000, "a")


def test_a_misspelt_variable_stops_the_start_and_the_known_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTSERVICE_PROT", "9000")
    with pytest.raises(InvalidInput) as caught:
        _Settings.from_environment()
    assert caught.value.message == (
        "unknown setting TESTSERVICE_PROT; _Settings knows TESTSERVICE_ALLOWED_HOSTS, "
        "TESTSERVICE_NAME, TESTSERVICE_PORT, TESTSERVICE_TRACE_SAMPLE"
    )


@pytest.mark.parametrize("value", ["high", "-1"])
def test_a_value_of_the_wrong_type_or_range_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TESTSERVICE_PORT", value)
    with pytest.raises(InvalidInput, match="invalid setting: TESTSERVICE_PORT"):
        _Settings.from_environment()


def test_settings_do_not_change_afterwards() -> None:
    settings = _Settings.from_environment()
    with pytest.raises(ValueError, match="frozen"):
        setattr(settings, "port", 1)  # noqa: B010  # the type checker would not let it pass
