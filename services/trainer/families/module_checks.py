"""What a module's network, its outputs and its losses must be beside the rest of the definition."""

from collections.abc import Mapping
from dataclasses import replace

import keras
import tensorflow as tf

from common.counted import counted
from common.definition.labels import check_classes
from common.definition.losses import Task
from common.definition.model import Definition
from services.trainer.families.compiled import Compiled
from services.trainer.families.heads import BuiltHead
from services.trainer.families.model_fn import ModelFnNetwork
from services.trainer.families.reasons import DefinitionFailedError
from services.trainer.families.user_module import UserModule

_OF_LOGITS: tuple[Task, ...] = ("binary", "multiclass", "multilabel")
_SAME_NUMBERS = ("Identity", "Reshape", "Squeeze", "ExpandDims", "Cast", "StridedSlice")


def check_logits(head: BuiltHead, output: tf.Tensor, path: str) -> None:
    """Raises DefinitionFailedError where what was traced squashes a head's output, which the loss and serving would do
    once more.
    """
    if head.head.task not in _OF_LOGITS or not tf.is_symbolic_tensor(output):
        return
    operation = output.op
    while operation.type in _SAME_NUMBERS:
        operation = operation.inputs[0].op
    if operation.type in ("Sigmoid", "Softmax"):
        of_head = "" if head.head.name == head.label.name else f" of head {head.head.name}"
        raise DefinitionFailedError(
            f"{path}: the last step of the output{of_head} is a {operation.type.lower()}; return the logits"
        )


def check_precision(definition: Definition, network: keras.Model, compiled: Compiled) -> None:
    precision = definition.training.mixed_precision
    if precision == "float32":
        return
    why = ""
    if isinstance(network, ModelFnNetwork):
        why = "model_fn has no layers that would follow it"
    elif precision == "float16" and (compiled.optimizers or compiled.has_train_step):
        why = "the module's own optimizer or train_step would have to scale the loss; bfloat16 needs no scaling"
    if why:
        raise DefinitionFailedError(f"{definition.module}: training.mixed_precision is {precision}, and {why}")


def check_width(head: BuiltHead, width: int, path: str) -> None:
    if head.class_count:
        check_classes(head.head, head.label, head.class_count, place=f"{path}: label {head.label.name}")
    if head.units != width:
        raise DefinitionFailedError(
            f"{path}: the output of head {head.name} has {counted(width, 'number')} per example, a {head.task} head of "
            f"label {head.label.name} has {head.units}"
        )


def check_own_losses(module: UserModule, definition: Definition, path: str) -> None:
    """Raises DefinitionFailedError where a loss belongs to no head, or stands in two places."""
    if module.loss is None:
        return
    names = [head.name for head in definition.heads]
    own = module.loss if isinstance(module.loss, Mapping) else names
    for name in own:
        if name not in names:
            raise DefinitionFailedError(
                f"{path}: loss names {name}, which is no head; the heads are {', '.join(names)}"
            )
        head = definition.heads[names.index(name)]
        if not replace(head, weight=1.0, class_weights={}).is_plain:
            raise DefinitionFailedError(
                f"{path}: head {name} has a loss of the module's, and model.yaml says its loss, positive_weight or "
                f"label_smoothing; say it in one of them"
            )
