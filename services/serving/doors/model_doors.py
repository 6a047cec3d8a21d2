"""GET /headrace/models and GET /headrace/config: beyond TensorFlow Serving's doors.

They are not below /v1/, where every path and its answer is TensorFlow Serving's: GET /v1/models is a 400 there.
"""

from typing import Any

from fastapi import FastAPI

from services.serving.front.core import Front
from services.serving.front.model_info import version_json
from services.serving.wire.codes import Code
from services.serving.wire.replica_state import ConfigState, ReplicaState


def add_model_doors(app: FastAPI, front: Front) -> None:
    @app.get("/headrace/models", tags=["replica"])
    async def models() -> dict[str, Any]:
        """Every model of this replica: its versions with state, load time, memory and engine, and its labels."""
        return models_json(front.routing.state)

    @app.get("/headrace/config", tags=["replica"])
    async def config() -> dict[str, Any]:
        """The served configuration, why the newest was refused if it was, and the lacks of folders."""
        return config_json(front.routing.state)


def models_json(state: ReplicaState | None) -> dict[str, Any]:
    if state is None:
        return {"models": []}
    names = sorted({*state.models, *(version.model for version in state.versions)})
    return {"models": [_model_json(state, name) for name in names]}


def config_json(state: ReplicaState | None) -> dict[str, Any]:
    if state is None:
        return {"source": "unknown", "config": None, "error": "this replica is starting", "problems": {}}
    if state.config is None:
        return {"source": "registry", "config": None, "error": "", "problems": {}, "applied_at": 0.0}
    known: ConfigState = state.config
    return {
        "source": "folders",
        "config": known.config,
        "error": known.error,
        "problems": known.problems,
        "applied_at": known.applied_at,
    }


def _model_json(state: ReplicaState, name: str) -> dict[str, Any]:
    versions = sorted((v for v in state.versions if v.model == name), key=lambda v: -v.version)
    aliases = dict(state.models.get(name, {}))
    return {
        "name": name,
        "default_version": aliases.pop(state.default_alias, None),
        "labels": aliases,
        "versions": [
            version_json(version) | {"error_code": Code.of(version.error_code).name, "options": version.options}
            for version in versions
        ],
    }
