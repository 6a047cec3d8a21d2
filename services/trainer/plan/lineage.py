"""The lineage in a round's plan: configuration, digests, seed. Equal plans give equal weights."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import common
import protos
import services.trainer
from common.definition.model import Definition
from common.facts import present
from services.trainer.settings import TrainerSettings

_LIBRARIES = ("keras", "numpy", ("tensorflow", "tensorflow-cpu"))
_NO_NUMBERS = ("summaries", "save_every_steps", "debug")
"""Keys of `training` that change no weight."""
_COMMON_SOURCES = ("*.py", "definition/*.*", "eventlog/*.py", "examples/*.py", "registry/forgotten.py")


def configuration_of(definition: Definition, settings: TrainerSettings) -> dict[str, Any]:
    """Everything that the weights depend on beside the events, the parent, the code and the seed. JSON-ready.

    The feature spec may hold long word lists; it stands here by its digest and in full in the definition.
    """
    features = {name: {"type": type(spec).__name__, **asdict(spec)} for name, spec in definition.features.items()}
    parameters = definition.estimator_parameters or definition.trees
    configuration = {
        "estimator": definition.estimator,
        "module": definition.module,
        "heads": [asdict(head) for head in definition.heads],
        "parameters": asdict(parameters) if parameters else dict(definition.module_parameters),
        "features_digest": digest_of(features),
        "training": {key: value for key, value in asdict(definition.training).items() if key not in _NO_NUMBERS},
        **present(
            restart=list(definition.restart),
            warm_start=asdict(definition.warm_start) if definition.warm_start else None,
        ),
        "evaluation": definition.evaluation.to_configuration(),
        "seed": definition.seed,
        "block_examples": settings.block_examples,
        "intra_op_threads": settings.usable_intra_op_threads(),
        "inter_op_threads": settings.inter_op_threads,
    }
    return dict(json.loads(_canonical(configuration)))


def digest_of(value: Mapping[str, Any]) -> str:
    """SHA-256, hex, of the mapping as JSON with sorted keys."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def seed_of(definition: Definition, sequence: int) -> int:
    """A round's seed, 63 bits: from the definition's seed and the round's number, so that every round shuffles anew and
    equal definitions have equal weights under any name."""
    text = f"{definition.seed}/{sequence}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def code_digest() -> str:
    """SHA-256 over `sources` and the versions of the libraries under them."""
    lines = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in sources().items()]
    return hashlib.sha256("\n".join([*sorted(lines), *library_versions()]).encode()).hexdigest()


def sources() -> dict[str, Path]:
    """What reads events and trains on them, by name; tests left out."""
    trainer_dir = Path(next(iter(services.trainer.__path__)))
    common_dir = Path(next(iter(common.__path__)))
    found = {
        f"trainer/{path.relative_to(trainer_dir)}": path
        for path in trainer_dir.rglob("*.py")
        if "tests" not in path.relative_to(trainer_dir).parts
    }
    shared = [path for pattern in _COMMON_SOURCES for path in common_dir.glob(pattern)]
    found |= {f"common/{path.relative_to(common_dir)}": path for path in shared}
    return found | {"protos/example.proto": Path(next(iter(protos.__path__))) / "example.proto"}


def library_versions() -> list[str]:
    """["keras 3.15.1", ...] of those that are installed, read from their packages without importing them."""
    versions = []
    for library in _LIBRARIES:
        names = (library,) if isinstance(library, str) else library
        found = next(filter(None, map(_version_of, names)), "")
        versions += [f"{names[0]} {found}"] if found else []
    return versions


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
