"""The registry as a round's process has it: by calls to control, which may refuse them. There is no other way to it."""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from common.json_values import value_of
from common.registry import wire
from common.registry.catalog import FileEntry, JsonMap, Round, Stream, Version, VersionDraft
from protos import registry_pb2 as pb
from services.trainer.protocol import calls
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.calls import MOST_PLACES, Place


class RoundRegistry(Protocol):
    """What a round asks of the registry; `Outside` says what each call means."""

    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream: ...
    def get_definition(self, digest: str) -> dict[str, bytes]: ...
    def get_version(self, model: str, version: int) -> Version: ...
    def get_round(self, model: str, round_id: str) -> Round: ...
    def download(self, files: Sequence[FileEntry], directory: Path) -> int: ...
    def upload(self, directory: Path) -> tuple[tuple[FileEntry, ...], int]: ...
    def put_resume_point(self, state: JsonMap) -> None: ...
    def register_version(self, draft: VersionDraft) -> Version: ...
    def set_aside(self, places: Sequence[Place]) -> int: ...
    def close(self) -> None: ...


class Outside:
    """Thread-safe; also for processes that this process has forked. Raises the six, and PermissionDenied where
    a call is no business of this round."""

    def __init__(self, channel: int) -> None:
        """`channel`: the descriptor by which the process is connected to control."""
        self._channel = socket.socket(fileno=os.dup(channel))

    def close(self) -> None:
        self._channel.close()

    def get_stream(self, name: str, *, schema_version: int = 0) -> Stream:
        request = pb.GetStreamRequest(name=name, schema_version=schema_version)
        return wire.stream_from_wire(pb.Stream.FromString(self._call("GetStream", request.SerializeToString())))

    def get_definition(self, digest: str) -> dict[str, bytes]:
        answer = self._call("GetDefinition", pb.GetDefinitionRequest(digest=digest).SerializeToString())
        return wire.definition_from_wire(pb.Definition.FromString(answer).files)

    def get_version(self, model: str, version: int) -> Version:
        request = pb.GetVersionRequest(model=model, version=version)
        return wire.version_from_wire(pb.Version.FromString(self._call("GetVersion", request.SerializeToString())))

    def get_round(self, model: str, round_id: str) -> Round:
        request = pb.ListRoundsRequest(model=model, round_id=round_id)
        answer = self._call("ListRounds", request.SerializeToString())
        return wire.round_from_wire(pb.ListRoundsResponse.FromString(answer).rounds[0])

    def download(self, files: Sequence[FileEntry], directory: Path) -> int:
        """Files that this process was shown, to a folder of the round; the bytes that came."""
        request = {"directory": str(directory), "files": [asdict(file) for file in files]}
        return int(self._call_json("Download", request)["bytes"])

    def upload(self, directory: Path) -> tuple[tuple[FileEntry, ...], int]:
        """Of the work_dir, `output` or `resume`: its manifest, and the bytes that were sent."""
        answer = self._call_json("Upload", {"folder": directory.name})
        return tuple(value_of(FileEntry, file) for file in answer["files"]), int(answer["bytes"])

    def put_resume_point(self, state: JsonMap) -> None:
        """Of the files that were uploaded last."""
        self._call_json("PutResumePoint", {"state": state})

    def register_version(self, draft: VersionDraft) -> Version:
        """Ends the round with the files that were uploaded last; those of the draft and its gate do not count."""
        sent = wire.draft_to_wire(draft).SerializeToString()
        return wire.version_from_wire(pb.Version.FromString(self._call("RegisterVersion", sent)))

    def set_aside(self, places: Sequence[Place]) -> int:
        """Events of the range that could not be used, in the order of the log, after the version is registered; the
        number of dead letters."""
        parts = (places[start : start + MOST_PLACES] for start in range(0, len(places), MOST_PLACES))
        return sum(int(self._call_json("SetAside", {"places": part})["letters"]) for part in parts)

    def _call(self, name: str, body: bytes) -> bytes:
        return calls.call(self._channel, name, body)

    def _call_json(self, name: str, request: JsonMap) -> dict[str, Any]:
        return calls.as_json(self._call(name, json.dumps(request).encode()))


def registry_of(assignment: RoundAssignment) -> Outside:
    return Outside(assignment.channel)
