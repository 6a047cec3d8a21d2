"""How many of the held-out events were trained on as well: as equal events (equality.py)."""

import numpy as np

from services.trainer.data.holdout import Keys, splitmix64
from services.trainer.rounds.prepared import PreparedBlock

_MOST_DISTINCT = 4_000_000


class EqualEvents:
    """Adds up the blocks of one pass. Memory holds 64 bits for each held-out event, and for each distinct
    trained event; past four million of these the counts are too small."""

    def __init__(self) -> None:
        self._trained = {name: _Distinct() for name in ("features", "event")}
        self._held_out: dict[str, list[Keys]] = {name: [] for name in self._trained}

    def add(self, block: PreparedBlock) -> None:
        of_block = {"features": block.equal, "event": splitmix64(block.equal ^ block.crcs)}
        for name, keys in of_block.items():
            self._held_out[name].append(keys[block.held_out_rows])
            self._trained[name].add(keys[block.trained_rows])

    def counts(self) -> dict[str, int]:
        """Of the held-out events, those that equal a trained one in their features, and in labels and all else too."""
        return {
            f"same_{name}": sum(int(np.isin(keys, trained.all()).sum()) for keys in self._held_out[name])
            for name, trained in self._trained.items()
        }


class _Distinct:
    """Keys that differ; sorted anew whenever they have doubled."""

    def __init__(self) -> None:
        self._known: Keys = np.zeros(0, np.uint64)
        self._new: list[Keys] = []
        self._new_count = 0

    def add(self, keys: Keys) -> None:
        if len(self._known) >= _MOST_DISTINCT:
            return
        self._new.append(keys)
        self._new_count += len(keys)
        if self._new_count > len(self._known):
            self.all()

    def all(self) -> Keys:
        if self._new:
            self._known = np.unique(np.concatenate([self._known, *self._new]))
            self._new, self._new_count = [], 0
        return self._known
