"""Which function measures a metric of common/definition/metrics.py, by task and name."""

from collections.abc import Callable, Mapping

import numpy as np

from common.definition.metrics import Metric
from services.trainer.learn.metrics import binary, classes, groups, numbers
from services.trainer.learn.metrics.judged import Judged, Weighed, mean_of

Prepare = Callable[[Judged, float | None], Weighed]
"""Of the examples and the metric's option, a function of weights."""

_BINARY: Mapping[str, Prepare] = {
    **{name: binary.at_threshold(of_counts) for name, of_counts in binary.COUNTED.items()},
    "auc": lambda data, _: binary.auc_of(data.labels, data.outputs),
    "pr_auc": lambda data, _: binary.pr_auc_of(data.labels, data.outputs),
    "log_loss": lambda data, _: mean_of(binary.entropy(data.labels, data.outputs)),
    "sensitivity_at_specificity": binary.sensitivity_at_specificity,
    "brier": lambda data, _: mean_of((binary.probabilities(data.outputs) - data.labels) ** 2),
    "calibration": binary.calibration,
    "ece": lambda data, bins: binary.calibration_error(binary.probabilities(data.outputs), data.labels, bins),
    "mean_label": lambda data, _: mean_of(data.labels),
    "mean_prediction": lambda data, _: mean_of(binary.probabilities(data.outputs)),
}
_SHARES = ("precision", "recall", "f1")
_MULTICLASS: Mapping[str, Prepare] = {
    **{name: classes.by_class(value_of) for name, value_of in classes.BY_CLASS.items()},
    **{f"class_{name}": classes.for_class(binary.COUNTED[name]) for name in _SHARES},
    "accuracy": lambda data, _: mean_of(data.outputs == data.labels),
    "log_loss": lambda data, _: mean_of(data.columns["loss"]),
    "top_k_accuracy": lambda data, k: mean_of(data.columns["rank"] < int(k or 5)),
    "ece": classes.ece,
}
_MULTILABEL: Mapping[str, Prepare] = {
    **{name: classes.all_labels(binary.COUNTED[name]) for name in _SHARES},
    **{f"macro_{name}": classes.macro_labels(classes.OF_CLASS[name]) for name in _SHARES},
    "auc": classes.each_label(binary.auc_of),
    "pr_auc": classes.each_label(binary.pr_auc_of),
    "log_loss": lambda data, _: mean_of(binary.entropy(data.labels, data.outputs).mean(axis=1)),
    "accuracy": classes.label_accuracy,
    "subset_accuracy": lambda data, _: mean_of((classes.is_positive(data, None) == (data.labels > 0.5)).all(axis=1)),
}
_REGRESSION: Mapping[str, Prepare] = {
    "rmse": numbers.rmse,
    "mse": numbers.mse,
    "mae": lambda data, _: mean_of(numbers.per_example(np.abs(numbers.errors(data)))),
    "mape": numbers.mape,
    "relative_error": numbers.relative_error,
    "r2": numbers.r2,
    "median_ae": lambda data, _: numbers.absolute_error_percentile(data, 50.0),
    "absolute_error_percentile": numbers.absolute_error_percentile,
    "percentage_below": numbers.percentage_below,
    "cosine_similarity": numbers.cosine_similarity,
    "mean_label": lambda data, _: mean_of(numbers.per_example(data.labels)),
    "mean_prediction": lambda data, _: mean_of(numbers.per_example(data.outputs)),
}
_QUANTILES: Mapping[str, Prepare] = {
    "pinball": numbers.pinball,
    "quantile_loss": numbers.quantile_loss,
    "coverage": numbers.coverage,
    "quantile_coverage": numbers.quantile_coverage,
}
_RETRIEVAL: Mapping[str, Prepare] = {
    "recall_at": numbers.recall_at,
    "reciprocal_rank": lambda data, _: mean_of(1.0 / data.outputs),
}
_ORDERED: Mapping[str, Prepare] = {"ndcg": groups.ndcg, "mrr": groups.mrr}
PREPARE: Mapping[str, Mapping[str, Prepare]] = {
    "binary": {**_BINARY, **_ORDERED},
    "multiclass": _MULTICLASS,
    "multilabel": _MULTILABEL,
    "regression": {**_REGRESSION, **_ORDERED},
    "vector_regression": _REGRESSION,
    "count": {
        **{name: metric for name, metric in _REGRESSION.items() if name != "cosine_similarity"},
        **_ORDERED,
        "poisson_deviance": numbers.poisson_deviance,
    },
    "quantiles": _QUANTILES,
    "retrieval": _RETRIEVAL,
    "ranking": _ORDERED,
    "embedding": {"nearest_accuracy": groups.nearest_accuracy},
}


def prepared(metric: Metric, data: Judged) -> Weighed:
    return PREPARE[data.task][metric.kind](data, metric.option)


def measured(metrics: tuple[Metric, ...], data: Judged) -> dict[str, float]:
    """By name; a metric that is not defined on these examples is left out, and every metric where nothing weighs."""
    if not data.weights.sum() > 0:
        return {}
    values = {metric.name: prepared(metric, data)(data.weights) for metric in metrics}
    return {name: value for name, value in values.items() if value is not None}
