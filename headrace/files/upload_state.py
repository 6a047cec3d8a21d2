"""How far an upload came: {"stream", "key", "files": {place: position}}, written after each batch that was taken.

A crash between a batch's answer and the note leaves the batch to be sent again, under the same idempotency key.
"""

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import Conflict, InvalidInput, NotFound
from common.storage import Place
from common.whole_files import write_whole

if TYPE_CHECKING:
    from headrace.files.batches import Batch, SourceFile
    from headrace.files.sources import Position


@dataclass
class UploadState:
    """`path`: where it is kept; None: nowhere."""

    stream: str
    key: str
    path: Path | None = None
    positions: "dict[str, Position]" = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, stream: str, *, key: str) -> "UploadState":
        """The state that is kept there; where none is, a new state with that key.

        Raises:
            InvalidInput: it is no such file. Conflict: it is about another stream.
        """
        if path is None or not path.exists():
            return cls(stream, key, path)
        try:
            kept = json.loads(path.read_text())
            found = cls(str(kept["stream"]), str(kept["key"]), path, dict(kept["files"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{path} is no state of an upload: {error}") from error
        if found.stream != stream:
            raise Conflict(f"{path} is about stream {found.stream}, not {stream}")
        return found

    def files(self, place: Place, source: str | None) -> "list[SourceFile]":
        """What the place means, by name, each where reading it goes on.

        Args:
            source: reads all of them; None: each by its name. A source that is no file format may understand by a
                place something else than a file.

        Raises:
            InvalidInput: there is no such file, or its name does not say what it is.
        """
        from headrace.files.batches import SourceFile
        from headrace.files.class_folders import FORMATS as FOLDERS
        from headrace.files.event_files import FORMATS
        from headrace.files.sources import source_of

        try:
            found = [place] if source in FOLDERS else place.matching()
        except NotFound as error:
            if source is None or source in FORMATS:
                raise InvalidInput(f"{place} cannot be read: No such file or directory") from error
            found = [place]
        return [SourceFile(file, source or source_of(file), self.positions.get(str(file))) for file in found]

    def key_of(self, batch: "Batch") -> str:
        """Of the request, the same whenever the batch is sent."""
        where = json.dumps([self.key, str(batch.place), batch.begins_at], sort_keys=True)
        return blake2b(where.encode(), digest_size=16).hexdigest()

    def note(self, batch: "Batch") -> None:
        """The batch is taken."""
        self.positions[str(batch.place)] = batch.position
        if self.path is None:
            return
        document = {"stream": self.stream, "key": self.key, "files": self.positions}
        write_whole(self.path, (json.dumps(document, indent=1) + "\n").encode(), flush=False)
