"""An engine other than TensorFlow, by signature."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from services.serving.options.model_options import EngineOptions
from services.serving.wire.prediction import Arrays
from services.serving.wire.replica_state import Signature

Outputs = dict[str, np.ndarray]


class CannotConvert(Exception):
    """The signature has no equivalent in the engine; the message has the reason."""


class EngineRefused(Exception):
    """The engine did not compute this call. TensorFlow may, or has the better words for why not."""


Call = Callable[[Arrays, tuple[str, ...]], Outputs]
"""(inputs, names of the outputs wanted) -> those outputs. Thread-safe; raises EngineRefused."""


@dataclass(frozen=True)
class Candidate:
    """An engine that a SavedModel's signature can be converted to."""

    name: str
    packages: tuple[str, ...]
    """Distributions that it needs."""
    extra: str
    """The extra of Headrace that installs them."""
    convert: Callable[[Path, str, Path], None]
    """(SavedModel, signature, file to write). Imports converters: never in a process that lives on.
    Raises CannotConvert."""
    open: Callable[[Path, Signature, EngineOptions], Call]
    """Of a file that `convert` wrote; the file may go afterwards. Raises EngineRefused."""

    def missing(self) -> str:
        """Why it cannot be used here; empty when it can."""
        absent = [package for package in self.packages if not _version(package)]
        if not absent:
            return ""
        return f'not installed ({", ".join(absent)}; pip install "headrace[{self.extra}]")'

    def versions(self) -> dict[str, str]:
        """Of its packages: its conversions and results may change with them."""
        return {package: _version(package) for package in self.packages}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
