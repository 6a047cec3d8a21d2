"""The roles that calls of serving need. For a model's routes the door calls the guard, with the name that it has read
from the whole URL (http_api.py): the router's idea of the name may differ."""

from collections.abc import Iterator, Mapping

from common.access.guard import OPEN, Rule, rule
from common.process.rpc import COMMON_RPC_RULES
from common.process.web import COMMON_RULES
from services.serving.doors.grpc_api import MODEL_SERVICE, PREDICTION_SERVICE
from services.serving.doors.http_api import ROUTES
from services.serving.doors.roles import CALLS, CALLS_TASKS, CALLS_TO_READ, PREDICTS, READS, RELOADS


def _http() -> Iterator[tuple[str, Rule]]:
    for path, method, _ in ROUTES:
        yield f"{method} {path}", READS if method == "GET" else PREDICTS
    for root in ("v1", "V1"):
        yield f"* /{root}/{{rest:path}}", READS
        yield f"OPTIONS /{root}/{{rest:path}}", OPEN  # A browser asks before it sends credentials.
    yield from ((f"GET /headrace/{name}", rule("viewer")) for name in ("status", "models", "config"))


def serving_rules(metrics_path: str = "") -> Mapping[str, Rule]:
    """`metrics_path`: of TensorFlow Serving's metrics; "" where there is none."""
    calls = {"Predict": CALLS, "Classify": CALLS, "Regress": CALLS, "MultiInference": CALLS_TASKS}
    return {
        **COMMON_RULES,
        **COMMON_RPC_RULES,
        **dict(_http()),
        **({f"GET {metrics_path}": rule("viewer", "service")} if metrics_path else {}),
        **{f"{PREDICTION_SERVICE}/{method}": found for method, found in calls.items()},
        f"{PREDICTION_SERVICE}/GetModelMetadata": CALLS_TO_READ,
        f"{MODEL_SERVICE}/GetModelStatus": CALLS_TO_READ,
        f"{MODEL_SERVICE}/HandleReloadConfigRequest": RELOADS,
    }
