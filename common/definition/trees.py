"""boosted_trees_*: what is grown, and how. The keys are XGBoost's own, https://xgboost.readthedocs.io/en/stable/parameter.html

estimator: boosted_trees_classifier
parameters: {trees_per_round: 50, max_trees: 500, max_depth: 6, learning_rate: 0.1, columns: [distance, carrier]}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from common.definition.feature_sources import has_any_length
from common.definition.features import Embedding, FeatureSpec, Indicator, Numeric, Text, Vocabulary
from common.definition.fields import Allowed, Fields
from common.definition.heads import Head
from common.errors import InvalidInput
from common.schema import Schema
from common.suggestions import did_you_mean

TREE_ESTIMATORS = ("boosted_trees_classifier", "boosted_trees_regressor")
OBJECTIVES: Mapping[str, str] = {
    "binary binary_crossentropy": "binary:logistic",
    "multiclass sparse_categorical_crossentropy": "multi:softprob",
    "regression mean_squared_error": "reg:squarederror",
    "regression mean_absolute_error": "reg:absoluteerror",
    "count poisson": "count:poisson",
    "quantiles quantile": "reg:quantileerror",
}
"""XGBoost's objective of a head, by task and loss."""
_INTEGERS: Mapping[str, tuple[int, int]] = {"max_leaves": (0, 4096), "num_parallel_tree": (1, 10_000)}
_NUMBERS: Mapping[str, float] = {
    "min_child_weight": 0.0, "gamma": 0.0, "lambda": 0.0, "alpha": 0.0,
}  # fmt: skip
_SHARES = ("subsample", "colsample_bytree", "colsample_bynode")
_MAX_NODES = 4_000_000


@dataclass(frozen=True)
class TreeParameters:
    """Attributes:
    columns: features that trees split on, in order of name. Default: all of one value or a fixed number of them.
    trees_per_round: boosting steps of a round; a step grows one tree, or one for each class or level, or
        num_parallel_tree times as many, whose mean counts: one step of rate 1 is a random forest.
    max_trees: boosting steps that a model keeps. The oldest leave; new trees learn what is then unexplained.
    grow_policy: depthwise, or lossguide with max_leaves.
    options: XGBoost's, by their names there; those that were given.
    """

    columns: tuple[str, ...]
    trees_per_round: Annotated[int, Allowed(maximum=10_000)] = 50
    max_trees: Annotated[int, Allowed(maximum=100_000)] = 500
    max_depth: Annotated[int, Allowed(maximum=16)] = 6
    learning_rate: float = 0.1
    grow_policy: Literal["depthwise", "lossguide"] = "depthwise"
    options: Mapping[str, int | float] = field(default_factory=dict)


def parse_tree_parameters(section: object, features: Mapping[str, FeatureSpec], estimator: str) -> TreeParameters:
    """Raises InvalidInput: which key, what was expected."""
    fields = Fields("parameters of boosted_trees", section)
    fields.take("classes", None)  # of the head (heads.py)
    fields.take("loss", None)
    options: dict[str, int | float] = {
        name: fields.integer(name, minimum=least, maximum=most)
        for name, (least, most) in _INTEGERS.items()
        if fields.has(name)
    }
    options |= {name: fields.number(name, minimum=least) for name, least in _NUMBERS.items() if fields.has(name)}
    options |= {name: _share(fields, name) for name in _SHARES if fields.has(name)}
    rate = _share(fields, "learning_rate", TreeParameters.learning_rate)
    columns = _columns(fields, features, estimator)
    parameters = fields.made(TreeParameters, columns=columns, learning_rate=rate, options=options)
    fields.finish()
    if parameters.trees_per_round > parameters.max_trees:
        raise InvalidInput(
            f"parameters: trees_per_round {parameters.trees_per_round} is above max_trees {parameters.max_trees}"
        )
    trees = parameters.max_trees * int(options.get("num_parallel_tree", 1))
    if trees << (parameters.max_depth + 1) > _MAX_NODES * 2:
        raise InvalidInput(
            f"parameters: {trees} trees of depth {parameters.max_depth} can have more than {_MAX_NODES} "
            f"leaves; fewer or shallower trees can be served"
        )
    return parameters


def check_trees(
    parameters: TreeParameters, features: Mapping[str, FeatureSpec], heads: tuple[Head, ...], estimator: str
) -> None:
    """Raises InvalidInput for a head or feature that trees cannot have."""
    if len(heads) != 1:
        raise InvalidInput(f"{estimator} learns one label, heads has {len(heads)}; define a model for each")
    head = heads[0]
    if f"{head.task} {head.loss.name}" not in OBJECTIVES:
        known = ", ".join(f"{key.split()[1]} for {key.split()[0]}" for key in OBJECTIVES)
        raise InvalidInput(f"{estimator} has no loss {head.loss.name} for a {head.task} head; it has {known}")
    if head.label_smoothing or head.class_weights or head.loss.options:
        raise InvalidInput(f"{estimator} takes no label_smoothing, class_weights or options of a loss; leave them out")
    if (head.mean, head.deviation) != (Head.mean, Head.deviation):
        raise InvalidInput(f"{estimator} splits a label of any size; leave standardize out")
    for name in parameters.columns:
        spec = features[name]
        if isinstance(spec, Vocabulary) and spec.forgetting:
            raise InvalidInput(
                f"features: {name}: {estimator} splits on ids, and a vocabulary that forgets gives them away; "
                f"leave out expire_after_rounds, expire_after_examples and evict"
            )
        if isinstance(spec, Numeric) and spec.normalize != "none":
            raise InvalidInput(
                f"features: {name}: normalize does nothing for {estimator}: a tree compares values; leave it out"
            )


def check_tree_columns(parameters: TreeParameters, features: Mapping[str, FeatureSpec], schema: Schema) -> None:
    """Raises InvalidInput for a column of which an example may have any number of values."""
    for name in parameters.columns:
        if isinstance(features[name], Text) or has_any_length(features[name], features, schema):
            raise InvalidInput(
                f"parameters: columns: {name} has any number of values and a tree splits on a "
                f"single value; leave it out"
            )


def _columns(fields: Fields, features: Mapping[str, FeatureSpec], estimator: str) -> tuple[str, ...]:
    fitting = tuple(name for name, spec in features.items() if not isinstance(spec, Embedding | Indicator))
    names = fields.texts("columns", fitting)
    for name in names:
        if name not in features:
            raise InvalidInput(
                f"parameters: columns names {name!r}, features has {', '.join(features)}"
                f"{did_you_mean([name], features)}"
            )
        if name not in fitting:
            kind = type(features[name]).__name__.lower()
            raise InvalidInput(f"parameters: columns: {name} is an {kind}; {estimator} splits on numbers and ids")
    if not names:
        raise InvalidInput(f"parameters: columns is empty; {estimator} splits on numbers and ids")
    return tuple(sorted(set(names)))


def _share(fields: Fields, key: str, default: float | None = None) -> float:
    value = fields.number(key, minimum=0.0) if default is None else fields.number(key, default, minimum=0.0)
    if not 0.0 < value <= 1.0:
        raise InvalidInput(f"parameters: {key} must be above 0 and at most 1, got {value}")
    return value
