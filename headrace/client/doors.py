"""The doors of a platform, and the calls by which the others of the client are made. `Client` inherits them."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from common.errors import DataLoss
from common.registry.catalog import FileEntry, Stream, Version
from headrace.client.bodies import JSON, build, encode, list_of, segment
from headrace.client.connection import Answer, Door
from headrace.client.credentials import token_for
from headrace.places import Addresses

if TYPE_CHECKING:
    from headrace.client.predictions import PredictionClient


class Doors:
    """Of ingest, the registry, the trainer and serving."""

    def __init__(
        self,
        addresses: Addresses | None = None,
        *,
        timeout_seconds: float = 30.0,
        by: str = "",
        predictions_url: str = "",
        token: str | None = None,
    ) -> None:
        """Without addresses: the default ports on this machine.

        Args:
            timeout_seconds: the longest that a call may take, repetitions included.
            by: who is acting; recorded with promotions, rollbacks and manual rounds.
            token: what the services are shown; None: HEADRACE_TOKEN, the file that HEADRACE_TOKEN_FILE names, or what
                `headrace login` has stored.
            predictions_url: where `predictions` asks: http://host:port or grpc://host:port; none means the addresses'.
        """
        self._predictions_url = predictions_url
        self._predictions: PredictionClient | None = None
        self._timeout_seconds = timeout_seconds
        self.addresses = addresses or Addresses()
        self._by = by or "client"
        self._token = token_for(self.addresses.registry) if token is None else token
        self._ingest = self.door("ingest", self.addresses.ingest, timeout_seconds=timeout_seconds)
        self._registry = self.door("registry", self.addresses.registry, timeout_seconds=timeout_seconds)
        self._trainer = self.door("trainer", self.addresses.trainer, timeout_seconds=timeout_seconds)
        serving = self.addresses.predictions or self.addresses.serving[0]
        self._serving = self.door("serving", serving, timeout_seconds=timeout_seconds)

    def door(self, name: str, url: str, *, timeout_seconds: float) -> Door:
        """One of the platform's doors, which is shown the client's token."""
        ca_file = self.addresses.ca_file
        return Door(name, url, timeout_seconds=timeout_seconds, token=self._token, ca_file=ca_file)

    @property
    def token(self) -> str:
        """What the services are shown; "" where there is none."""
        return self._token

    def close(self) -> None:
        for door in (self._ingest, self._registry, self._trainer, self._serving):
            door.close()
        if self._predictions is not None:
            self._predictions.close()

    def stream(self, name: str, *, schema_version: int = 0) -> Stream:
        """With the newest schema, or the version asked for."""
        query = f"?{urlencode({'schema_version': schema_version})}" if schema_version else ""
        return build(Stream, self._registry.get(f"/v1/streams/{segment(name)}{query}"))

    def version(self, model: str, version: int) -> Version:
        return build(Version, self._registry.get(f"/v1/models/{segment(model)}/versions/{version:d}"))

    def file(self, entry: FileEntry) -> bytes:
        """The content of one file of a version. Raises DataLoss: it is not what its digest says."""
        content: bytes = self._registry.call("GET", f"/v1/files/{segment(entry.digest)}", repeatable=True).content
        if hashlib.sha256(content).hexdigest() != entry.digest:
            raise DataLoss(f"file {entry.path} came with another digest than {entry.digest}")
        return content

    def _put(self, path: str, body: Mapping[str, Any], *, repeatable: bool = True) -> Answer:
        return self._registry.call("PUT", path, encode(body), headers=JSON, repeatable=repeatable)

    def _read(self, path: str, name: str) -> list[Any]:
        """A list, bare or under its name."""
        return list_of(self._registry.get(path), name, path)
