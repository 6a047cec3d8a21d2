"""The client's calls that look closer: newest events, statistics of streams and versions, traces of rounds.

`Client` inherits them.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from common.errors import NotFound
from headrace.client.bodies import segment
from headrace.client.doors import Doors

_STATISTICS = "statistics/round.json"


class Looking(Doors):
    """See above."""

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
