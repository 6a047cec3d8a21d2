"""The doors' documents about models: TensorFlow Serving's status and metadata, and the replica's own page."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from protos import tfserving_pb2
from services.serving.front.core import Front
from services.serving.front.routing import Route
from services.serving.wire.codes import Code
from services.serving.wire.prediction import RequestFailed
from services.serving.wire.replica_state import ModelMemory, ReplicaState, ServingState, VersionState
from services.serving.wire.signature_defs import fill_signature

SIGNATURE_DEF = "signature_def"
SIGNATURE_DEF_MAP_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


def versions_of(state: ReplicaState | None, model: str, version: int | None) -> list[VersionState]:
    """The versions a status call lists, newest first. Raises RequestFailed: NOT_FOUND when there is none."""
    versions = [v for v in state.versions if v.model == model] if state is not None else []
    if not versions:
        raise RequestFailed(Code.NOT_FOUND, f"Could not find any versions of model {model}")
    if version is not None:
        versions = [v for v in versions if v.version == version]
        if not versions:
            raise RequestFailed(Code.NOT_FOUND, f"Could not find version {version} of model {model}")
    return sorted(versions, key=lambda v: -v.version)


def status_json(versions: list[VersionState]) -> dict[str, Any]:
    """The body of GET /v1/models/{model}."""
    return {
        "model_version_status": [
            {
                "version": str(version.version),
                "state": version.state.value,
                "status": {"error_code": Code.of(version.error_code).name, "error_message": version.error_message},
            }
            for version in versions
        ]
    }


def status_proto(versions: list[VersionState]) -> tfserving_pb2.GetModelStatusResponse:
    response = tfserving_pb2.GetModelStatusResponse()
    for version in versions:
        item = response.model_version_status.add(
            version=version.version, state=tfserving_pb2.ModelVersionStatus.State.Value(version.state.value)
        )
        item.status.error_code = version.error_code
        item.status.error_message = version.error_message
    return response


def metadata_json(route: Route) -> dict[str, Any]:
    """The body of GET /v1/models/{model}/metadata; default values are written out."""
    signatures = json_format.MessageToDict(
        _signature_defs(route), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )[SIGNATURE_DEF]
    for signature in signatures.values():
        for ours in ("aliases", "yes_no"):
            if not signature[ours]:
                del signature[ours]
    spec = {"name": route.version.model, "signature_name": "", "version": str(route.version.version)}
    return {"model_spec": spec, "metadata": {SIGNATURE_DEF: {SIGNATURE_DEF: signatures}}}


def metadata_proto(route: Route) -> tfserving_pb2.GetModelMetadataResponse:
    response = tfserving_pb2.GetModelMetadataResponse()
    response.model_spec.name = route.version.model
    response.model_spec.version.value = route.version.version
    response.metadata[SIGNATURE_DEF].type_url = SIGNATURE_DEF_MAP_URL
    response.metadata[SIGNATURE_DEF].value = _signature_defs(route).SerializeToString()
    return response


def _signature_defs(route: Route) -> tfserving_pb2.SignatureDefMap:
    signatures = tfserving_pb2.SignatureDefMap()
    for name, signature in route.version.signatures.items():
        fill_signature(signatures.signature_def[name], signature)
    return signatures


async def replica_json(front: Front) -> dict[str, Any]:
    """GET /headrace/status: versions with their runners, and the queues this front writes to. Raises Unavailable: Redis
    went away while its queues were being read."""
    state = front.routing.state or ReplicaState("", {}, {}, ())
    queues = []
    for (model, target), route in sorted(front.routing.routes.items()):
        if route.queue.client.is_connected:
            depth, runners = await route.queue.client.depth(route.queue)
            queues.append({"model": model, "target": target, "requests": depth, "runners": runners})
    return {
        "replica": state.replica,
        "notice": state.notice,
        "fetched": state.fetched,
        "requires_signed": state.requires_signed,
        "memory": _memory_json(front, state.memory) if state.memory is not None else None,
        "reloads": front.reloads.shown() if front.reloads is not None else None,
        "open_requests": front.open_count,
        "queue_connected": front.queue_clients.is_connected,
        "redis": front.queue_clients.mode,
        "queues": queues,
        "models": state.models,
        "versions": [version_json(version) for version in state.versions],
    }


def _memory_json(front: Front, memory: ModelMemory) -> dict[str, Any]:
    """Of a replica that loads models on demand."""
    return {
        "budget_bytes": memory.budget_bytes,
        "used_bytes": memory.used_bytes,
        "loaded": list(memory.loaded),
        "evictions": dict(memory.evictions),
        "cold_requests": dict(front.cold.waits),
        "cold_wait_seconds": {model: round(seconds, 3) for model, seconds in front.cold.wait_seconds.items()},
    }


def _work_json(work: Mapping[str, Any]) -> dict[str, Any]:
    """The runner's work since it started, in total; None before any."""
    if not work:
        return {}
    batches = work["batches"]
    return {
        "requests": work["requests"],
        "failed": work["failed"],
        "defaulted": work["defaulted"],
        "examples": work["examples"],
        "batches": batches,
        "mean_batch": round(work["examples"] / batches, 2) if batches else None,
        "padding_rows": work["padding_rows"],
        "engine_ms": round(work["engine_seconds"] * 1e3, 3),
        "engine_ms_per_batch": round(work["engine_seconds"] * 1e3 / batches, 4) if batches else None,
        "queue_wait_ms_per_request": round(work["wait_seconds"] * 1e3 / max(work["requests"], 1), 3),
        "batch_size_limit": work["batch_size"],
        "predicted_p99_ms": round(work["predicted_p99_seconds"] * 1e3, 3) or None,
    }


def version_json(version: VersionState) -> dict[str, Any]:
    """A version, as the replica's own pages show it."""
    return {
        "model": version.model,
        "version": version.version,
        "is_cold": version.is_cold,
        "runner_models": version.runner_models,
        "engine": version.engine,
        "fetch_seconds": version.fetch_seconds,
        "load_seconds": version.load_seconds,
        "loaded": version.loaded,
        "private_bytes": version.private_bytes,
        "available_at": version.available_at,
        "state": version.state.value,
        "aliases": list(version.aliases) if version.state is ServingState.AVAILABLE else [],
        "signatures": sorted(version.signatures),
        "error": version.error_message,
        "runner": version.runner_id,
        "engine_reasons": dict(version.engine_reasons),
        "work": _work_json(version.work),
    }
