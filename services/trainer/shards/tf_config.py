"""TF_CONFIG: how TensorFlow's clusters are described to their processes, read strictly.

    {"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}

Source: TensorFlow's guide to distributed training; Kubeflow, Vertex AI and SLURM's resolvers write the same form. The
first worker is the chief where no task is called so. Every fault is named by its key.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from common.errors import InvalidInput
from services.trainer.shards.cluster_spec import ClusterSpec

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
_JOBS = ("chief", "worker")
_REFUSED = {
    "ps": "an asynchronous round starts its own parameter servers (training: asynchronous: servers), on the chief's "
    "machine; in other rounds each worker holds the variables. Leave ps out, and let its machines be workers",
    "evaluator": "the chief evaluates, with TRAINER_EVALUATOR=process beside it",
}


def read_tf_config(text: str) -> ClusterSpec:
    """Raises InvalidInput: which key, what it holds, what was expected."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"TF_CONFIG is not JSON: {error}") from error
    whole = _mapping(whole, "TF_CONFIG", ("cluster", "task"), optional=("environment", "rpc_layer"))
    if whole.get("rpc_layer", "grpc") not in ("", "grpc"):
        raise InvalidInput(f"TF_CONFIG: rpc_layer is {whole['rpc_layer']!r}, expected grpc")
    cluster = _mapping(whole["cluster"], "TF_CONFIG: cluster", (), optional=(*_JOBS, *_REFUSED))
    for job, reason in _REFUSED.items():
        if cluster.get(job):
            raise InvalidInput(f"TF_CONFIG: cluster names {job} tasks: {reason}")
    chiefs, workers = (_addresses(cluster.get(job, []), f"TF_CONFIG: cluster: {job}") for job in _JOBS)
    if len(chiefs) > 1:
        raise InvalidInput(f"TF_CONFIG: cluster: chief lists {len(chiefs)} addresses, expected one")
    addresses = (*chiefs, *workers)
    if not addresses:
        raise InvalidInput("TF_CONFIG: cluster lists no worker")
    if len(set(addresses)) != len(addresses):
        twice = next(address for address in addresses if addresses.count(address) > 1)
        raise InvalidInput(f"TF_CONFIG: cluster lists {twice} twice")
    task = _mapping(whole["task"], "TF_CONFIG: task", ("type", "index"), optional=("trial", "cloud"))
    kind, index = task["type"], task["index"]
    if kind not in _JOBS:
        reason = f": {_REFUSED[kind]}" if isinstance(kind, str) and kind in _REFUSED else ""
        raise InvalidInput(f"TF_CONFIG: task: type is {kind!r}, expected chief or worker{reason}")
    members = chiefs if kind == "chief" else workers
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(members):
        raise InvalidInput(
            f"TF_CONFIG: task: index is {index!r}, and cluster lists {len(members)} {kind} addresses; expected "
            f"{f'0 to {len(members) - 1}' if members else f'another type than {kind}'}"
        )
    return ClusterSpec(addresses, index + (len(chiefs) if kind == "worker" else 0))


def _mapping(value: object, place: str, needed: tuple[str, ...], *, optional: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{place} must be a mapping, got {value!r}")
    for key in needed:
        if key not in value:
            raise InvalidInput(f"{place} lacks {key}")
    unknown = sorted(set(value) - {*needed, *optional})
    if unknown:
        known = ", ".join((*needed, *optional))
        raise InvalidInput(f"{place} has {', '.join(map(repr, unknown))}; known: {known}")
    return value


def _addresses(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidInput(f"{place} must be a list of addresses, got {value!r}")
    for address in value:
        found = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if not found or not 0 < int(found[2]) < 65_536:
            raise InvalidInput(f"{place} has {address!r}, expected host:port")
    return tuple(value)
