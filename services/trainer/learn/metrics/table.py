"""Which function measures a metric of common/definition/metrics.py, by task and name."""

from collections.abc import Callable, Mapping

from common.definition.metrics import Metric
from services.trainer.learn.metrics import binary, classes, groups, nearest, numbers
from services.trainer.learn.metrics.judged import Judged, Weighed

Prepare = Callable[[Judged, float | None], Weighed]
"""Of the examples and the metric's option, a function of weights."""

_BINARY: Mapping[str, Prepare] = {
    "auc": binary.auc,
    "pr_auc": binary.pr_auc,
    "log_loss": binary.log_loss,
    "accuracy": binary.at_threshold(binary.accuracy_of),
    "precision": binary.at_threshold(binary.precision_of),
    "recall": binary.at_threshold(binary.recall_of),
    "f1": binary.at_threshold(binary.f1_of),
    "specificity": binary.at_threshold(binary.specificity_of),
    "sensitivity_at_specificity": binary.sensitivity_at_specificity,
    "balanced_accuracy": binary.balanced_accuracy,
    "mcc": binary.mcc,
    "brier": binary.brier,
    "calibration": binary.calibration,
    "ece": binary.ece,
    "mean_iou": binary.mean_iou,
    "true_positives": binary.at_threshold(lambda tp, fp, tn, fn: tp),
    "false_positives": binary.at_threshold(lambda tp, fp, tn, fn: fp),
    "true_negatives": binary.at_threshold(lambda tp, fp, tn, fn: tn),
    "false_negatives": binary.at_threshold(lambda tp, fp, tn, fn: fn),
    "mean_label": binary.mean_label,
    "mean_prediction": binary.mean_prediction,
}
_MULTICLASS: Mapping[str, Prepare] = {
    "accuracy": classes.accuracy,
    "log_loss": classes.log_loss,
    "top_k_accuracy": classes.top_k_accuracy,
    "balanced_accuracy": classes.balanced_accuracy,
    "mcc": classes.mcc,
    "ece": classes.ece,
    "macro_precision": classes.macro_precision,
    "macro_recall": classes.macro_recall,
    "macro_f1": classes.macro_f1,
    "weighted_precision": classes.weighted_precision,
    "weighted_recall": classes.weighted_recall,
    "weighted_f1": classes.weighted_f1,
    "class_precision": classes.for_class(binary.precision_of),
    "class_recall": classes.for_class(binary.recall_of),
    "class_f1": classes.for_class(binary.f1_of),
    "mean_iou": classes.mean_iou,
}
_MULTILABEL: Mapping[str, Prepare] = {
    "auc": classes.each_label(binary.auc_of),
    "pr_auc": classes.each_label(binary.pr_auc_of),
    "log_loss": classes.label_log_loss,
    "accuracy": classes.label_accuracy,
    "subset_accuracy": classes.subset_accuracy,
    "precision": classes.all_labels(binary.precision_of),
    "recall": classes.all_labels(binary.recall_of),
    "f1": classes.all_labels(binary.f1_of),
    "macro_precision": classes.label_macro_precision,
    "macro_recall": classes.label_macro_recall,
    "macro_f1": classes.label_macro_f1,
}
_REGRESSION: Mapping[str, Prepare] = {
    "rmse": numbers.rmse,
    "mse": numbers.mse,
    "mae": numbers.mae,
    "mape": numbers.mape,
    "relative_error": numbers.relative_error,
    "r2": numbers.r2,
    "median_ae": numbers.median_ae,
    "absolute_error_percentile": numbers.absolute_error_percentile,
    "percentage_below": numbers.percentage_below,
    "cosine_similarity": numbers.cosine_similarity,
    "mean_label": numbers.mean_label,
    "mean_prediction": numbers.mean_prediction,
}
_QUANTILES: Mapping[str, Prepare] = {
    "pinball": numbers.pinball,
    "quantile_loss": numbers.quantile_loss,
    "coverage": numbers.coverage,
    "quantile_coverage": numbers.quantile_coverage,
}
_RETRIEVAL: Mapping[str, Prepare] = {"recall_at": numbers.recall_at, "reciprocal_rank": numbers.reciprocal_rank}
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
    "embedding": {"nearest_accuracy": nearest.nearest_accuracy},
}


def prepared(metric: Metric, data: Judged) -> Weighed:
    return PREPARE[data.task][metric.kind](data, metric.option)


def measured(metrics: tuple[Metric, ...], data: Judged) -> dict[str, float]:
    """By name; a metric that is not defined on these examples is left out, and every one where nothing weighs."""
    if not data.weights.sum() > 0:
        return {}
    values = {metric.name: prepared(metric, data)(data.weights) for metric in metrics}
    return {name: value for name, value in values.items() if value is not None}
