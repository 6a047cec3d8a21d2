"""The client's calls about a model's and a stream's life: apply, compare, pause, pin, archive, delete, and the record.

`Client` inherits them; they need its doors and its name for the record.
"""

import base64
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

import orjson

from common.errors import InvalidInput, Unavailable
from common.registry.audit import Head, head_of
from common.registry.catalog import (
    MOST_LISTED,
    Applied,
    FileEntry,
    HistoryEntry,
    Model,
    OffsetRange,
    Round,
    Stream,
    ThinnedVersions,
    Version,
)
from headrace.client.bodies import build, list_of, segment
from headrace.client.doors import Doors
from headrace.client.rebuilds import measured
from headrace.client.tables import Versions
from headrace.client.trust import files_of
from headrace.files.own_files import own_files

if TYPE_CHECKING:
    from common.registry.client import RegistryClient
    from headrace.files.definition_folder import DefinitionFolder


@dataclass(frozen=True)
class Listing:
    """Versions of a model, oldest first. `not_loaded`: {version: {instance: why it could not load it}}, as the replicas
    report it; `thinned`: what retention thinned; `has_older`: whether there are versions before these."""

    versions: Versions
    not_loaded: dict[int, dict[str, str]]
    thinned: list[ThinnedVersions]
    has_older: bool


Change = Literal["pause", "resume", "unpin", "archive", "restore"]


class Lifecycle(Doors):
    """See above."""

    def _files(self) -> "RegistryClient":
        from common.process.tls import Tls, TlsFiles
        from common.registry.client import RegistryClient

        if not self.addresses.registry_grpc:
            raise Unavailable("the registry's gRPC door, which takes files, is not known; see Addresses.registry_grpc")
        shown = f"Bearer {self._token}"
        tls = Tls.of(TlsFiles(*files_of(self.addresses.ca_file))) if self._registry.url.startswith("https:") else None
        return RegistryClient(
            self.addresses.registry_grpc, authorization=(lambda: shown) if self._token else None, tls=tls
        )

    def apply(
        self,
        folder: "str | Path | DefinitionFolder",
        *,
        restart: Sequence[str] = (),
        allow_signature_change: bool = False,
        dry_run: bool = False,
    ) -> Applied:
        """Registers a folder's stream and model: both, or neither where one is refused.

        Args:
            restart: layers and tables that start anew although the model has versions; ["all"] for everything.
            allow_signature_change: versions of this definition may break the signatures of the version before them.
            dry_run: only say what would change.

        Raises:
            InvalidInput, NotFound, Conflict: as the registry refuses it; Conflict also where what a layer has learned
                cannot be carried and `restart` does not name it.
        """
        from common.definition.model import RESTART_FILE, SIGNATURES_FILE
        from headrace.files.definition_folder import DefinitionFolder, read_folder

        chosen = folder if isinstance(folder, DefinitionFolder) else read_folder(Path(folder))
        files = dict(chosen.files) if chosen.files is not None else None
        if restart:
            if files is None:
                raise InvalidInput("restart names layers of a model, and the folder has no model.yaml")
            files[RESTART_FILE] = orjson.dumps(list(restart))
        if allow_signature_change:
            if files is None:
                raise InvalidInput("allow_signature_change is about a model, and the folder has no model.yaml")
            files[SIGNATURES_FILE] = b"may_change: true\n"
        body: dict[str, Any] = {"by": self._by, "dry_run": dry_run}
        if chosen.schema is not None:
            body["stream"] = {"name": chosen.stream, "schema": chosen.schema}
        if files is not None:
            encoded = {path: base64.b64encode(content).decode() for path, content in files.items()}
            body["model"] = {"name": chosen.model, "files": encoded}
        return build(Applied, self._registry.post("/v1/apply", body, repeatable=True))

    def push(
        self, model: str, directory: Path, *, origin: str = "", reason: str = "", judge: bool = False,
        wait_seconds: float = 600.0, signing_key: Path | None = None,
    ) -> Version:  # fmt: skip
        """Registers a folder with a SavedModel as the model's next version. Needs grpcio.

        Args:
            judge: a trainer measures it beside the live version on what the last round held out, and the gate decides.
            wait_seconds: for that trainer.
            signing_key: a private key (PEM) that signs the version here.

        Raises:
            InvalidInput: it lacks a part or a tag, holds what no replica can run, or links out of the folder.
            Conflict: to be judged, but no round of the model has made a version; or another version took the number
                that was signed.
            NotFound: no such model.
            Unavailable: the registry takes no files here, or no trainer could measure it in time.
        """
        from common.registry.client import manifest_of

        own_files(directory)
        files = manifest_of(directory, "saved_model")
        with tempfile.TemporaryDirectory() as folder, closing(self._files()) as registry:
            (Path(folder) / "saved_model").symlink_to(directory.absolute())
            registry.upload(Path(folder), files)
        body: dict[str, Any] = {
            "by": self._by, "reason": reason, "origin": origin, "files": [asdict(file) for file in files]
        }  # fmt: skip
        if judge:
            request = {"by": self._by, "reason": reason, "files": body["files"]}
            job = self._trainer.post(f"/v1/models/{segment(model)}:measure", request, repeatable=True)
            body["measured"] = measured(self._trainer, str(job["measurement_id"]), wait_seconds=wait_seconds)
        if signing_key is not None:
            body["signature"] = self._signed(model, files, signing_key)
        return build(Version, self._registry.post(f"/v1/models/{segment(model)}:push", body))

    def _signed(self, model: str, files: Sequence[FileEntry], signing_key: Path) -> str:
        from common.registry.signing import read_signer
        from common.registry.statements import Statement, digests_of

        answer = self._registry.get(f"/v1/models/{segment(model)}")
        statement = Statement(model, int(answer["newest_version"]) + 1, digests_of(files), {"signer": self._by})
        return read_signer(signing_key).sign(statement)

    def definition(self, digest: str) -> dict[str, bytes]:
        """The files of a definition by its digest."""
        answer = self._registry.get(f"/v1/definitions/{segment(digest)}")
        return {path: base64.b64decode(text) for path, text in answer["files"].items()}

    def diff(self, model: str, from_version: int, to_version: int) -> Mapping[str, Any]:
        """Two versions side by side, as the registry tells it: configuration, definition, metrics, events, files."""
        query = urlencode({"from": from_version, "to": to_version})
        return self._registry.get(f"/v1/models/{segment(model)}/diff?{query}")

    def pause(self, model: str, *, reason: str = "") -> Model:
        """No round is planned until `resume`; a running round goes on to its end."""
        return self._change_model(model, "pause", reason)

    def resume(self, model: str, *, reason: str = "") -> Model:
        """Rounds are planned again, at once also after failures."""
        return self._change_model(model, "resume", reason)

    def pin(self, model: str, version: int = 0, *, reason: str = "") -> Model:
        """Production stays at the version (0: the present version); what passes the gate is held."""
        return build(Model, self._post(f"/v1/models/{segment(model)}:pin", reason, version=version))

    def unpin(self, model: str, *, reason: str = "") -> Model:
        """The next version that passes the gate is promoted again."""
        return self._change_model(model, "unpin", reason)

    def archive_model(self, model: str, *, reason: str = "") -> Model:
        """Neither trained nor served any more. Raises Conflict while a round of it is open."""
        return self._change_model(model, "archive", reason)

    def restore_model(self, model: str, *, reason: str = "") -> Model:
        """Undoes archiving."""
        return self._change_model(model, "restore", reason)

    def delete_model(self, model: str, *, reason: str = "", dry_run: bool = False) -> None:
        """Removes an archived model with its versions. Raises Conflict with what uses it, also with dry_run."""
        self._delete(f"/v1/models/{segment(model)}", reason, dry_run=dry_run)

    def archive_stream(self, stream: str, *, reason: str = "") -> Stream:
        """Takes neither events nor models any more. Raises Conflict while a model learns from it."""
        return build(Stream, self._post(f"/v1/streams/{segment(stream)}:archive", reason))

    def restore_stream(self, stream: str, *, reason: str = "") -> Stream:
        """Undoes archiving."""
        return build(Stream, self._post(f"/v1/streams/{segment(stream)}:restore", reason))

    def delete_stream(self, stream: str, *, reason: str = "", dry_run: bool = False) -> None:
        """Removes an archived stream; its events stay in the log. Raises Conflict with what uses it, also with
        dry_run."""
        self._delete(f"/v1/streams/{segment(stream)}", reason, dry_run=dry_run)

    def forget(
        self, model: str, *, ranges: Sequence[OffsetRange] = (), feature: str = "", value: str | int = "",
        reason: str = "", dry_run: bool = False, wait_seconds: float = 600.0,
    ) -> Mapping[str, Any]:  # fmt: skip
        """No later version learns the events at these places, or those whose feature has the value, nor descends from a
        version that has: {"examples", "learned_by", "head_version", "events_again", "seconds", "round_id", ...}.

        Args:
            dry_run: only say what would be.
            wait_seconds: for the trainer's answer, which reads the log.

        Raises:
            Conflict: a round is open, or all of it is forgotten already.
        """
        chosen = {"ranges": [asdict(part) for part in ranges]} if ranges else {"feature": feature, "value": value}
        body = {"by": self._by, "reason": reason, "dry_run": dry_run, **chosen}
        path = f"/v1/models/{segment(model)}:forget"
        return self._trainer.post(path, body, timeout_seconds=wait_seconds)

    def replay_triggers(
        self, model: str, *, triggers: Mapping[str, Any] | None = None, since: float = 0.0, wait_seconds: float = 600.0
    ) -> Mapping[str, Any]:
        """When the policy in force, and another section `triggers`, would have planned rounds over the log as it was:
        {"policies": [{"name", "versions", "trainer_seconds", "freshness_seconds", "fired", "plans", ...}], ...}.

        Args:
            since: epoch seconds; 0: from the log's start.
            wait_seconds: for the trainer's answer, which reads the log.
        """
        body, path = {"triggers": triggers, "since": since}, f"/v1/models/{segment(model)}/triggers:replay"
        return self._trainer.post(path, body, repeatable=True, timeout_seconds=wait_seconds)

    def fail_round(self, model: str, round_id: str, *, reason: str = "") -> Round:
        """Ends a round that is planned or running, with any holder."""
        return build(Round, self._post(f"/v1/models/{segment(model)}/rounds/{segment(round_id)}:fail", reason))

    def stop_round(self, model: str, round_id: str, *, reason: str = "") -> Round:
        """Its trainer saves a resume point and gives it back; it waits for `resume_round`."""
        return build(Round, self._post(f"/v1/models/{segment(model)}/rounds/{segment(round_id)}:stop", reason))

    def resume_round(self, model: str, round_id: str, *, reason: str = "") -> Round:
        """A stopped round goes on from its resume point. Raises Conflict: it is not stopped."""
        return build(Round, self._post(f"/v1/models/{segment(model)}/rounds/{segment(round_id)}:resume", reason))

    def history(
        self, *, model: str = "", stream: str = "", by: str = "", action: str = "", limit: int = 100
    ) -> list[HistoryEntry]:
        """Who did what, when and why, the newest first."""
        given = {"model": model, "stream": stream, "by": by, "action": action, "limit": limit}
        query = urlencode({name: value for name, value in given.items() if value})
        answer = self._registry.get(f"/v1/history?{query}")
        return [build(HistoryEntry, entry) for entry in answer["entries"]]

    def audit_lines(self, *, after: int = 0) -> Iterator[str]:
        """The audit log's entries behind that sequence number, each a JSON text, the oldest first."""
        while True:
            text = self._registry.call("GET", f"/v1/audit?{urlencode({'after': after})}", repeatable=True).content
            lines = text.decode().split("\n")[:-1]
            yield from lines
            if not lines:
                return
            after = head_of(lines[-1]).sequence

    def audit_head(self) -> Head:
        """Number and digest of the newest entry."""
        return build(Head, self._registry.get("/v1/audit/head"))

    def dead_letters(self, stream: str, *, limit: int = 100) -> list[Mapping[str, Any]]:
        """The newest first, each with its reason."""
        path = f"/v1/streams/{segment(stream)}/deadletters?{urlencode({'limit': limit})}"
        return list(self._ingest.get(path)["dead_letters"])

    def replay_dead_letters(self, stream: str) -> Mapping[str, Any]:
        """Appends those that fit the newest schema, each once for all time: {"replayed", "refused_count", ...}."""
        path = f"/v1/streams/{segment(stream)}/deadletters:replay"
        report: Mapping[str, Any] = self._ingest.call("POST", path, repeatable=True).json()
        return report

    def account(self, model: str) -> Mapping[str, Any]:
        """Where every event of its stream is: trained, held out, unusable, left out or waiting, with reasons."""
        return self._of_model(model, "account")

    def live(self, model: str) -> Mapping[str, Any]:
        """How good live versions are, by the labels that came: {"aliases", "counts", "versions": [{"version", "tracks",
        "judge"}]}."""
        return self._of_model(model, "live")

    def why(self, model: str) -> Mapping[str, Any]:
        """What stops the model, its last failure and what to do: {"state", "sentences", "advice", "failure", ...}."""
        return self._of_model(model, "why")

    def _of_model(self, model: str, part: str) -> Mapping[str, Any]:
        return self._registry.get(f"/v1/models/{segment(model)}/{part}")

    def serving(self) -> dict[str, Mapping[str, Any]]:
        """{model: {"version", "replicas": [instance], "available": [instance], "failed": {instance: reason},
        "converged_at"}} of production, as the replicas report it."""
        answer = self._registry.get("/v1/models")
        return {str(item["name"]): item["serving"] for item in answer["models"] if item.get("serving")}

    def listing(self, model: str, *, limit: int | None = None) -> Listing:
        """The newest `limit` versions of a model, or all, with what the registry says beside them."""
        items: list[Any] = []
        path, before = f"/v1/models/{segment(model)}/versions", 0
        while True:
            left = MOST_LISTED if limit is None else min(MOST_LISTED, limit - len(items))
            query = urlencode({"limit": left} | ({"before": before} if before else {}))
            answer = self._registry.get(f"{path}?{query}")
            items[:0] = list_of(answer, "versions", path)
            before = int(answer.get("older", 0))
            if not before or len(items) == limit:
                break
        found = {
            int(item["version"]): {str(at["instance_id"]): str(at["reason"]) for at in item.get("served_by", ())
                                   if at.get("reason")}
            for item in items
        }  # fmt: skip
        return Listing(
            Versions(build(Version, item) for item in items),
            {version: reasons for version, reasons in found.items() if reasons},
            [build(ThinnedVersions, entry) for entry in answer.get("thinned", ())],
            has_older=bool(before),
        )

    def instances(self) -> list[Mapping[str, Any]]:
        """Every instance of every service that has reported lately, as it says of itself."""
        answer = self._registry.get("/v1/instances")
        return list(answer["instances"])

    def _change_model(self, model: str, how: Change, reason: str) -> Model:
        return build(Model, self._post(f"/v1/models/{segment(model)}:{how}", reason))

    def _post(self, path: str, reason: str, **more: Any) -> Any:
        return self._registry.post(path, {"by": self._by, "reason": reason, **more})

    def _delete(self, path: str, reason: str, *, dry_run: bool) -> None:
        query = urlencode({"by": self._by, "reason": reason} | ({"dry_run": "true"} if dry_run else {}))
        self._registry.call("DELETE", f"{path}?{query}", repeatable=False)
