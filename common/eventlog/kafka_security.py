"""How a Kafka is spoken to: what stands after `?` in `kafka:host:port[,host:port]?security_protocol=SASL_SSL&...`.

The names and values are kafka-python's: `security_protocol` (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL),
`sasl_mechanism` (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), `sasl_plain_username`, `ssl_cafile`, `ssl_certfile`,
`ssl_keyfile`; and `password_file`, which is read whenever a client is made.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl

from common.errors import InvalidInput
from common.peers import client_context, password_in

_PROTOCOL, _MECHANISM, _USER, _PASSWORD_FILE = (
    "security_protocol",
    "sasl_mechanism",
    "sasl_plain_username",
    "password_file",
)
_OF_SASL, _OF_SSL = (_MECHANISM, _USER, _PASSWORD_FILE), ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
_VALUES: Mapping[str, tuple[str, ...]] = {
    _PROTOCOL: ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    _MECHANISM: ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
}


@dataclass(frozen=True)
class KafkaSecurity:
    """`options` are as above."""

    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, query: str) -> Self:
        """Raises InvalidInput: an option is unknown, lacks another, or would be ignored."""
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        except ValueError as error:
            raise InvalidInput(f"the event log's options are not name=value&name=value: {error}") from error
        options = dict(pairs)
        protocol = options.get(_PROTOCOL, _VALUES[_PROTOCOL][0])
        sasl, tls = protocol.startswith("SASL_"), protocol.endswith("SSL")
        known = {_PROTOCOL, *(_OF_SASL if sasl else ()), *(_OF_SSL if tls else ())}
        if unknown := sorted(options.keys() - known):
            taken = ", ".join(sorted(known))
            raise InvalidInput(f"the event log has the option {', '.join(unknown)}; with {protocol} it takes {taken}")
        if len(options) < len(pairs):
            raise InvalidInput("the event log has an option twice")
        for name, values in _VALUES.items():
            if options.get(name, values[0]) not in values:
                raise InvalidInput(f"the event log's {name} is none of {', '.join(values)}")
        if missing := [name for name in _OF_SASL if sasl and not options.get(name)]:
            raise InvalidInput(f"the event log needs {', '.join(missing)} for {protocol}")
        return cls(options)

    def settings(self) -> dict[str, str]:
        """For kafka-python's clients. Raises Unavailable: the password file cannot be read."""
        found = dict(self.options)
        if path := found.pop(_PASSWORD_FILE, ""):
            found["sasl_plain_password"] = password_in(path, "Kafka")
        return found

    def context(self) -> ssl.SSLContext | None:
        """None for plain text. Raises OSError: a file cannot be used."""
        if not self.options.get(_PROTOCOL, "").endswith("SSL"):
            return None
        return client_context(*(self.options.get(name, "") for name in _OF_SSL))

    def files(self) -> list[str]:
        """Those that a client reads."""
        return [value for name, value in self.options.items() if name.endswith("file")]


NO_SECURITY = KafkaSecurity()


def kafka_of(rest: str) -> tuple[list[str], KafkaSecurity]:
    """Servers and how to speak to them, from what follows `kafka:`. Raises InvalidInput."""
    servers, _, query = rest.partition("?")
    return [server.strip() for server in servers.split(",")], KafkaSecurity.parse(query)
