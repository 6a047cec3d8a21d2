"""model_fn(features, labels, mode, params, config) as a Keras network: one function, called in every mode.

The function makes its layers and variables anew in each call, and yet they are the same variables: whatever makes a
`tf.Variable` in a call is given the one that an earlier call has made under the same path. A path is Keras's name of
the layer and variable, counted per call ("dense/kernel", "dense_1/kernel"), or the name of a plain tf.Variable.

The first calls, one in each mode, are made at once on two empty examples; what they do to variables is undone.

| mode  | needs       | uses                                                                                  |
|-------|-------------|---------------------------------------------------------------------------------------|
| train | loss        | train_op, or optimizer, or model.yaml's optimizer on the loss                         |
| eval  | loss        | eval_metric_ops over the held-out slice, beside the heads' own metrics                |
| infer | predictions | the output of each head (its name, its label, `logits`, `predictions`); export_outputs |
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.name_scope import current_path

from common.definition.model import Definition
from common.model_fn import ModeKeys, RunConfig
from common.schema import Feature, Schema
from services.trainer.families import module_inputs
from services.trainer.families.authors_code import called
from services.trainer.families.heads import ByHead, built_heads
from services.trainer.families.port import Columns, TrainingSet
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.families.tensorflow_1 import tensorflow_1
from services.trainer.families.wiring import Wiring, wiring_of
from services.trainer.features.parsing import DTYPES
from services.trainer.keras_internals import name_variable

ModelFunction = Callable[..., Any]
_ARGUMENTS = ("features", "labels", "mode", "params", "config", "weights")
_NAMES_OF_AN_OUTPUT = ("logits", "predictions", "prediction", "outputs", "output")
_KERAS_COUNTERS = ("object_name_uids", "name_scope_stack")
_COLLECTIONS = (("__variable_store",), ("__varscope",))
"""Where tf.compat.v1.get_variable looks for what it has made, and counts scopes: within one call it makes each once."""
_EMPTY_ROWS = 2


class _Variables:
    """By path, in the order of their making; plain, so that neither Keras nor TensorFlow tracks what it holds."""

    def __init__(self, path: str) -> None:
        self._module = path
        self._found: dict[str, tf.Variable] = {}
        self._initial: dict[str, tf.Tensor] = {}
        self._seen: dict[str, int] = {}
        self._used: dict[str, tf.Variable] = {}
        self.is_complete = False

    @contextmanager
    def call(self) -> Iterator[dict[str, tf.Variable]]:
        """One call of the function; gives what it asks for, by path. Keras counts its names from the beginning."""
        self._seen, self._used = {}, {}
        kept = {name: global_state.get_global_attribute(name) for name in _KERAS_COUNTERS}
        for name in kept:
            global_state.set_global_attribute(name, None)
        stores = [tf.compat.v1.get_default_graph().get_collection_ref(name) for name in _COLLECTIONS]
        known = [store[:] for store in stores]
        for store in stores:
            store.clear()
        try:
            with tf.variable_creator_scope(self._make):
                yield self._used
        finally:
            for store, before in zip(stores, known, strict=True):
                store[:] = before
            for name, value in kept.items():
                global_state.set_global_attribute(name, value)

    def reset(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._found[path].assign(self._initial[path])

    def _make(self, make: Callable[..., tf.Variable], **given: Any) -> tf.Variable:
        path = "/".join(part for part in (current_path(), given.get("name") or "variable") if part)
        self._seen[path] = self._seen.get(path, 0) + 1
        if self._seen[path] > 1:
            path = f"{path}_{self._seen[path] - 1}"
        if path not in self._found:
            if self.is_complete:
                raise DefinitionFailedError(
                    f"{self._module}: model_fn makes the variable {path} that its first calls have not made"
                )
            with tf.init_scope():
                self._found[path] = make(**given)
                self._initial[path] = tf.identity(self._found[path])
        self._used[path] = self._found[path]
        return self._found[path]


class ModelFnNetwork(keras.Model):
    """Outputs are the predictions of mode infer, a dict by name."""

    def __init__(self, function: ModelFunction, definition: Definition, schema: Schema) -> None:
        super().__init__(name="model_fn")
        self._function, self._path = function, str(definition.module)
        self._parameters = definition.module_parameters
        training = definition.training
        self._config = RunConfig(training.save_every_steps, training.batch_size)
        self._accepts = _accepted(function, schema, definition)
        self._store = _Variables(self._path)
        self._head_names = tuple(head.name for head in definition.heads)
        features = {feature.name: _empty(feature) for feature in schema.features}
        section = [module_inputs.of_section(definition.features, name, schema) for name in definition.features]
        features |= {feature.name: tf.zeros([_EMPTY_ROWS, *feature.shape[1:]], feature.dtype) for feature in section}
        widths = {head.name: schema.feature(head.label).value_count or 1 for head in definition.heads}
        heads = built_heads(definition.heads, schema, widths)
        labels = {head.name: head.labels_of(_empty(head.label)) for head in heads}
        with blame_definition(self._path):
            self._first_calls(features, labels)

    def _first_calls(self, features: Columns, labels: ByHead) -> None:
        weights = tf.ones([_EMPTY_ROWS])
        trained, used = self._run(ModeKeys.TRAIN, features, labels, weights)
        _need(trained, "loss", ModeKeys.TRAIN, self._path)
        train_op = _part(trained, "train_op")
        if callable(train_op):
            with self._store.call() as more:
                train_op()
            used = used | more
        evaluated, for_metrics = self._run(ModeKeys.EVAL, features, labels, weights)
        _need(evaluated, "loss", ModeKeys.EVAL, self._path)
        predicted, for_answers = self._run(ModeKeys.PREDICT, features, None, None)
        _need(predicted, "predictions", ModeKeys.PREDICT, self._path)
        late = [path for path in for_answers if path not in used]
        if late:
            raise DefinitionFailedError(f"{self._path}: model_fn makes {late[0]} in mode infer and not in mode train")
        self._store.is_complete = True
        self._store.reset([*used, *for_metrics])
        self.own_optimizer = _part(trained, "optimizer")
        if self.own_optimizer is not None and not isinstance(self.own_optimizer, keras.optimizers.Optimizer):
            raise DefinitionFailedError(f"{self._path}: optimizer of the spec must be a Keras optimizer")
        self._keep_variables(used)
        self._of_metrics = [path for path in for_metrics if path not in used]
        metrics = _metrics(evaluated)
        self.running_metrics = {
            str(name) for name, metric in metrics.items() if isinstance(metric, keras.metrics.Metric)
        }
        self.signature_names = tuple(sorted(_part(predicted, "export_outputs") or {}))
        self.outputs_of_examples = {name: tf.convert_to_tensor(tensor) for name, tensor in _named(predicted).items()}
        self.built = True

    def _keep_variables(self, used: Mapping[str, tf.Variable]) -> None:
        """As Keras's variables, which Training takes; those of the spec's optimizer are the optimizer's."""
        own = self.own_optimizer.variables if self.own_optimizer is not None else []
        elsewhere = {id(variable.value) for variable in own}
        self.kept: list[keras.Variable] = []
        for path, found in used.items():
            if id(found) in elsewhere:
                continue
            with tf.variable_creator_scope(lambda make, found=found, **_: found):
                made = keras.Variable(
                    found.numpy(), dtype=found.dtype.name, trainable=found.trainable, autocast=False, name="variable"
                )
            name_variable(made, path)
            self.kept = [*self.kept, made]

    def call(self, inputs: Columns, training: bool | None = None) -> dict[str, tf.Tensor]:
        return _named(self._run(ModeKeys.PREDICT, inputs, None, None)[0])

    def exported(self, name: str, inputs: Columns) -> dict[str, tf.Tensor]:
        """What export_outputs has under a name."""
        spec, _ = self._run(ModeKeys.PREDICT, inputs, None, None)
        return _by_name(_part(spec, "export_outputs")[name])

    @tf.autograph.experimental.do_not_convert  # families/compiled.py calls it as it does an author's
    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        features, labels, weights = data
        with tf.GradientTape() as tape:
            spec, _ = self._run(ModeKeys.TRAIN, features, self._by_head(labels), weights)
            loss = tf.reduce_sum(tf.cast(_part(spec, "loss"), tf.float32))
        train_op = _part(spec, "train_op")
        if train_op is None:
            pairs = zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            moved = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
            if not moved:
                raise DefinitionFailedError(f"{self._path}: the loss depends on none of the trainable variables")
            self._optimizer_of_steps.apply_gradients(moved)
            return {"loss": loss}
        if callable(train_op):
            with self._store.call():
                called(train_op)
        self._optimizer_of_steps.iterations.assign_add(1)
        return {"loss": loss}

    def evaluated(self, columns: Columns, labels: ByHead, weights: ByHead) -> dict[str, tf.Tensor]:
        """eval_metric_ops and `loss` of a batch, float32 scalars; `running_metrics` are over all since the reset."""
        first = next(iter(weights.values()))
        spec, _ = self._run(ModeKeys.EVAL, columns, labels, first)
        found = {"loss": tf.reduce_sum(tf.cast(_part(spec, "loss"), tf.float32))}
        for name, value in _metrics(spec).items():
            result = called(value.result) if isinstance(value, keras.metrics.Metric) else value
            found[str(name)] = tf.reduce_mean(tf.cast(result, tf.float32))
        return found

    def reset_evaluation(self) -> None:
        self._store.reset(self._of_metrics)

    @property
    def _optimizer_of_steps(self) -> keras.optimizers.Optimizer:
        return self.own_optimizer if self.own_optimizer is not None else self.optimizer

    def _by_head(self, labels: Any) -> dict[str, tf.Tensor]:
        """From what Training hands to a train_step: the one tensor, or a dict by output."""
        if len(self._head_names) > 1:
            return {name: labels[name] for name in self._head_names}
        return {self._head_names[0]: next(iter(labels.values())) if isinstance(labels, Mapping) else labels}

    def _run(self, mode: str, features: Columns, labels: ByHead | None, weights: Any) -> tuple[Any, dict[str, Any]]:
        """The spec of one call, and the variables that it asks for."""
        given: dict[str, Any] = {"features": dict(features), "mode": mode}
        given["params"] = copy.deepcopy(dict(self._parameters))
        given["labels"] = labels if labels is None or len(labels) > 1 else next(iter(labels.values()))
        given["weights"], given["config"] = weights, self._config
        with (
            self._store.call() as used,
            tf.GradientTape(persistent=True) if mode == ModeKeys.TRAIN else nullcontext() as tape,
            tensorflow_1(tape, used),
        ):
            spec = called(self._function, **{name: given[name] for name in self._accepts})
        if spec is None:
            raise DefinitionFailedError(f"{self._path}: model_fn returned nothing in mode {mode}")
        return spec, dict(used)


class ModelFnEvaluation:
    """The port's OwnEvaluation: eval_metric_ops and the loss; tensors are averaged over the examples."""

    def __init__(self, network: ModelFnNetwork, evaluate: Callable[..., dict[str, tf.Tensor]]) -> None:
        self._network, self._evaluate = network, evaluate
        self._sums: dict[str, float] = {}
        self._count = 0
        network.reset_evaluation()

    def add(self, examples: TrainingSet) -> None:
        if not examples.count:
            return
        found = self._evaluate(dict(examples.columns), dict(examples.labels), dict(examples.weights))
        self._count += examples.count
        for name, value in found.items():
            is_running = name in self._network.running_metrics
            before = 0.0 if is_running else self._sums.get(name, 0.0)
            self._sums[name] = float(value) if is_running else before + float(value) * examples.count

    def result(self) -> dict[str, float]:
        running = self._network.running_metrics
        return {name: value if name in running else value / self._count for name, value in self._sums.items()}


def build_from_model_fn(
    function: ModelFunction, schema: Schema, definition: Definition
) -> tuple[ModelFnNetwork, Wiring]:
    """The network and how it is called. Raises DefinitionFailedError: the function raises, or a spec lacks what its
    mode needs."""
    network = ModelFnNetwork(function, definition, schema)
    inputs = {
        feature.name: keras.Input(feature.shape, dtype=feature.dtype, name=feature.name) for feature in schema.features
    }
    inputs |= {name: module_inputs.of_section(definition.features, name, schema) for name in definition.features}
    outputs = {}
    for name, value in sorted(network.outputs_of_examples.items()):
        if not value.shape.rank or value.shape[0] != _EMPTY_ROWS:
            raise DefinitionFailedError(
                f"{definition.module}: prediction {name} has shape {tuple(value.shape)} for {_EMPTY_ROWS} examples; "
                f"its first dimension is the examples"
            )
        outputs[name] = keras.KerasTensor([None, *value.shape[1:]], dtype=value.dtype.name)
    taught = {head.name: _output_of(head.name, head.label, tuple(outputs), definition) for head in definition.heads}
    return network, wiring_of(inputs, outputs, tuple(sorted(outputs)), taught)


def _output_of(head: str, label: str, names: tuple[str, ...], definition: Definition) -> str:
    meant = (head, label, *_NAMES_OF_AN_OUTPUT, *(names if len(names) == 1 else ()))
    found = next((name for name in (meant if len(definition.heads) == 1 else (head,)) if name in names), None)
    if found is None:
        raise DefinitionFailedError(
            f"{definition.module}: predictions of mode infer are {', '.join(names)}; none is named after head {head}"
        )
    return found


def _accepted(function: ModelFunction, schema: Schema, definition: Definition) -> tuple[str, ...]:
    path = str(definition.module)
    parameters = inspect.signature(function).parameters
    names = tuple(
        name for name in parameters if name in _ARGUMENTS or parameters[name].default is inspect.Parameter.empty
    )
    unknown = [name for name in names if name not in _ARGUMENTS]
    if unknown or "features" not in names or "mode" not in names:
        raise DefinitionFailedError(
            f"{path}: model_fn takes {', '.join(names)}; expected features, labels, mode, params, and config or "
            f"weights if wanted; another one needs a default, which it keeps"
        )
    if schema.weight is not None and "weights" not in names:
        raise DefinitionFailedError(
            f"{path}: the stream weights its examples by {schema.weight}, so model_fn needs a parameter weights"
        )
    late = [head.label for head in definition.heads if schema.feature(head.label).may_be_missing]
    if late and "weights" not in names:
        raise DefinitionFailedError(
            f"{path}: label {late[0]} may be missing, its weight is 0 then, so model_fn needs a parameter weights"
        )
    return names


def _empty(feature: Feature) -> tf.Tensor:
    shape = [_EMPTY_ROWS, *(size or 1 for size in feature.shape)]
    if feature.vocabulary:
        return tf.fill(shape, tf.constant(feature.vocabulary[0]))
    return tf.fill(shape, "") if feature.dtype == "string" else tf.zeros(shape, DTYPES[feature.dtype])


def _part(spec: Any, name: str) -> Any:
    return spec.get(name) if isinstance(spec, Mapping) else getattr(spec, name, None)


def _metrics(spec: Any) -> dict[str, Any]:
    """By name; of a pair, which tf.compat.v1.metrics gives, the first."""
    found = dict(_part(spec, "eval_metric_ops") or {})
    return {name: value[0] if isinstance(value, tuple) else value for name, value in found.items()}


def _need(spec: Any, name: str, mode: str, path: str) -> None:
    if _part(spec, name) is None:
        raise DefinitionFailedError(f"{path}: model_fn's spec has no {name} in mode {mode}")


def _named(spec: Any) -> dict[str, tf.Tensor]:
    return _by_name(_part(spec, "predictions"))


def _by_name(value: Any) -> dict[str, tf.Tensor]:
    """A tensor, a mapping of them, or an object that has one as `outputs`."""
    value = getattr(value, "outputs", value)
    return (
        {str(name): tensor for name, tensor in value.items()} if isinstance(value, Mapping) else {"predictions": value}
    )
