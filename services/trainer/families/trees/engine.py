"""XGBoost, imported here alone. A booster is its own bytes (UBJSON) between calls: equal bytes grow equal trees.

One thread, the `hist` method, a seed for each boosting step: what is grown depends on the booster's bytes, the examples
and the parameters alone.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import InvalidInput
from services.trainer.families.trees.walk import Ensemble, ensemble_of

_LINKS: Mapping[str, Callable[[float], float]] = {
    "binary:logistic": lambda share: math.log(share / (1.0 - share)),
    "count:poisson": math.log,
}
"""From the base score that XGBoost keeps to a margin, by objective; the others keep the margin."""
_ENDS: Mapping[str, tuple[float, ...]] = {"binary:logistic": (0.0, 1.0), "count:poisson": (0.0,)}
"""Mean labels whose margin is infinite."""
_WITHOUT_A_SHARE = 0.5
"""The base score in their place."""
METRICS: Mapping[str, str] = {
    "binary:logistic": "logloss", "multi:softprob": "mlogloss", "reg:squarederror": "rmse", "reg:absoluteerror": "mae",
    "count:poisson": "poisson-nloglik", "reg:quantileerror": "quantile",
}  # fmt: skip
"""XGBoost's own measure of an objective."""


@dataclass(frozen=True)
class Grown:
    """`losses`: float32, METRICS after each boosting step."""

    booster: bytes
    losses: NDArray[np.float32]


def examples_of(columns: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float32]) -> Any:
    """XGBoost's own form of columns [n, columns] (NaN for none), labels [n] and weights [n]; made once per block."""
    return _xgboost().DMatrix(columns, labels, weight=weights, missing=math.nan, nthread=1)


def grow(booster: bytes, examples: Any, parameters: Mapping[str, Any], *, steps: int) -> Grown:
    """The booster (empty bytes: none yet) after more boosting steps. Raises InvalidInput: XGBoost refuses the examples
    or the parameters."""
    xgboost = _xgboost()
    measured: dict[str, dict[str, list[float]]] = {}
    fixed = {"tree_method": "hist", "nthread": 1, "seed_per_iteration": True, "verbosity": 0}
    metric = METRICS[str(parameters["objective"])]
    try:
        grown = xgboost.train(
            dict(parameters) | fixed | _base(examples, booster, parameters) | {"eval_metric": metric},
            examples,
            num_boost_round=steps,
            xgb_model=_loaded(booster) if booster else None,
            evals=[(examples, "trained")],
            evals_result=measured,
            verbose_eval=False,
        )
    except xgboost.core.XGBoostError as error:
        raise InvalidInput(f"XGBoost cannot grow trees: {_first_line(error)}") from error
    return Grown(bytes(grown.save_raw("ubj")), np.array(measured["trained"][metric], np.float32))


def _base(examples: Any, booster: bytes, parameters: Mapping[str, Any]) -> dict[str, float]:
    """Where the first trees see one class, or no count above 0, XGBoost would begin at a margin without an end, from
    which no later round comes back: second derivatives are 0 there, and no split is made."""
    ends = _ENDS.get(str(parameters["objective"]), ())
    if booster or not ends:
        return {}
    found = np.unique(examples.get_label())
    return {"base_score": _WITHOUT_A_SHARE} if len(found) == 1 and found[0] in ends else {}


def without_oldest(booster: bytes, count: int) -> bytes:
    """The booster without what its first `count` boosting steps have grown; empty where it has no more."""
    if count >= step_count(booster):
        return b""
    return bytes(_loaded(booster)[count:].save_raw("ubj")) if count else booster


def step_count(booster: bytes) -> int:
    """Boosting steps that are in the booster."""
    return int(_loaded(booster).num_boosted_rounds()) if booster else 0


def read(booster: bytes, objective: str) -> Ensemble:
    learner = json.loads(bytes(_loaded(booster).save_raw("json")))["learner"]
    model = learner["gradient_booster"]["model"]
    link = _LINKS.get(objective, float)
    scores = json.loads(learner["learner_model_param"]["base_score"])
    base = np.array([link(score) for score in (scores if isinstance(scores, list) else [scores])], np.float32)
    outputs = max(len(base), max(model["tree_info"], default=0) + 1)
    return ensemble_of(model["trees"], model["tree_info"], np.broadcast_to(base, [outputs]))


def _loaded(booster: bytes) -> Any:
    loaded = _xgboost().Booster({"nthread": 1})
    loaded.load_model(bytearray(booster))
    return loaded


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Stack trace")]
    return lines[0].rpartition(": ")[2] if lines else type(error).__name__


def _xgboost() -> Any:
    try:
        import xgboost  # an extra: whoever grows no trees need not have it
    except ImportError as error:
        raise InvalidInput("boosted trees need XGBoost: pip install 'headrace[trainer-xgboost]'") from error
    return xgboost
