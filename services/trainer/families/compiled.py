"""What a module compiles: used, or refused with a sentence; never passed over.

| compiled                          | here                                                                            |
|-----------------------------------|---------------------------------------------------------------------------------|
| optimizer                         | used as it is: schedule, clipping, EMA, accumulation; model.yaml then names none |
| loss, loss_weights                | used, with class_weights, add_loss and regularisers; the module has no loss()    |
| metrics, weighted_metrics         | measured on the held-out slice, by the model's own compute_metrics               |
| train_step, compute_loss          | called instead of ours                                                           |
| fit, evaluate, test_step, …       | refused: rounds take the steps, evaluation and serving call the model itself     |
| run_eagerly, steps_per_execution, | refused: a round is one compiled graph, which must train a version again bit by  |
| jit_compile                       | bit                                                                              |
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from common.definition.heads import REGRESSORS, Head
from common.definition.optimizers import Optimizer
from services.trainer.families.authors_code import called
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.wiring import Wiring
from services.trainer.keras_internals import asks_for_xla, has_compiled_metrics

_NEVER_CALLED = ("fit", "train_on_batch", "make_train_function", "evaluate", "test_step", "predict_step")


@dataclass(frozen=True)
class Compiled:
    """Attributes:
    optimizers: found on the model; the first one counts the steps. Empty: model.yaml's optimizer is used.
    has_loss: model.compute_loss gives the loss, everything included.
    computes_loss: that compute_loss is the module's own.
    has_metrics: model.compute_metrics measures; it may be the module's own.
    has_train_step: model.train_step takes the steps.
    """

    optimizers: tuple[keras.optimizers.Optimizer, ...] = ()
    has_loss: bool = False
    has_metrics: bool = False
    has_train_step: bool = False
    computes_loss: bool = False


def compiled_of(
    network: keras.Model, path: str, *, heads: Sequence[Head], optimizer: Optimizer, own_loss: object
) -> Compiled:
    """Raises DefinitionFailedError for what cannot be used, or stands in two places."""
    has_train_step, computes_loss = _overrides(network, "train_step"), _overrides(network, "compute_loss")
    for name in _NEVER_CALLED:
        if _overrides(network, name):
            raise DefinitionFailedError(
                f"{path}: the model has its own {name}, which nothing calls: rounds take steps by train_step, and "
                f"evaluation and serving call the model"
            )
    has_metrics = has_compiled_metrics(network) or any(
        _overrides(network, name) for name in ("compute_metrics", "get_metrics_result")
    )
    if not (network.compiled or has_train_step or computes_loss):
        return Compiled(has_metrics=has_metrics)
    if network.compiled:
        _refuse_options(network, path)
    optimizers = _optimizers(network)
    if optimizers and optimizer != Optimizer():
        raise DefinitionFailedError(
            f"{path}: the model compiles the optimizer {type(optimizers[0]).__name__} (RMSprop where compile() names "
            f"none) and model.yaml names {optimizer.name}; say it in one of them"
        )
    loss = getattr(network, "loss", None) if network.compiled else None
    has_loss = loss is not None or computes_loss
    if (has_loss or has_train_step) and own_loss is not None:
        raise DefinitionFailedError(f"{path}: the model brings a loss, and the module a function loss(); keep one")
    if has_loss or has_train_step:
        _refuse_plans(heads, path, may_weigh_classes=not (has_train_step or computes_loss))
    _refuse_untaught(loss, path, heads)
    for part in keras.tree.flatten(loss):
        _refuse_probabilities(part, path, heads)
    return Compiled(optimizers, has_loss, has_metrics, has_train_step, computes_loss)


def users_step(network: keras.Model, given: tuple[Any, Any, Any], *, has_weights: bool) -> Any:
    """What the model's train_step returns of inputs, labels and, where there are any, weights, as `fit` gives them. A
    module of before, which always takes three, gets three: its versions can be trained again."""
    try:
        return called(network.train_step, given if has_weights else given[:2])
    except ValueError as error:
        if has_weights or "not enough values to unpack (expected 3, got 2)" not in str(error):
            raise
    return called(network.train_step, given)


def measured_by(network: keras.Model, wiring: Wiring, labels: Any, outputs: Any, weights: Any) -> dict[str, float]:
    """What the model has compiled to measure, of arrays by head."""
    # [n, 1] beside [n, 1], as fit has it: of [n] Keras's metrics would give one number, which takes no weights.
    labels = {name: values[:, None] if outputs[name].ndim == 1 else values for name, values in labels.items()}
    outputs = {name: values[:, None] if values.ndim == 1 else values for name, values in outputs.items()}
    network.reset_metrics()
    found = network.compute_metrics(
        x=None,
        y=wiring.by_output(labels),
        y_pred=wiring.by_output(outputs),
        sample_weight=wiring.weights_by_output(weights),
    )
    return {name: float(value) for name, value in found.items() if name != "loss"}


def _overrides(network: keras.Model, name: str) -> bool:
    return getattr(type(network), name) is not getattr(keras.Model, name) and not type(network).__module__.startswith(
        "keras."
    )


def _optimizers(network: keras.Model) -> tuple[keras.optimizers.Optimizer, ...]:
    """The compiled one first; a model with several (a GAN) keeps the others as attributes."""
    found = [getattr(network, "optimizer", None), *vars(network).values()]
    return tuple(
        {id(optimizer): optimizer for optimizer in found if isinstance(optimizer, keras.optimizers.Optimizer)}.values()
    )


def _refuse_options(network: keras.Model, path: str) -> None:
    if network.run_eagerly:
        raise DefinitionFailedError(f"{path}: compile(run_eagerly=True) cannot be used: a round is one compiled graph")
    if network.steps_per_execution != 1:
        raise DefinitionFailedError(
            f"{path}: compile(steps_per_execution={network.steps_per_execution}) cannot be used: a round takes all the "
            f"steps of a block in one call already"
        )
    if asks_for_xla(network):
        raise DefinitionFailedError(
            f"{path}: compile(jit_compile=True) cannot be used: Keras takes it back where results are exact; say "
            f"training.jit_compile in model.yaml"
        )


def _refuse_plans(heads: Sequence[Head], path: str, *, may_weigh_classes: bool) -> None:
    """class_weights go with a compiled loss as with fit(class_weight=...)."""
    plain = [replace(head, class_weights={}) if may_weigh_classes else head for head in heads]
    taught = next((head.name for head in plain if not head.is_plain), None)
    if taught is not None:
        keys = "loss, weight, " + ("" if may_weigh_classes else "class_weights, ") + "positive_weight"
        raise DefinitionFailedError(
            f"{path}: the model brings a loss, and model.yaml says how head {taught} is taught ({keys} or "
            f"label_smoothing); say it in one of them"
        )


def _refuse_untaught(loss: object, path: str, heads: Sequence[Head]) -> None:
    """Keras takes an output without a loss for one that is only returned; a head is there to be taught."""
    given = loss if isinstance(loss, Mapping) else {}
    without = [f"head {head.name}" for head in heads if given and len(heads) > 1 and given.get(head.name) is None]
    if without or (isinstance(loss, list | tuple) and None in loss):
        raise DefinitionFailedError(
            f"{path}: the compiled loss leaves out {', '.join(without) or 'an output'}, which would never be taught; "
            f"give it a loss, with loss_weights of 0 where it shall only be measured"
        )


def _refuse_probabilities(loss: object, path: str, heads: Sequence[Head]) -> None:
    """A cross-entropy of Keras takes probabilities unless `from_logits` is set; the model's outputs are logits."""
    if loss is None or all(head.task in REGRESSORS for head in heads):
        return
    found = keras.losses.get(loss)
    config = found.get_config() if isinstance(found, keras.losses.Loss) else {}
    by_name = callable(found) and getattr(found, "__module__", "").startswith("keras.")
    name = getattr(found, "__name__", type(found).__name__)
    is_entropy = "entropy" in name.lower()
    if is_entropy and (config.get("from_logits") is False or (by_name and not isinstance(found, keras.losses.Loss))):
        raise DefinitionFailedError(
            f"{path}: the compiled loss {name} takes probabilities, the outputs are logits; compile the class with "
            f"from_logits=True, or none: {heads[0].task} models have a cross-entropy by default"
        )
