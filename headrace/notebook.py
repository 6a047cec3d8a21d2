"""Headrace in a notebook: tables as DataFrames, predictions of a DataFrame, a round without a platform.

    import headrace
    hr = headrace.connect()
    hr.model("flights-late").versions        # a DataFrame
    hr.stream("flights").tail(100)           # a DataFrame
    headrace.run(schema, definition, frame).metrics

Needs pandas: pip install 'headrace[notebook]'.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import yaml

from common.errors import InvalidInput
from common.schema import Schema
from headrace.client.platform import Client
from headrace.files.definition_folder import DefinitionFolder
from headrace.files.event_files import events_of_frame
from headrace.local.check import check_events, check_round, doubts
from headrace.places import Addresses

if TYPE_CHECKING:
    from pandas import DataFrame

_DATA = "HEADRACE_DATA"


def connect(data: str | Path | None = None, *, addresses: Addresses | None = None) -> "Notebook":
    """The platform on a data directory (default: HEADRACE_DATA, else ./data), or at addresses. Raises NotFound: no
    platform runs there."""
    if addresses is not None:
        return Notebook(Client(addresses, by="notebook"))
    return Notebook(Client.of_platform(data or os.environ.get(_DATA, "data"), by="notebook"))


@dataclass(frozen=True)
class Notebook:
    """`client` has everything else."""

    client: Client

    @property
    def models(self) -> "DataFrame":
        return self.client.models().to_frame()

    @property
    def streams(self) -> list[str]:
        return [stream.name for stream in self.client.streams()]

    def model(self, name: str) -> "ModelView":
        """Raises NotFound: there is none."""
        self.client.model(name)
        return ModelView(self.client, name)

    def stream(self, name: str) -> "StreamView":
        """Raises NotFound: there is none."""
        self.client.stream(name)
        return StreamView(self.client, name)

    def run(self, schema: Mapping[str, Any], definition: Mapping[str, Any], frame: "DataFrame", **more: Any) -> "Run":
        """As `headrace.run`: in this process, not on the platform."""
        return run(schema, definition, frame, **more)


@dataclass(frozen=True)
class StreamView:
    client: Client
    name: str

    def tail(self, last: int = 100) -> "DataFrame":
        """The newest events, the newest last."""
        return _pandas().DataFrame(self.client.tail(self.name, last))

    def append(self, frame: "DataFrame") -> int:
        """Sends the rows as events; how many were accepted."""
        return self.client.append(self.name, frame).accepted

    def statistics(self, last: int = 10_000) -> "DataFrame":
        """A row per field, without the sketches and the grid of quantiles."""
        fields = self.client.stream_statistics(self.name, last)["fields"]
        left_out = ("sketches", "quantiles", "top")
        rows = {name: {k: v for k, v in facts.items() if k not in left_out} for name, facts in fields.items()}
        return _pandas().DataFrame.from_dict(rows, orient="index")


@dataclass(frozen=True)
class ModelView:
    client: Client
    name: str

    @property
    def versions(self) -> "DataFrame":
        """Oldest first: metrics on the held-out slice, verdicts, counts."""
        return self.client.versions(self.name).to_frame()

    def load(self, version: int = 0) -> Any:
        """A version as a Keras model, in this process, whose `predict` takes a DataFrame; 0: the version in production.
        `hr.client.load_model` gives TensorFlow's own object."""
        return self.client.load(self.name, version)

    def predict(self, frame: "DataFrame", *, version: int | None = None) -> "DataFrame":
        """Asks serving; a row of outputs for each row, under the same index."""
        answers = self.client.predict(self.name, instances=frame, version=version)
        rows = [answer if isinstance(answer, Mapping) else {"prediction": answer} for answer in answers]
        return _pandas().DataFrame(rows, index=frame.index)


@dataclass(frozen=True)
class Run:
    """What `run` trained.

    Attributes:
        metrics: on the held-out slice.
        events_unusable: that the model cannot learn from; `warnings` has the reasons.
        warnings: what the data lacks, what the model does not come to, what the gate would miss; a sentence each.
        folder: the version's files: saved_model/, checkpoint/, tensorboard/, statistics/.
    """

    metrics: Mapping[str, float]
    events_trained: int
    events_held_out: int
    events_unusable: int
    warnings: Sequence[str]
    folder: Path

    def load(self) -> Any:
        """The export as a Keras model, in this process; `predict` takes a DataFrame, `signatures` are TensorFlow's."""
        from headrace.client.loading import load_as_keras

        return load_as_keras(self.folder, [path for path in self.folder.rglob("*") if path.is_file()])


def run(
    schema: Mapping[str, Any],
    definition: Mapping[str, Any],
    frame: "DataFrame",
    *,
    files: Mapping[str, str | bytes] | None = None,
    limit_seconds: float = 3600.0,
) -> Run:
    """Trains one version on the rows of a DataFrame, without a platform: the round that a platform would run.

    Args:
        schema: what stream.yaml says, with `stream`, `features` and `labels`.
        definition: what model.yaml says.
        files: further files of the definition by path: a module as text, weights or words as bytes.

    Raises:
        InvalidInput: the schema, the definition or rows do not fit, or the round fails; the sentence says why.
    """
    stream = {key: value for key, value in schema.items() if key != "stream"}
    contents = {"model.yaml": yaml.safe_dump(dict(definition), sort_keys=False).encode()}
    contents |= {path: file.encode() if isinstance(file, str) else file for path, file in (files or {}).items()}
    folder = DefinitionFolder(
        str(schema.get("stream", "")),
        stream,
        str(definition.get("name", "")),
        str(definition.get("stream", "")),
        contents,
    )
    checked, model = folder.checked()
    if frame.empty:
        raise InvalidInput("the frame has no rows to learn from")
    work_dir = Path(tempfile.mkdtemp(prefix="headrace-run-"))
    columns = {feature.name: feature for feature in checked.columns}
    rows = events_of_frame(frame, columns)
    (work_dir / "events.ndjson").write_bytes(b"".join(orjson.dumps(row, default=str) + b"\n" for row in rows))
    found = check_events(work_dir, Schema.from_mapping(stream).to_json())
    first = "".join(f"; row {index}: {reason}" for index, reason in found.refused[:1])
    found.refuse(f"of the {len(frame):,} rows are refused{first}")
    done = check_round(work_dir, contents, on_step=lambda step: None, limit_seconds=limit_seconds, whole=True)
    folder_of_version = work_dir / "versions" / str(done["model"]) / "1"
    trained, held_out, unusable = (int(done[name]) for name in ("trained", "held_out", "unusable"))
    return Run(dict(done["metrics"]), trained, held_out, unusable, tuple(doubts(model, done)), folder_of_version)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise InvalidInput("this needs pandas: pip install 'headrace[notebook]'") from error
    return pandas
