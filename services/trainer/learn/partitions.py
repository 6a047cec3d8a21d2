"""Tables in parts are one table to a checkpoint: variables <table>_table/part_k of a network, and the optimizer's slots
of each, are read and written together as <table>_table/table. So a checkpoint does not depend on the number of parts.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from services.trainer.families.estimators.layers import joined_rows, rows_of_part

_PART = re.compile(r"(model/.*_table/|optimizer/.*_table_)part_(\d+)(_\w+)?")


class WholeTable:
    """The parts as the one variable that they are: what checkpoint.py uses of a keras.Variable."""

    def __init__(self, parts: list[keras.Variable]) -> None:
        self._parts = parts
        self.shape = (sum(int(part.shape[0]) for part in parts), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    @property
    def value(self) -> "WholeTable":
        return self

    def read_value(self) -> NDArray[Any]:
        return joined_rows([np.asarray(part.value.numpy()) for part in self._parts])

    def assign(self, value: Any) -> None:
        whole = np.asarray(value)
        for number, part in enumerate(self._parts):
            part.assign(rows_of_part(whole, number, len(self._parts)))


def whole_tables(variables: Mapping[str, keras.Variable]) -> dict[str, Any]:
    """The variables by path, with one WholeTable in place of the parts of a table or slot."""
    found: dict[str, Any] = {}
    parts = defaultdict[str, dict[int, keras.Variable]](dict)
    for path, variable in variables.items():
        match = _PART.fullmatch(path)
        table = f"{match[1]}table{match[3] or ''}" if match else path
        if match is None or len(variable.shape) != 2 or table in variables:  # a module may have names like these
            found[path] = variable
            continue
        parts[table][int(match[2])] = variable
    return found | {
        path: WholeTable([members[number] for number in sorted(members)]) for path, members in parts.items()
    }
