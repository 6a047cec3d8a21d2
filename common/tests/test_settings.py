"""Settings come from the environment; what is misspelt or of the wrong type stops the start with its name."""

from pathlib import Path

import pytest
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from common.errors import InvalidInput
from common.process.health import Health
from common.process.settings import ServiceSettings
from testing.rows import each_row


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
        "unknown setting TESTSERVICE_PROT; _Settings knows TESTSERVICE_ACCESS_FILE, "
        "TESTSERVICE_ALLOWED_HOSTS, TESTSERVICE_ALLOW_ANONYMOUS, TESTSERVICE_HOST, TESTSERVICE_LOG_FORMAT, "
        "TESTSERVICE_LOG_LEVEL, TESTSERVICE_MAX_CALLS_PER_PRINCIPAL, "
        "TESTSERVICE_MAX_CONNECTIONS_PER_PRINCIPAL, TESTSERVICE_NAME, TESTSERVICE_PORT, "
        "TESTSERVICE_SERVICE_TOKEN_FILE, TESTSERVICE_TLS_CA_FILE, TESTSERVICE_TLS_CERTIFICATE_FILE, "
        "TESTSERVICE_TLS_CLIENT_CERTIFICATES, TESTSERVICE_TLS_KEY_FILE, TESTSERVICE_TRACE_SAMPLE"
    )


@each_row("value", ["high", "-1"])
def test_a_value_of_the_wrong_type_or_range_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TESTSERVICE_PORT", value)
    with pytest.raises(InvalidInput, match="invalid setting: TESTSERVICE_PORT"):
        _Settings.from_environment()


def test_an_empty_path_is_none_and_other_empty_text_is_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTSERVICE_SERVICE_TOKEN_FILE", "")
    monkeypatch.setenv("TESTSERVICE_NAME", "")
    settings = _Settings.from_environment()
    assert (settings.service_token_file, settings.authorization(), settings.name) == (None, None, "")


def test_settings_do_not_change_afterwards() -> None:
    settings = _Settings.from_environment()
    with pytest.raises(ValueError, match="frozen"):
        setattr(settings, "port", 1)  # noqa: B010  # the type checker would not let it pass


@each_row("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_on_this_machine_alone_nobody_is_asked_for_credentials(host: str) -> None:
    assert not _Settings.from_environment().open_access(host).is_on


@each_row("host", ["0.0.0.0", "::", "10.0.0.7", "registry", ""])
def test_where_other_machines_come_credentials_are_asked_for_or_the_start_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str
) -> None:
    with pytest.raises(InvalidInput, match="requests need no credentials"):
        _Settings.from_environment().open_access(host)
    monkeypatch.setenv("ALLOW_ANONYMOUS", "yes")
    allowed = _Settings.from_environment().open_access(host)
    assert (allowed.is_on, "everyone who reaches this port" in allowed.remark) == (False, True)
    monkeypatch.delenv("ALLOW_ANONYMOUS")
    monkeypatch.setenv("ACCESS_FILE", str(tmp_path / "access.yaml"))
    (tmp_path / "access.yaml").write_text("principals: []")
    assert _Settings.from_environment().open_access(host).is_on


def test_a_service_may_have_an_access_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACCESS_FILE", str(tmp_path / "all.yaml"))
    monkeypatch.setenv("TESTSERVICE_ACCESS_FILE", str(tmp_path / "own.yaml"))
    assert _Settings.from_environment().access_file == tmp_path / "own.yaml"


@each_row("value", ["true", "1", "maybe"])
def test_anonymous_is_allowed_by_one_word_only(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ALLOW_ANONYMOUS", value)
    with pytest.raises(InvalidInput, match="ALLOW_ANONYMOUS"):
        _Settings.from_environment()


def test_identity_and_its_opposite_exclude_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALLOW_ANONYMOUS", "yes")
    monkeypatch.setenv("ACCESS_FILE", str(tmp_path / "access.yaml"))
    with pytest.raises(InvalidInput, match="take one away"):
        _Settings.from_environment().open_access("127.0.0.1")


@each_row(
    ("given", "message"),
    [
        ({"TLS_CERTIFICATE_FILE": "a.pem"}, "belong together"), ({"TLS_KEY_FILE": "a.pem"}, "belong together"),
        ({"TLS_CA_FILE": "a.pem"}, "belong together"), ({"TLS_CLIENT_CERTIFICATES": "accepted"}, "belong together"),
        ({"TLS_CERTIFICATE_FILE": "a", "TLS_KEY_FILE": "b", "TLS_CLIENT_CERTIFICATES": "required"}, "TLS_CA_FILE"),
        ({"TLS_CERTIFICATE_FILE": "/none", "TLS_KEY_FILE": "/none"}, "/none cannot be read"),
        ({"TLS_CLIENT_CERTIFICATES": "some"}, "TLS_CLIENT_CERTIFICATES"),
    ],
)  # fmt: skip
def test_half_of_tls_stops_the_start(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], message: str) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=message):
        _Settings.from_environment().open_tls(Health())
