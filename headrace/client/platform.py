"""The Python client: every call of the platform, typed, over HTTP.

    import headrace

    client = headrace.Client()
    client.ingest("flights", [{"carrier": "UA", "distance": 1400.0, ...}])   # or a DataFrame, or "flights.csv"
    client.predict("flights-late", instances=[{"carrier": "UA", "distance": 1400.0, ...}])

Thread-safe. Every call has a timeout and raises one of the six errors of common/errors.py. Calls that may be repeated
(reading, predicting, appending under an idempotency key) are, while a service is away; the others are sent once.
"""

import base64
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import orjson

from common.errors import Conflict, HeadraceError, InvalidInput, NotFound, Unavailable
from common.registry.catalog import PRODUCTION, AliasChange, FileEntry, Model, Round, Stream
from common.registry.paths import path_below
from headrace.client.bodies import build, segment
from headrace.client.connection import Door, NoAnswer
from headrace.client.credentials import read_token, token_for
from headrace.client.ingesting import Ingesting
from headrace.client.lifecycle import Lifecycle
from headrace.client.predicting import Predicting
from headrace.client.rebuilds import OnWait, Rebuild, wait_for
from headrace.client.tables import Models, Versions
from headrace.places import addresses_of, token_file

_STATISTICS = "statistics/round.json"
_STATUS_TIMEOUT_SECONDS = 2.0
_LOOKED_AT = 10
"""Newest rounds of a model among which that of a request is looked for."""


@dataclass(frozen=True)
class ServiceStatus:
    """`conditions` is {condition: "ok" or what is missing}; empty when the service does not answer."""

    name: str
    url: str
    is_ready: bool
    conditions: Mapping[str, str]


class Client(Ingesting, Lifecycle, Predicting):
    """One platform. Use as a context manager, or call close()."""

    @classmethod
    def of_platform(
        cls, data_dir: str | Path, *, timeout_seconds: float = 30.0, by: str = "", token: str | None = None
    ) -> "Client":
        """The client of the local platform on that data directory.

        Args:
            token: as for `Client`; where there is none, the operator's that the platform keeps, if any.

        Raises:
            NotFound: no platform runs there.
        """
        addresses = addresses_of(Path(data_dir))
        kept = token_file(Path(data_dir), "operator")
        if token is None and not (token := token_for(addresses.registry)) and kept.exists():
            token = read_token(kept)
        return cls(addresses, timeout_seconds=timeout_seconds, by=by, token=token)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # streams and events

    def tail(self, stream: str, last: int = 100) -> list[dict[str, Any]]:
        """The newest events of a stream as rows, the newest last; at most 1,000."""
        path = f"/v1/streams/{segment(stream)}/events?last={last:d}"
        found: list[dict[str, Any]] = self._ingest.get(path)["events"]
        return found

    def stream_statistics(self, stream: str, last: int = 10_000) -> Mapping[str, Any]:
        """Of the newest events, by field, as common/statistics/sketches.py says; at most 20,000."""
        path = f"/v1/streams/{segment(stream)}/statistics?last={last:d}"
        return self._ingest.get(path)

    def version_statistics(self, model: str, version: int) -> Mapping[str, Any]:
        """Of the events of the version's round, by field. Raises NotFound: it has none; its definition may say so."""
        entry = next((file for file in self.version(model, version).files if file.path == _STATISTICS), None)
        if entry is None:
            raise NotFound(f"{model}@{version} has no statistics (training: {{summaries: {{statistics: true}}}})")
        found: Mapping[str, Any] = orjson.loads(self.file(entry))
        return found

    def profile_next_round(self, model: str, *, first_step: int, steps: int) -> Mapping[str, Any]:
        """Has steps of the model's next round traced; its version then has the files profile/*. Raises Conflict: the
        next round is to be traced already."""
        body = {"by": self._by, "first_step": first_step, "steps": steps}
        return self._trainer.post(f"/v1/models/{segment(model)}:profile", body)

    def register_stream(self, name: str, schema: Mapping[str, Any]) -> Stream:
        """Registers the schema, or a new version of it; the same schema again changes nothing.

        Raises:
            InvalidInput: it is not a schema. Conflict: it is not compatible with the one there.
        """
        return build(Stream, self._put(f"/v1/streams/{segment(name)}", schema).json())

    def streams(self) -> list[Stream]:
        return [build(Stream, item) for item in self._read("/v1/streams", "streams")]

    def stream_state(self, name: str) -> Mapping[str, Any]:
        """What ingest says of the stream: start and end position, counts, schema version."""
        return self._ingest.get(f"/v1/streams/{segment(name)}")

    # models, rounds and versions

    def register_model(self, name: str, *, stream: str, files: Mapping[str, bytes]) -> Model:
        """Registers a definition: model.yaml and optional Python files; the same files again change nothing."""
        encoded = {path: base64.b64encode(content).decode() for path, content in files.items()}
        body = {"stream": stream, "files": encoded, "by": self._by}
        return build(Model, self._put(f"/v1/models/{segment(name)}", body).json())

    def models(self) -> Models:
        """A list; `.to_frame()` makes a DataFrame of it."""
        return Models(build(Model, item) for item in self._read("/v1/models", "models"))

    def model(self, name: str) -> Model:
        return build(Model, self._registry.get(f"/v1/models/{segment(name)}"))

    def versions(self, model: str, *, limit: int | None = None) -> Versions:
        """The newest `limit`, or all; oldest first, without files. `.to_frame()` makes a DataFrame of the list."""
        return self.listing(model, limit=limit).versions

    def load_model(self, model: str, version: int = 0, *, into: str | Path | None = None) -> Any:
        """A version as an object of TensorFlow's, in this process.

        The versions of Headrace's trainer hold a SavedModel, and no Keras model: what comes is what
        `tf.saved_model.load` gives, to be called by its signatures: `loaded.signatures["serving_default"](x=tensor)`. A
        version of another trainer whose files have one `*.keras` comes as that Keras model, not compiled.

        Args:
            version: 0 for the version in production.
            into: the folder that gets its files; none: a new temporary folder, which stays.

        Raises:
            NotFound: there is no such version, or nothing is in production. InvalidInput: TensorFlow is not installed,
                or the version has neither a SavedModel nor one Keras file.
            DataLoss: a file is not what its digest says.
        """
        from headrace.client.loading import load

        return load(*self._fetched(model, version, into))

    def _fetched(self, model: str, version: int, into: str | Path | None) -> tuple[Path, list[Path]]:
        number = version or self.model(model).aliases.get(PRODUCTION, 0)
        if not number:
            raise NotFound(f"model {model} has no version in production yet")
        directory = Path(into or tempfile.mkdtemp(prefix=f"headrace-{model}-{number}-"))
        paths = {path_below(directory, entry.path): entry for entry in self.version(model, number).files}
        for path, entry in paths.items():
            self.fetch_file(entry, path)
        return directory, list(paths)

    def load(self, model: str, version: int = 0, *, into: str | Path | None = None) -> Any:
        """A version as a Keras model, in this process: `client.load("flights-late").predict(frame)`.

        Its `predict` takes a DataFrame, under names and aliases, as `Client.predict` does, or columns by input. It
        gives arrays by output. Arguments and errors: those of `load_model`.
        """
        from headrace.client.loading import load_as_keras

        return load_as_keras(*self._fetched(model, version, into))

    def loaded(self, model: str, version: int = 0) -> Any:
        """A version that answers in this process as serving would, a loading.LoadedVersion. Arguments and errors: those
        of `load_model`."""
        from headrace.client.loading import LoadedVersion

        directory, files = self._fetched(model, version, None)
        return LoadedVersion(directory, files, version or self.model(model).aliases[PRODUCTION])

    def loaded_point(self, model: str, round_id: str, *, trust_code: bool = False) -> Any:
        """A round's newest resume point, which answers as `loaded` does, as version 0. Needs TensorFlow and the
        trainer's packages here.

        Args:
            trust_code: the files beside model.yaml may run here, with this process's rights.

        Raises:
            NotFound: there is no such round, or it has no resume point. Conflict: it has made a version. InvalidInput:
                what it needs is not installed, or the definition has code that is not trusted. Unavailable: the
                export took longer than ten minutes. DataLoss: a file is not what its digest says.
        """
        from headrace.client.loading import LoadedVersion
        from headrace.client.point import write_point

        answer = self._registry.get(f"/v1/models/{segment(model)}/rounds/{segment(round_id)}")
        found = build(Round, answer)
        if found.version:
            raise Conflict(f"round {round_id} has made version {found.version}; name that version")
        if not answer.get("resume_point"):
            raise NotFound(f"round {round_id} is {found.state}, and has no resume point")
        definition = self.definition(found.plan.definition_digest)
        code = sorted(definition.keys() - {"model.yaml"})  # Python, libraries of operations, graphs
        if code and not trust_code:
            raise InvalidInput(
                f"the definition has code of its authors ({', '.join(code[:3])}), which would run on this machine with "
                "your rights; where you trust it, add --trust-code (trust_code=True)"
            )
        directory = Path(tempfile.mkdtemp(prefix=f"headrace-{model}-"))
        for item in answer["resume_point"]["files"]:
            entry = build(FileEntry, item)
            self.fetch_file(entry, path_below(directory / "point", entry.path))
        stream = self.stream(found.plan.stream, schema_version=found.plan.schema_version)
        files = write_point(directory, definition, stream.schema_json)
        return LoadedVersion(directory, files, 0)

    def fetch_file(self, entry: FileEntry, path: Path) -> None:
        """Writes one file of a version. Raises DataLoss: it is not what its digest says."""
        content = self.file(entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def rounds(self, model: str = "", *, limit: int = 50) -> list[Round]:
        """Of the model, or of all models together; newest first."""
        below = f"/models/{segment(model)}" if model else ""
        return [build(Round, item) for item in self._read(f"/v1{below}/rounds?{urlencode({'limit': limit})}", "rounds")]

    def train(
        self,
        model: str,
        *,
        reason: str = "",
        start: Literal["head", "scratch"] | Mapping[int, int] = "head",
        allow_signature_change: bool = False,
        wait_seconds: float | None = None,
    ) -> Round:
        """Plans a round now. Where no answer comes, the registry is asked whether it was planned.

        Args:
            start: "head": over what is new; "scratch": from nothing, over the log from its start; {partition: offset}:
                from there on, and what lies between is left out.
            allow_signature_change: the version may break the signatures of its predecessor; else it is rejected.
            wait_seconds: for the trainer's answer; None: as for every call.

        Raises:
            Conflict: there is nothing to learn, or a round is open.
            Unavailable: there was no answer, and the registry knows of no round that came of it.
        """
        request_id = secrets.token_hex(8)
        chosen = start if isinstance(start, str) else {str(partition): offset for partition, offset in start.items()}
        request: dict[str, Any] = {"by": self._by, "reason": reason, "request_id": request_id}
        request |= {} if start == "head" else {"from": chosen}
        request |= {"allow_signature_change": True} if allow_signature_change else {}
        path = f"/v1/models/{segment(model)}:train"
        try:
            document = self._trainer.post(path, request, timeout_seconds=wait_seconds)
        except NoAnswer as error:
            planned = self._planned_by(model, request_id)
            if planned is None:
                raise Unavailable(
                    f"{error.message}; a round may be planned all the same, `headrace rounds {model}` shows it"
                ) from error
            return planned
        # The trainer puts the plan's fields beside the round's own.
        return build(Round, {"plan": document, **document})

    def _planned_by(self, model: str, request_id: str) -> Round | None:
        """The round that the request planned; None where there is none yet, or the registry is away."""
        try:
            newest = self.rounds(model, limit=_LOOKED_AT)
        except HeadraceError:
            return None
        requests = ((found, found.plan.configuration.get("requested") or {}) for found in newest)
        return next((found for found, request in requests if request.get("request_id") == request_id), None)

    def rebuild(
        self, model: str, version: int, *, wait_seconds: float = 3600.0, on_wait: OnWait | None = None
    ) -> Rebuild:
        """Has a trainer train the version again from its lineage, and compares; changes nothing.

        Args:
            on_wait: called at every look before the end, with the trainer's answer: "state" is waiting or running.

        Raises:
            NotFound: no such version. Overloaded: too many wait for trainers already.
            Unavailable: not done within wait_seconds, or it could not be tried; the sentence says why.
        """
        path = f"/v1/models/{segment(model)}/versions/{version:d}:rebuild"
        job = self._trainer.post(path, {"by": self._by}, repeatable=True)
        return wait_for(self._trainer, str(job["rebuild_id"]), wait_seconds=wait_seconds, on_wait=on_wait)

    def trainer_status(self) -> Mapping[str, Any]:
        """Per model: lag in examples, the running round and its progress, the next trigger. Sent once."""
        return self._trainer.get("/v1/status", repeatable=False)

    # aliases

    def aliases(self, model: str) -> dict[str, int]:
        return dict(self.model(model).aliases)

    def alias_history(self, model: str) -> list[AliasChange]:
        """The newest thousand moves, oldest first; `history` has all."""
        return [build(AliasChange, item) for item in self._read(f"/v1/models/{segment(model)}/history", "changes")]

    def promote(self, model: str, version: int, *, alias: str = PRODUCTION, reason: str = "") -> Model:
        """Points the alias at the version; replicas follow within a second."""
        body = {"version": version, "by": self._by, "reason": reason}
        path = f"/v1/models/{segment(model)}/aliases/{segment(alias)}"
        return build(Model, self._put(path, body, repeatable=False).json())

    def rollback(self, model: str, *, reason: str = "", events: str = "") -> Model:
        """Points production at the version that it named before.

        Args:
            events: what becomes of those that only rolled-back versions have learned: "learn": the next round
                learns them again; "leave_out": no round does; "": as gate.on_reject has it.

        Raises:
            Conflict: there is none.
        """
        body = {"by": self._by, "reason": reason, "events": events}
        return build(Model, self._registry.post(f"/v1/models/{segment(model)}:rollback", body))

    # the platform

    def whoami(self) -> Mapping[str, Any]:
        """{"name", "roles"} of the token's principal; of `anonymous` where requests need no token."""
        return self._registry.get("/v1/whoami")

    def status(self) -> list[ServiceStatus]:
        """Every service, serving replica by replica; never raises for a service that is away."""
        named = {"registry": self.addresses.registry, "ingest": self.addresses.ingest}
        named |= {"trainer": self.addresses.trainer}
        named |= {f"serving-{index}": url for index, url in enumerate(self.addresses.serving)}
        seconds = _STATUS_TIMEOUT_SECONDS
        return [_status_of(self.door(name, url, timeout_seconds=seconds)) for name, url in named.items()]

    def replica_states(self) -> list[Mapping[str, Any]]:
        """/headrace/status of each serving replica: versions, states, runners, memory, queue. Sent once."""
        states: list[Mapping[str, Any]] = []
        for index, url in enumerate(self.addresses.serving):
            door = self.door(f"serving-{index}", url, timeout_seconds=_STATUS_TIMEOUT_SECONDS)
            try:
                states.append(door.get("/headrace/status", repeatable=False))
            finally:
                door.close()
        return states


def _status_of(door: Door) -> ServiceStatus:
    try:
        answer = door.get_once("/readyz")
        return ServiceStatus(door.name, door.url, answer.status == 200, answer.json().get("conditions", {}))
    except HeadraceError as error:
        return ServiceStatus(door.name, door.url, False, {"answers": error.message})
    finally:
        door.close()
