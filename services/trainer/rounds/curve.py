"""The losses of a round, batch by batch: the whole, what regularisers and layers added in it, and the pass it is of."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from services.trainer.families.port import Losses, Trainable
from services.trainer.summaries.events import Curves

_COLUMNS = 3


class LossCurve:
    """`rows`: float32 [n, 3 + norms]: loss, added, pass, and the norms of learn/norms.py. What is added is NaN where
    the loss is one number, norms where they are not measured."""

    def __init__(self, rows: NDArray[np.float32] | None = None) -> None:
        self._parts = [] if rows is None else [rows]

    def add(self, losses: Losses, added: Losses, *, pass_index: int, norms: Losses) -> None:
        self._parts.append(np.column_stack([losses, added, np.full_like(losses, pass_index), norms]))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def cut(self, count: int) -> None:
        """Forgets all but the first losses."""
        self._parts = [self.rows[:count]]

    @property
    def rows(self) -> NDArray[np.float32]:
        self._parts = [np.concatenate(self._parts) if self._parts else np.zeros((0, _COLUMNS), np.float32)]
        return self._parts[0]

    def means_of_last_pass(self) -> dict[str, float]:
        """`loss`, `data_loss` and `regularization_loss`, the means over the batches; the first alone where that is
        all there is; empty where no batch was."""
        rows = self.rows[:, :_COLUMNS].astype(np.float64)
        if not len(rows):
            return {}
        loss, added, _ = rows[rows[:, 2] == rows[-1, 2]].mean(axis=0).tolist()
        if np.isnan(added):
            return {"loss": loss}
        return {"loss": loss, "data_loss": loss - added, "regularization_loss": added}

    def by_step(self, training: Trainable) -> Curves:
        rows = self.rows
        steps, losses = training.curve(rows[:, 0])
        _, added = training.curve(rows[:, 1])
        return Curves(steps.tolist(), losses.tolist(), training.rates(steps), added.tolist())

    def norms(self, names: Sequence[str]) -> list[tuple[int, Mapping[str, float]]]:
        """(step, {name: norm}) of each step that was measured; `names` as the training has them, the step first."""
        if not names or not len(self):
            return []
        measured = self.rows[:, _COLUMNS:]
        return [
            (int(row[0]), dict(zip(names[1:], row[1:].tolist(), strict=True)))
            for row in measured[~np.isnan(measured[:, 0])]
        ]
