"""Snapshots as a manager would send them, for models that a FakeRunner serves."""

from collections.abc import Mapping

from services.serving.wire.replica_state import ReplicaState, ServingState, Signature, TensorSpec, VersionState

ROWS_OF_TWO = Signature(
    "tensorflow/serving/predict",
    {"x": TensorSpec("DT_FLOAT", (-1, 2), "serve_x:0")},
    {"y": TensorSpec("DT_FLOAT", (-1,), "Sum:0")},
)


def version(
    number: int = 3,
    *,
    signature: Signature = ROWS_OF_TWO,
    state: ServingState = ServingState.AVAILABLE,
    **fields: object,
) -> VersionState:
    aliases = ("production",) if state is ServingState.AVAILABLE else ()
    values: dict[str, object] = {"aliases": aliases, "signatures": {"serving_default": signature}, **fields}
    return VersionState("m", number, state, **values)  # type: ignore[arg-type]  # fields are VersionState's


def replica_state(
    *versions: VersionState,
    aliases: Mapping[str, int] | None = None,
    conditions: Mapping[str, str] | None = None,
    **others: Mapping[str, int],
) -> ReplicaState:
    """others: further models, with their aliases."""
    return ReplicaState(
        replica="replica",
        conditions=conditions or {},
        models={"m": aliases if aliases is not None else {"production": 3}, **others},
        versions=versions,
    )
