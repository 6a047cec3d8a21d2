"""What a platform is given to load a version, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.serving.batching.merge import Model
from services.serving.options.model_options import ModelOptions


class LoadedModel(Model, Protocol):
    """A version that answers. Calls of `run` are thread-safe; it raises RequestFailed for what it refuses."""

    kind: str
    """What computes it, in a few words, for the status."""
    reasons: Mapping[str, str]
    """Why that was chosen, in a sentence per signature; empty where there was no choice."""


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
