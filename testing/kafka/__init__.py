"""A real Kafka for tests: `kafka` and its `kafka_address` for all of a worker's tests."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from common.access.authority import AUTHORITY, CERTIFICATE, KEY, issue_missing
from testing.jars import jars_or_skip
from testing.kafka.kafka_server import POM, KafkaServer
from testing.processes import free_port

_PASSWORD = "s3cret-of-Kafka"
_SECURE = """
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secure_port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secure_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
"""


@dataclass
class SharedKafka(KafkaServer):
    """At a second port it takes SASL over TLS only: user headrace, the password and the authority of these files."""

    secure_port: int = field(default_factory=free_port)

    @property
    def password_path(self) -> Path:
        return self.directory / "password"

    @property
    def authority_path(self) -> Path:
        return self.directory / "tls" / AUTHORITY

    def __post_init__(self) -> None:
        (folder,) = issue_missing(self.directory / "tls", ["kafka"], hosts=["127.0.0.1"], days=1)
        keystore, authority = self.directory / "keystore.pem", self.authority_path
        keystore.write_bytes((folder / KEY).read_bytes() + (folder / CERTIFICATE).read_bytes() + authority.read_bytes())
        self.password_path.write_text(f"{_PASSWORD}\n")
        self.format_arguments = ("--add-scram", f"SCRAM-SHA-512=[name=headrace,password={_PASSWORD}]")
        ports = {"port": self.port, "secure_port": self.secure_port, "controller_port": self.controller_port}
        self.properties = _SECURE.format(**ports, keystore=keystore, authority=authority)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedKafka]:
    """One a worker: its start takes 12 s of a core. A test that kills it starts it again."""
    jars_or_skip(POM)
    server = SharedKafka(tmp_path_factory.mktemp("kafka"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kafka_address(kafka: SharedKafka) -> str:
    """host:port."""
    return kafka.address
