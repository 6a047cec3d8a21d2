"""Features that all rows of a request share (`export: context`): their columns are made of one row, once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import tensorflow as tf

from common.schema import Feature
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.features.parsing import Raw
from services.trainer.features.transform import Transform


@dataclass(frozen=True)
class SharedContext:
    """Attributes:
    names: of the shared raw features.
    once: what makes the columns of these alone.
    by_row: what makes the others.
    """

    names: Sequence[str]
    once: Transform
    by_row: Transform

    @classmethod
    def of(cls, names: Sequence[str], inputs: Sequence[Feature], transform: Transform | None) -> Self | None:
        """None without names. Raises DefinitionFailedError: they would change nothing."""
        if not names:
            return None
        known = {feature.name for feature in inputs}
        once, by_row = transform.apart(names) if transform else (None, None)
        if not once or not by_row or not once.outputs or not {*names} < known:
            raise DefinitionFailedError(
                f"export: context has {', '.join(names)}; expected some of the model's inputs, not all of them "
                f"({', '.join(sorted(known))}), and a feature made of these alone"
            )
        return cls(names, once, by_row)

    def columns(self, raw: Raw) -> tuple[Raw, dict[str, tf.Tensor]]:
        """Raw features, of the shared ones a row, as whole rows; and the transform's columns of these."""
        count = tf.shape(next(values for name, values in raw.items() if name not in self.names))[0]

        def repeated(columns: Raw) -> dict[str, tf.Tensor]:
            return {name: tf.repeat(column, count, axis=0) for name, column in columns.items()}

        rows = {**raw, **repeated({name: raw[name] for name in self.names})}
        return rows, self.by_row.strict(rows) | repeated(self.once.strict(raw))
