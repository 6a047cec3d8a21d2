"""What a platform is given to load a version, and what it gives back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from services.serving.batching.models import Model
from services.serving.options.model_options import ModelOptions


class LoadedModel(Model, Protocol):
    """A version that answers. Calls of `run` are thread-safe; it raises RequestFailed for what it refuses."""

    kind: str
    """What computes it, in a few words, for the status."""
    reasons: Mapping[str, str]
    """Why that was chosen, in a sentence per signature; empty where there was no choice."""


@runtime_checkable
class TakesStates(LoadedModel, Protocol):
    """A model into whose program other versions' variables can be put."""

    refuses_states: str
    """Why that cannot be done with this one all the same; "" where it can."""

    def beside(self) -> "TakesStates":
        """Another one of the same program, that has taken no variables yet."""
        ...

    def take(self, directory: Path) -> None:
        """Takes the variables of a version of the same program; raises RequestFailed."""
        ...

    def values(self) -> Sequence[np.ndarray] | None:
        """What its variables hold, in the same memory; None where it has more state than that."""
        ...

    def put(self, values: Sequence[np.ndarray]) -> None:
        """Makes the values of another one of its program its own. Nobody may call it meanwhile."""
        ...

    def close(self) -> None:
        """Gives its memory back; nobody calls it any more."""
        ...


@dataclass(frozen=True)
class LoadRequest:
    """One version to load, in the runner's own process."""

    model: str
    version: int
    directory: Path
    """The version's files; never written to."""
    options: ModelOptions
    is_cautious: bool = False
    """The last runner of this version crashed: use what is safe rather than fast."""
    engines_dir: Path | None = None
    """Where what takes long to make from a version is kept for the next runner; None: nowhere."""
