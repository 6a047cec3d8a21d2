"""Which of the versions that are there should be served: TensorFlow Serving's latest, all and specific."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class VersionPolicy:
    kind: Literal["latest", "all", "specific"] = "latest"
    count: int = 1
    """Of `latest`: how many of the highest numbers."""
    versions: tuple[int, ...] = ()
    """Of `specific`."""

    def select(self, found: Collection[int]) -> tuple[int, ...]:
        """The versions to serve, newest first; of those asked for by number, the ones that are there."""
        newest_first = sorted(found, reverse=True)
        if self.kind == "latest":
            return tuple(newest_first[: self.count])
        if self.kind == "specific":
            return tuple(version for version in newest_first if version in self.versions)
        return tuple(newest_first)

    def missing(self, found: Collection[int]) -> tuple[int, ...]:
        """Versions that were asked for by number and are not there."""
        return tuple(sorted(set(self.versions) - set(found)))
