"""What the sections of a definition must agree on, once each of them is read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from common.definition.batches import MIXING
from common.definition.features import Embedding
from common.definition.hooks import check_hooks
from common.definition.losses import COMPARING
from common.definition.towers import TWO_TOWER, check_towers
from common.definition.training import Training
from common.definition.trees import check_trees
from common.errors import InvalidInput

if TYPE_CHECKING:
    from common.definition.model import Definition

_OF_WHOLE_VARIABLES = ("adafactor", "lamb", "muon", "schedule_free_adamw")


def check_agreements(definition: "Definition", files: Mapping[str, bytes]) -> None:
    """Raises InvalidInput: which sections, and what to change."""
    _check_whole_batches(definition)
    _check_context(definition)
    _check_balance(definition)
    _check_batches(definition)
    _check_module_keys(definition)
    check_hooks(definition.training.hooks, definition.module, files)
    _check_factored(definition)
    _check_tables_in_parts(definition)
    if definition.estimator_parameters and (towers := definition.estimator_parameters.towers):
        check_towers(towers, definition.features, definition.heads)
    _check_trees(definition)


def _check_module_keys(definition: "Definition") -> None:
    if definition.estimator and definition.training.bottleneck:
        raise InvalidInput(f"training: bottleneck names a layer of a module; {definition.estimator} has none to name")
    if definition.event_window and definition.labels:
        raise InvalidInput("event_window has events before a round's own, and labels joins none to these; keep one")


def _check_factored(definition: "Definition") -> None:
    """Estimators whose answer is a product of vectors."""
    parameters, tasks = definition.estimator_parameters, [head.task for head in definition.heads]
    if not parameters or not parameters.dimension:
        return
    if len(tasks) > 1 or tasks[0] not in ("binary", "regression", "count"):
        raise InvalidInput(
            f"{definition.estimator} answers with one number: one head, of task binary, regression or count"
        )


def _check_trees(definition: "Definition") -> None:
    if not definition.trees:
        return
    estimator = str(definition.estimator)
    if definition.warm_start:
        raise InvalidInput(f"{estimator} grows its trees from the first round on; it takes no warm_start")
    if any(head.calibration for head in definition.heads):
        raise InvalidInput(f"{estimator} takes no calibration; networks and modules do")
    check_trees(definition.trees, definition.features, definition.heads, estimator)
    if definition.training != Training():
        raise InvalidInput(f"{estimator} has no training section: parameters say how many trees, and how fast")


def _check_tables_in_parts(definition: "Definition") -> None:
    """An optimizer whose rule is of whole variables would compute otherwise for each part of an embedding table."""
    parted = [spec.name for spec in definition.features.values() if isinstance(spec, Embedding) and spec.parts > 1]
    whole = list[str]()
    for optimizer in (definition.training.optimizer, *definition.training.optimizers.values()):
        whole += [key for key in ("use_ema", "clipnorm") if optimizer.options.get(key)]
        whole += ["clip_average_norm"] if optimizer.clip_average_norm else []
        whole += [optimizer.name] if optimizer.name in _OF_WHOLE_VARIABLES else []
    if parted and whole:
        raise InvalidInput(
            f"feature {parted[0]}: a table in parts does not go with {', '.join(whole)}: its rule is of whole variables"
        )


def _check_balance(definition: "Definition") -> None:
    balance = definition.training.balance
    tasks = {head.name: head.task for head in definition.heads}
    if not balance:
        return
    if tasks.get(balance.head) not in ("binary", "multiclass"):
        known = ", ".join(f"{name} ({task})" for name, task in tasks.items())
        raise InvalidInput(f"training: balance names {balance.head!r}; expected a binary or multiclass head: {known}")
    if any(task in COMPARING for task in tasks.values()):
        raise InvalidInput(
            "training: balance takes rows again, and a head compares the rows of a batch; keep one of them"
        )


def _check_batches(definition: "Definition") -> None:
    """Of `bucket_by_sequence_length` and `augment`."""
    training, compared = definition.training, [head for head in definition.heads if head.task in COMPARING]
    if training.bucket_by_sequence_length and compared:
        raise InvalidInput(
            f"training: bucket_by_sequence_length chooses the rows of a batch, and head {compared[0].name} "
            f"({compared[0].task}) compares them; keep one of them"
        )
    if training.augment and definition.estimator:
        raise InvalidInput(
            f"training: augment changes images, which a module takes and {definition.estimator} does not"
        )
    mixing = sorted({layer.name for layers in training.augment.values() for layer in layers if layer.name in MIXING})
    if mixing and (len(training.augment) > 1 or training.fixed_batch):
        other = "fixed_batch" if training.fixed_batch else "a second feature"
        raise InvalidInput(f"augment: {mixing[0]} mixes whole examples, not with {other}; keep one of them")


def _check_context(definition: "Definition") -> None:
    has_network = not definition.trees and definition.estimator != TWO_TOWER
    if definition.export.context and not (has_network and definition.features):
        raise InvalidInput("export: context is for networks behind features of model.yaml, which make its columns once")


def _check_whole_batches(definition: "Definition") -> None:
    """Raises InvalidInput where rows that fill a batch up would be compared with its examples."""
    training, compared = definition.training, [head for head in definition.heads if head.task in COMPARING]
    if compared and training.fixed_batch:
        raise InvalidInput(
            f"training: fixed_batch fills batches up, and head {compared[0].name} ({compared[0].task}) compares every "
            f"two examples of one"
        )
    if definition.estimator == TWO_TOWER and training.mixed_precision != "float32":
        raise InvalidInput(f"{TWO_TOWER} computes in float32; leave mixed_precision out")
    if training.shards > 1 and any(head.task != "retrieval" for head in compared):
        raise InvalidInput(f"training: shards would cut the batches that head {compared[0].name} compares")
