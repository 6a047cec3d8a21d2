"""The client's calls that send events: one by one, a DataFrame, files, or a body as it is.

`Client` inherits them.
"""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

from common.schema import Schema
from common.storage import place_of
from headrace.client.bodies import encode, segment
from headrace.client.doors import Doors
from headrace.files.event_files import events_of_frame

if TYPE_CHECKING:
    from pandas import DataFrame

Event = Mapping[str, Any]
OnInvalid = Literal["reject", "deadletter"]


@dataclass(frozen=True)
class Appended:
    """What ingest answered.

    Attributes:
        accepted: events now in the stream.
        refused: (index in the request, reason) of each event that went to the dead letters.
        position: {partition: offset just after the last record with an event of this request}.
        duplicate: the idempotency key was known; nothing was appended now.
    """

    accepted: int
    refused: tuple[tuple[int, str], ...]
    position: Mapping[int, int]
    duplicate: bool


class Ingesting(Doors):
    """See above."""

    def ingest(
        self,
        stream: str,
        events: "Sequence[Event] | DataFrame | str | Path",
        *,
        idempotency_key: str | None = None,
        on_invalid: OnInvalid = "reject",
    ) -> Appended:
        """As `append`; a path or URL means the events of a file, of a folder or of a name with *, as `headrace ingest`
        reads them: in batches, each with its own key. After an error the same call with the same key goes on. Raises
        what `append` raises; InvalidInput: a file cannot be read, says where."""
        if not isinstance(events, str | Path):
            return self.append(stream, events, idempotency_key=idempotency_key, on_invalid=on_invalid)
        from headrace.files.batches import batches_of_all
        from headrace.files.upload_state import UploadState

        state = UploadState(stream, idempotency_key or uuid.uuid4().hex)
        files = state.files(place_of(str(events)), None)
        schema = Schema.from_json(self.stream(stream).schema_json)
        answers: list[Appended] = []
        refused: list[tuple[int, str]] = []
        with closing(batches_of_all(files, schema, lenient=on_invalid == "deadletter")) as found:
            sent = 0
            for batch in found:
                answer = self.append_body(
                    stream, batch.body, batch.content_type, idempotency_key=state.key_of(batch), on_invalid=on_invalid
                )
                answers.append(answer)
                refused += [(sent + index, reason) for index, reason in answer.refused]
                sent += batch.count
        position: dict[int, int] = {}
        for answer in answers:
            position.update(answer.position)
        accepted = sum(answer.accepted for answer in answers)
        return Appended(accepted, tuple(refused), position, bool(answers) and all(taken.duplicate for taken in answers))

    def append(
        self,
        stream: str,
        events: "Sequence[Event] | DataFrame",
        *,
        idempotency_key: str | None = None,
        on_invalid: OnInvalid = "reject",
    ) -> Appended:
        """Appends events; returns when the log holds them. Numpy arrays are fine as values.

        A DataFrame's rows are made to fit the stream's schema as `headrace ingest` does with a file's.

        Args:
            idempotency_key: the same key again appends nothing; without it, each call makes its own, so that a
                repetition by this client never doubles events.

        Raises:
            InvalidInput: an event does not fit the schema; `refused` names each. NotFound: no such stream.
            Overloaded, Unavailable: the time was over before ingest could take it.
        """
        body = encode({"events": self._rows_of(stream, events)})
        return self.append_body(
            stream, body, "application/json", idempotency_key=idempotency_key, on_invalid=on_invalid
        )

    def _rows_of(self, stream: str, events: "Sequence[Event] | DataFrame") -> list[Event]:
        if not hasattr(events, "to_dict"):
            return list(events)
        columns = {item.name: item for item in Schema.from_json(self.stream(stream).schema_json).columns}
        return [*events_of_frame(events, columns)]

    def label(
        self, stream: str, labels: "Sequence[Event] | DataFrame", *, idempotency_key: str | None = None
    ) -> Appended:
        """Appends labels that come after their events: rows of the key of the stream's late_labels and its labels.
        Raises what `append` raises; Conflict: the stream has no late_labels."""
        rows = list(labels) if not hasattr(labels, "to_dict") else self._label_rows(stream, labels)
        body = encode({"labels": rows})
        return self.append_body(stream, body, "application/json", idempotency_key=idempotency_key, into="labels")

    def _label_rows(self, stream: str, frame: "DataFrame") -> list[Event]:
        schema = Schema.from_json(self.stream(stream).schema_json).of_late_labels(stream)
        return [*events_of_frame(frame, {item.name: item for item in schema.columns})]

    def append_body(
        self,
        stream: str,
        body: bytes,
        content_type: str,
        *,
        idempotency_key: str | None = None,
        on_invalid: OnInvalid = "reject",
        into: Literal["events", "labels"] = "events",
    ) -> Appended:
        """Like append or label, with a body made elsewhere: JSON, NDJSON lines or TFRecord-framed tf.train.Examples."""
        query = "" if on_invalid == "reject" else "?" + urlencode({"on_invalid": on_invalid})
        headers = {"Content-Type": content_type, "Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        path = f"/v1/streams/{segment(stream)}/{into}{query}"
        document = self._ingest.call("POST", path, body, headers=headers, repeatable=True).json()
        return Appended(
            accepted=int(document["accepted"]),
            refused=tuple((int(item["index"]), str(item["reason"])) for item in document.get("refused", ())),
            position={int(partition): int(offset) for partition, offset in document.get("position", {}).items()},
            duplicate=bool(document.get("duplicate", False)),
        )
