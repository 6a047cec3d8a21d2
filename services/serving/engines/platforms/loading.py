"""A platform's arguments to load a version, and its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from common.process.pace import Pace
from services.serving.batching.models import Model
from services.serving.options.model_options import ModelOptions


class LoadedModel(Model, Protocol):
    """A version that answers. Calls of `run` are thread-safe; it raises RequestFailed to refuse."""

    kind: str
    """Its engine, in a few words, for the status."""
    reasons: Mapping[str, str]
    """Why that was chosen, in a sentence per signature; empty where there was no choice."""


@runtime_checkable
class TakesStates(LoadedModel, Protocol):
    """A model into whose program other versions' variables can be put."""

    refuses_states: str
    """Why that cannot be done with this one all the same; "" where it can."""

    def beside(self) -> "TakesStates":
        """Another model of the same program, that has taken no variables yet."""
        ...

    def take(self, directory: Path, pace: Pace | None = None) -> None:
        """Takes the variables of a version of the same program, not faster than that; raises RequestFailed."""
        ...

    def values(self) -> Sequence[np.ndarray] | None:
        """The values of its variables, copied; None where it has more state than variables."""
        ...

    def put(self, values: Sequence[np.ndarray]) -> None:
        """Makes the values of another model of its program its own. Nobody may call it meanwhile."""
        ...

    def close(self) -> None:
        """Gives its memory back; nobody calls it any more."""
        ...


@dataclass(frozen=True)
class LoadRequest:
    """A version to load, in the runner's own process."""

    model: str
    version: int
    directory: Path
    """The version's files; never written to."""
    options: ModelOptions
    is_cautious: bool = False
    """The last runner of this version crashed: use what is safe rather than fast."""
    engines_dir: Path | None = None
    """The folder that keeps slow conversions of a version for the next runner; None: none."""
