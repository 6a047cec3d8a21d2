"""What XLA compiles in a round: a program for each number of rows that a batch has, once in a process."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from services.trainer.families.model import BuiltModel
from services.trainer.families.reasons import DefinitionFailedError, describe

_FILE_NAME = "compiled.hlo"
_FUSION = re.compile(r" fusion\(")
_UNKNOWN_TO_XLA = re.compile(r"(\w+) \(No registered '\w+' OpKernel for XLA")
_PLACE = re.compile(r" \([^()]*, line \d+, in \w+\)$")


def refuse_uncompiled(model: BuiltModel) -> None:
    """Refuses a model whose module takes its steps itself, or that takes strings."""
    place = f"{model.definition.module}: training.jit_compile is true, and"
    if model.compiled_by_user.has_train_step:
        raise DefinitionFailedError(f"{place} the module's own train_step takes the steps")
    if words := [name for name, spec in model.column_specs().items() if spec.dtype == tf.string]:
        raise DefinitionFailedError(f"{place} XLA cannot take the strings of {', '.join(words)}")


def lacking(error: tf.errors.OpError) -> str:
    """The operations that XLA does not have and the module's line; empty where it has all."""
    missing = dict.fromkeys(_UNKNOWN_TO_XLA.findall(str(error.message)))
    place = _PLACE.search(describe(error))
    return ", ".join(missing) + (place.group() if missing and place else "")


class Compilations:
    """Attributes:
    text: HLO of a step; empty where it was not asked for.
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

    def facts(self) -> dict[str, Any]:
        """Of the steps since `begin`; `fusions`: kernels of several operations each."""
        fused = {"fusions": len(_FUSION.findall(self.text))} if self.text else {}
        return {"batch_sizes": sorted(self._sizes), "compilations": len(self._sizes - self._before)} | fused
