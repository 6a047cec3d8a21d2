"""Bodies of the HTTP door: checked requests, and answers without the numbers that JSON lacks."""

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal

from fastapi import Path, Query
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from common.definition.gate import read_gate
from common.errors import InvalidInput
from common.process.author import LEFT_OUT, By
from common.registry.catalog import MOST_LISTED
from common.registry.statements import MAX_ENVELOPE_CHARACTERS
from common.registry.wire import json_text
from services.registry.versions.pushed import Measured

END = 2**63
"""Above every number that the catalog can hold."""
Listed = Annotated[int, Query(gt=0, le=MOST_LISTED)]
VersionNumber = Annotated[int, Path(gt=0, lt=END)]
Text = Annotated[str, Field(max_length=2_000)]
"""A bound has pydantic refuse half surrogate pairs, too, which nothing can store."""


class ModelBody(BaseModel):
    """A model's definition; `files` maps paths to base64."""

    model_config = ConfigDict(extra="forbid")
    stream: Text
    files: dict[Text, str]
    by: By = LEFT_OUT


class AuthorBody(BaseModel):
    """The author of a change and the reason."""

    model_config = ConfigDict(extra="forbid")
    by: By = LEFT_OUT
    reason: Text = ""


class RollbackBody(AuthorBody):
    """A rollback, and the fate of the events behind it."""

    events: Literal["", "learn", "leave_out"] = ""


class AliasBody(AuthorBody):
    """Where an alias shall point."""

    version: int = Field(gt=0, lt=END, strict=True)


class PushedFile(BaseModel):
    """A file that is stored already, and where it belongs."""

    model_config = ConfigDict(extra="forbid")
    path: Text
    size_bytes: int = Field(ge=0, lt=END, strict=True)
    digest: Text


class MeasuredBody(BaseModel):
    """A trainer's figures of a version made elsewhere, as its /v1/measurements gives them."""

    model_config = ConfigDict(extra="forbid")
    against: int = Field(gt=0, lt=END, strict=True)
    gate: dict[str, Any]
    metrics: dict[Literal["candidate", "parent"], dict[str, float]]
    evaluation: dict[str, Any] = {}
    held_out: int = Field(ge=0, lt=END, strict=True)

    def measured(self) -> Measured:
        """Raises InvalidInput: the gate is none."""
        metrics = {str(side): values for side, values in self.metrics.items()}
        return Measured(self.against, read_gate(self.gate), metrics, self.evaluation, self.held_out)


class PushBody(AuthorBody):
    """A version made elsewhere, at `origin` in a few words. Where it was measured, the gate judges it."""

    files: list[PushedFile] = Field(max_length=10_000)
    origin: Text = ""
    measured: MeasuredBody | None = None
    signature: str = Field("", max_length=MAX_ENVELOPE_CHARACTERS)
    """A DSSE envelope (docs/guide/trust.md) of the number that the version will have."""


class PinBody(AuthorBody):
    """Where production shall stay; 0: where it is."""

    version: int = Field(0, ge=0, lt=END, strict=True)


class StreamPart(BaseModel):
    """A stream to register."""

    model_config = ConfigDict(extra="forbid")
    name: Text
    schema_: dict[str, Any] = Field(alias="schema")


class ModelPart(BaseModel):
    """A model to register; `files` maps paths to base64."""

    model_config = ConfigDict(extra="forbid")
    name: Text
    files: dict[Text, str]


class ApplyBody(BaseModel):
    """A stream, a model or both, registered together."""

    model_config = ConfigDict(extra="forbid")
    stream: StreamPart | None = None
    model: ModelPart | None = None
    by: By = LEFT_OUT
    dry_run: bool = Field(False, strict=True)


def decoded(path: str, text: str) -> bytes:
    """Raises InvalidInput when it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"file {path} is not base64: {error}") from error


def json_answer(value: object) -> Response:
    """JSON knows no NaN and no infinity: they are written as null."""
    return Response(json_text(_plain(value)), media_type="application/json")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
