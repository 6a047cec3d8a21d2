"""What XLA compiles in a round: a program for each number of rows that a batch has, once in a process."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_FILE_NAME = "compiled.hlo"
_FUSION = re.compile(r" fusion\(")


class Compilations:
    """Attributes:
    text: HLO of a step; empty where nobody asked for it.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()
        self.begin()

    def begin(self) -> None:
        """What is compiled stays so."""
        self._before, self._sizes = frozenset(self._known), set[int]()
        self.text = ""

    def add(self, rows: Iterable[int]) -> None:
        """Of the batches that steps are taken with."""
        self._sizes.update(rows)
        self._known |= self._sizes

    @property
    def texts(self) -> Mapping[str, str]:
        return {_FILE_NAME: self.text} if self.text else {}

    def told(self) -> dict[str, Any]:
        """Of the steps since `begin`; `fusions`: kernels that are several operations in one."""
        fused = {"fusions": len(_FUSION.findall(self.text))} if self.text else {}
        return {"batch_sizes": sorted(self._sizes), "compilations": len(self._sizes - self._before)} | fused
