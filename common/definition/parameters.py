"""What an estimator is made of (section `parameters`).

    parameters: {wide: [carrier, route], deep: [distance, route_vector], hidden_units: [64, 32], dropout: 0.1}

or, of rnn_*, which run a recurrent network over features of any length:

    parameters: {sequence: [merchant_vector, amount], context: [age], cell: gru, units: [32]}
"""

from collections.abc import Mapping
from dataclasses import dataclass

from common.definition.features import Embedding, FeatureSpec, Indicator, Numeric
from common.definition.fields import Fields
from common.definition.keras_names import (
    ACTIVATIONS,
    GLOROT_UNIFORM,
    INITIALIZERS,
    REGULARIZERS,
    RELU,
    KerasName,
    Named,
    read_named,
)
from common.definition.towers import TWO_TOWER, TwoTower, read_towers
from common.errors import InvalidInput
from common.suggestions import did_you_mean

FACTORIZATION_MACHINES = ("factorization_machine_classifier", "factorization_machine_regressor")
RNN_ESTIMATORS = ("rnn_classifier", "rnn_regressor", "rnn")
CELLS = ("lstm", "gru", "simple_rnn")


@dataclass(frozen=True)
class Recurrent:
    """As tf.estimator's RNNClassifier: the layers see at each step what `sequence` has there, beside all of `context`.

    Attributes:
        sequence: features that are lists; their steps go by number.
        context: features of the whole example.
        cell: Keras's layer of that name; `hidden_units` has the units of each.
    """

    sequence: tuple[str, ...]
    context: tuple[str, ...] = ()
    cell: str = "lstm"


@dataclass(frozen=True)
class EstimatorParameters:
    """What an estimator is made of.

    Attributes:
        wide: features of the linear part (linear_* and wide_deep_*). Default: every categorical feature, and for
            linear_* the numeric features too.
        deep: features of the network (dnn_* and wide_deep_*). Default: every numeric, embedding and indicator feature.
        activation, initializer: of the hidden layers; Keras's names, with Keras's options.
        initializers: of each hidden layer, where `initializer` is a list; else empty.
        embedding_initializer: of embedding tables; None: normal, cut off at two deviations of dimension ^ -0.5.
        regularizer: of the hidden kernels, beside l1 and l2; None: none.
        dimension: of the factors of a factorization machine; 0 elsewhere.
        batch_norm: normalise what each hidden layer gives, behind its activation and dropout, as DNNClassifier does.
        l1, l2: factors of the sums of absolute and of squared kernel and table weights, added to the loss.
        towers: of two_tower, which has no other parts.
        recurrent: of rnn_*; `deep` then has the features of sequence and context.
    """

    wide: tuple[str, ...] = ()
    deep: tuple[str, ...] = ()
    hidden_units: tuple[int, ...] = (64, 32)
    activation: Named = RELU
    initializer: Named = GLOROT_UNIFORM
    initializers: tuple[Named, ...] = ()
    embedding_initializer: Named | None = None
    regularizer: Named | None = None
    dropout: float = 0.0
    batch_norm: bool = False
    l1: float = 0.0
    l2: float = 0.0
    dimension: int = 0
    towers: TwoTower | None = None
    recurrent: Recurrent | None = None


def read_parameters(estimator: str, section: object, features: Mapping[str, FeatureSpec]) -> EstimatorParameters:
    """Raises InvalidInput: which key, what was expected."""
    fields = Fields("parameters", section)
    if estimator in RNN_ESTIMATORS:
        return _recurrent(fields, estimator, features)
    has_wide, has_deep = not estimator.startswith(("dnn", TWO_TOWER)), not estimator.startswith(("linear", "factoriz"))
    is_factored = estimator in FACTORIZATION_MACHINES
    towers = read_towers(fields, features) if estimator == TWO_TOWER else None
    hidden_units = fields.integers("hidden_units", (64, 32), maximum=65_536) if has_deep else ()
    initializers = _for_each(fields, "initializer", len(hidden_units)) if has_deep and not towers else ()
    parameters = EstimatorParameters(
        wide=_columns(fields, "wide", features, estimator) if has_wide else (),
        deep=_columns(fields, "deep", features, estimator) if has_deep and not towers else (),
        hidden_units=hidden_units,
        activation=read_named(fields, "activation", ACTIVATIONS, RELU, without=("glu",)) if has_deep else RELU,
        initializer=read_named(fields, "initializer", INITIALIZERS, GLOROT_UNIFORM)
        if has_deep and not initializers
        else GLOROT_UNIFORM,
        initializers=initializers,
        embedding_initializer=_optional(fields, "embedding_initializer", INITIALIZERS)
        if has_deep or is_factored
        else None,
        regularizer=_optional(fields, "regularizer", REGULARIZERS) if has_deep else None,
        dropout=fields.number("dropout", 0.0, minimum=0.0, below=1.0) if has_deep else 0.0,
        batch_norm=fields.flag("batch_norm", default=False) if has_deep else False,
        l1=fields.number("l1", 0.0, minimum=0.0),
        l2=fields.number("l2", 0.0, minimum=0.0),
        dimension=fields.integer("dimension", 8, maximum=4096) if is_factored else 0,
        towers=towers,
    )
    _finish(fields, estimator)
    return parameters


def _for_each(fields: Fields, key: str, count: int) -> tuple[Named, ...]:
    """The initializer of each of `count` hidden layers; empty where the key is no list."""
    initializers = fields.peek(key)
    if not isinstance(initializers, list):
        return ()
    fields.take(key)
    if len(initializers) != count:
        raise InvalidInput(
            f"parameters: {key} lists {len(initializers)}, expected {count}: one for each of hidden_units"
        )
    each = Fields("parameters", {f"{key} {index}": initializer for index, initializer in enumerate(initializers)})
    return tuple(read_named(each, f"{key} {index}", INITIALIZERS, GLOROT_UNIFORM) for index in range(count))


def _finish(fields: Fields, estimator: str) -> None:
    """What is read with the heads is theirs."""
    fields.take("loss" if estimator.endswith("_regressor") else "classes", None)
    fields.finish()


def _recurrent(fields: Fields, estimator: str, features: Mapping[str, FeatureSpec]) -> EstimatorParameters:
    sequence = _steps(fields, "sequence", features)
    context = _steps(fields, "context", features) if fields.has("context") else fields.take("context", ()) or ()
    if both := sorted(set(sequence) & set(context)):
        raise InvalidInput(
            f"parameters: {both[0]} is in sequence and in context; a feature is of the steps or of the whole"
        )
    parameters = EstimatorParameters(
        deep=sequence + context,
        hidden_units=fields.integers("units", (32,), maximum=65_536),
        recurrent=Recurrent(sequence, context, fields.choice("cell", CELLS, Recurrent.cell)),
        initializer=read_named(fields, "initializer", INITIALIZERS, GLOROT_UNIFORM),
        embedding_initializer=_optional(fields, "embedding_initializer", INITIALIZERS),
        regularizer=_optional(fields, "regularizer", REGULARIZERS),
        dropout=fields.number("dropout", 0.0, minimum=0.0, below=1.0),
        l1=fields.number("l1", 0.0, minimum=0.0),
        l2=fields.number("l2", 0.0, minimum=0.0),
    )
    _finish(fields, estimator)
    return parameters


def _steps(fields: Fields, key: str, features: Mapping[str, FeatureSpec]) -> tuple[str, ...]:
    names = fields.texts(key)
    fitting = [name for name, spec in features.items() if isinstance(spec, Numeric | Embedding | Indicator)]
    for name in names:
        spec = features.get(name)
        if not isinstance(spec, Numeric | Embedding | Indicator):
            raise InvalidInput(
                f"parameters: {key} takes numeric, embedding and indicator features, got {name!r}"
                f"{did_you_mean([name], fitting)}"
            )
        if key == "sequence" and isinstance(spec, Numeric) and (spec.steps or spec.normalize != "none"):
            raise InvalidInput(
                f"parameters: sequence: {name} is a number a step; leave out its transform and normalize"
            )
        if (
            key == "sequence"
            and not isinstance(spec, Numeric)
            and (spec.weights or getattr(spec, "counts", "count") != "count")
        ):
            raise InvalidInput(f"parameters: sequence: {name} has weights; a step is its ids alone")
    return names


def _optional(fields: Fields, key: str, kind: Mapping[str, KerasName]) -> Named | None:
    if fields.has(key):
        return read_named(fields, key, kind, Named(next(iter(kind))))
    fields.take(key, None)
    return None


def _columns(fields: Fields, part: str, features: Mapping[str, FeatureSpec], estimator: str) -> tuple[str, ...]:
    linear_kinds = {"Bucketized", "Quantiles", "Vocabulary", "Identity", "Hashed", "Text", "Crossed"}
    linear_kinds |= {"Numeric"} if estimator.startswith(("linear", "factorization")) else set()
    kinds = linear_kinds if part == "wide" else {"Numeric", "Embedding", "Indicator"}
    fitting = tuple(name for name, spec in features.items() if type(spec).__name__ in kinds)
    names = fields.texts(part, fitting)
    for name in names:
        if name not in features:
            raise InvalidInput(
                f"parameters: {part} names {name!r}, features has {', '.join(features)}{did_you_mean([name], features)}"
            )
        if type(features[name]).__name__ not in kinds:
            raise InvalidInput(
                f"parameters: {part} cannot take {name} ({type(features[name]).__name__.lower()}); "
                f"{estimator} takes {', '.join(sorted(kinds)).lower()} there"
            )
    if not names:
        raise InvalidInput(f"parameters: {part} is empty; {estimator} takes {', '.join(sorted(kinds)).lower()} there")
    return names
