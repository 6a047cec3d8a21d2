"""How a model is trained, as its definition says it (section `training`).

{batch_size: 256, passes: 1, optimizer: {name: adam, learning_rate: 0.001, clip_norm: 1.0}}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from common.counted import counted
from common.definition.asynchronous import Asynchronous, parse_asynchronous
from common.definition.batches import (
    Augmentations,
    Balance,
    Bucketing,
    read_augmentations,
    read_balance,
    read_bucketing,
)
from common.definition.fields import Allowed, Fields, optional
from common.definition.hooks import HookClass, parse_hooks
from common.definition.metrics import Direction, direction_of
from common.definition.optimizers import Optimizer, read_optimizer, read_optimizers
from common.definition.summaries import Summaries, parse_summaries
from common.errors import InvalidInput

EXECUTIONS = ("graph", "eager", "session")
INPUTS = ("memory", "feed", "stream")
ON_NOT_FINITE = ("fail", "skip_batch", "set_aside")
PRECISIONS = ("float32", "bfloat16", "float16")
_DEVICE = re.compile(r"(CPU|GPU):\d{1,2}")


@dataclass(frozen=True)
class EarlyStopping:
    """Attributes:
    metric: of the evaluations on the way, as the version names it.
    direction: higher or lower is better.
    patience: how many evaluations in a row without an improvement end the round.
    min_delta: less than this is no improvement.
    restore_best: the version has the weights of the best evaluation, not those of the last step.
    """

    metric: str
    direction: Direction
    patience: Annotated[int, Allowed(maximum=100_000)] = 3
    min_delta: Annotated[float, Allowed(minimum=0.0)] = 0.0
    restore_best: bool = True


@dataclass(frozen=True)
class Prune:
    """The share of zeros in each kernel: it rises from 0 at `from_step` to `target` at `to_step` and stays.

    Steps are the model's, which go on from round to round.
    """

    target: Annotated[float, Allowed(minimum=1e-6, below=1.0)]
    from_step: Annotated[int, Allowed(minimum=0)] = 0
    to_step: int = 1000


@dataclass(frozen=True)
class Training:
    """Attributes:
    passes: how often a round goes over its own range, each time in another order.
    execution: one compiled graph; step by step in Python: slow, for a debugger or a print; or a graph with placeholders
        that a session of TensorFlow 1 runs.
    input: how batches get to the steps: the whole block is handed over and cut in the graph, each batch is handed over
        by itself, or the graph takes them from a tf.data pipeline.
    shards: parts of each batch, whose gradients are added in their order; as many processes can compute them.
    local_steps: steps that each shard takes by itself with its rows of this many batches, before the mean of all
        shards' variables is what they go on from; 1: their gradients are added in every step.
    compress: what each shard's gradients travel as.
    asynchronous: parameter servers hold the variables and workers do not wait for each other; None: one step after the
        other.
    on_not_finite: what a round does where a loss or a gradient is NaN or infinite, or a layer refuses an example:
        fail; skip_batch (all of its examples are unusable); set_aside (only the examples at fault are).
    frozen: patterns of variables that do not learn (is_meant); a layer all of whose variables are meant runs as it does
        in inference.
    jit_compile: XLA compiles the loss and the gradients of a batch; once for each number of rows.
    summaries: what is kept for TensorBoard.
    prune: zeros in kernels, from the smallest values on.
    quantize_aware: dense and convolutional layers compute with kernels and inputs that are rounded to 8 bits.
    balance: rows of rarer classes are taken again.
    bucket_by_sequence_length: batches are made of lists that are about as long, and filled up to their own longest.
    augment: by feature, layers that change its images before each step, and nowhere else.
    optimizers: pattern to optimizer: it teaches the variables that the pattern means; the first pattern counts.
    learning_rates: pattern to factor: those variables learn at the rate times the factor; the first pattern counts.
    max_steps: after which a round ends; the rest of its events is left out.
    evaluate_every_steps: how often the held-out examples are measured within a round, beside its end.
    evaluate_steps: how many of the first batches such a measure takes; None: of up to 50,000 examples.
    early_stopping: ends a round by these evaluations; what it has not come to is left out.
    save_every_steps: a resume point every this many steps, at the end of their block, beside those by time.
    report_every_steps: how often a round's progress and speed are reported, beside the end of each block.
    mixed_precision: what layers compute in; their weights stay float32, and float16 has its loss scaled.
    norms_every_steps: norms of gradients and updates per layer, in one step of this many.
    fixed_batch: every batch has batch_size rows; those that fill one up weigh nothing.
    check_gradients: how far gradients may be from finite differences, over their size; a round measures it before its
        first step and warns of what is above. None: it does not.
    debug: where a loss or gradient is not finite, the step is taken again and the operation named that made it so;
        without it only where the round fails because it is the model, with on_not_finite set_aside.
    hooks: classes of the definition's whose methods are called on the way.
    bottleneck: a layer of a module; nothing before it learns, and what it returns is computed once per block and kept.
    devices: pattern of layers to where they compute, as TensorFlow names it; the first pattern counts.
    missing_device: what a round does on a trainer that has no such device: fail, or compute on the CPU.
    """

    batch_size: Annotated[int, Allowed(maximum=1_000_000)] = 256
    passes: Annotated[int, Allowed(maximum=1000)] = 1
    execution: Annotated[str, EXECUTIONS] = "graph"
    input: Annotated[str, INPUTS] = "memory"
    optimizer: Optimizer = field(default_factory=Optimizer)
    on_not_finite: Annotated[str, ON_NOT_FINITE] = "set_aside"
    frozen: tuple[str, ...] = ()
    balance: Balance | None = None
    bucket_by_sequence_length: Bucketing | None = None
    augment: Augmentations = field(default_factory=dict)
    optimizers: Mapping[str, Optimizer] = field(default_factory=dict)
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    shards: Annotated[int, Allowed(maximum=64)] = 1
    local_steps: Annotated[int, Allowed(maximum=1000)] = 1
    compress: Literal["none", "bfloat16"] = "none"
    asynchronous: Asynchronous | None = None
    jit_compile: bool = False
    summaries: Summaries = field(default_factory=Summaries)
    prune: Prune | None = None
    quantize_aware: bool = False
    max_steps: int | None = None
    evaluate_every_steps: int | None = None
    evaluate_steps: int | None = None
    early_stopping: EarlyStopping | None = None
    save_every_steps: int | None = None
    report_every_steps: int | None = None
    mixed_precision: Annotated[str, PRECISIONS] = "float32"
    norms_every_steps: int | None = None
    fixed_batch: bool = False
    check_gradients: Annotated[float | None, Allowed(minimum=1e-4)] = None
    debug: bool = False
    hooks: tuple[HookClass, ...] = ()
    bottleneck: str = ""
    devices: Mapping[str, str] = field(default_factory=dict)
    missing_device: Literal["fail", "cpu"] = "fail"


def is_meant(path: str, pattern: str) -> bool:
    """Whether a pattern means the variable at a path: the path or a layer of it, * for any text."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")


def parse_training(section: object, *, frozen: tuple[str, ...] = ()) -> Training:
    """Args:
        frozen: more patterns, which another section names.

    Raises:
        InvalidInput: which key, what was expected.
    """
    fields = Fields("training", section)
    buckets = read_bucketing(fields.take("bucket_by_sequence_length", None))
    if buckets and fields.has("batch_size"):
        raise InvalidInput("training: bucket_by_sequence_length says its batch_sizes; leave batch_size out")
    training = fields.made(
        Training,
        optimizer=read_optimizer(fields.take("optimizer", {})),
        frozen=tuple(dict.fromkeys((*fields.texts("frozen", ()), *frozen))),
        balance=read_balance(fields.take("balance", None)),
        bucket_by_sequence_length=buckets,
        augment=read_augmentations(fields.take("augment", {})),
        optimizers=read_optimizers(fields.take("optimizers", {})),
        learning_rates=_factors(fields.take("learning_rates", {})),
        asynchronous=parse_asynchronous(fields.take("asynchronous", None)),
        summaries=parse_summaries(fields.take("summaries", {})),
        prune=optional(fields.take("prune", None), "prune", _prune),
        early_stopping=optional(fields.take("early_stopping", None), "early_stopping", _early_stopping),
        hooks=parse_hooks(fields.take("hooks", [])),
        bottleneck=fields.optional_text("bottleneck") or "",
        devices=_devices(fields.take("devices", {})),
    )
    fields.finish()
    _check_together(training)
    return training


def _devices(section: object) -> dict[str, str]:
    fields = Fields("devices", section)
    found = {str(pattern): fields.text(str(pattern)) for pattern in (section if isinstance(section, Mapping) else ())}
    fields.finish()
    if wrong := [device for device in found.values() if not _DEVICE.fullmatch(device)]:
        raise InvalidInput(f"devices: {wrong[0]!r} is no device; TensorFlow names them CPU:0, GPU:0, GPU:1")
    return found


def _check_several(training: Training) -> None:
    """Of `optimizers`."""
    optimizers = [training.optimizer, *training.optimizers.values()]
    if training.optimizers and training.mixed_precision == "float16":
        raise InvalidInput("training: mixed_precision float16 scales the loss for one optimizer; leave optimizers out")
    if training.optimizers and any(optimizer.options.get("gradient_accumulation_steps") for optimizer in optimizers):
        raise InvalidInput("training: gradient_accumulation_steps is of one optimizer; leave optimizers out")
    if training.prune and any(optimizer.options.get("use_ema") for optimizer in optimizers):
        raise InvalidInput(
            "training: prune makes zeros in weights, and use_ema serves their averages; keep one of them"
        )


def _check_batches(training: Training) -> None:
    """Of `bucket_by_sequence_length` and `augment`."""
    given = {
        "bucket_by_sequence_length": training.bucket_by_sequence_length is not None,
        "augment": bool(training.augment),
    }
    beside = {
        "bottleneck": bool(training.bottleneck),
        "asynchronous": training.asynchronous is not None,
        "local_steps": training.local_steps > 1,
    }
    cut = {"fixed_batch": training.fixed_batch, "jit_compile": training.jit_compile, "shards": training.shards > 1}
    for key in (key for key, is_given in given.items() if is_given):
        others = beside | (cut if key == "bucket_by_sequence_length" else {})
        if other := next((name for name, is_given in others.items() if is_given), ""):
            raise InvalidInput(f"training: {key} does not go with {other}; keep one of them")


def _check_together(training: Training) -> None:
    _check_several(training)
    _check_batches(training)
    if training.devices and training.shards > 1:
        raise InvalidInput("training: devices places layers, and shards places parts of a batch; keep one of them")
    if training.quantize_aware and (other := _beside_8_bits(training)):
        raise InvalidInput(f"training: quantize_aware rounds what layers take in float32, not with {other}; keep one")
    if training.jit_compile and (training.shards > 1 or training.execution != "graph"):
        other = f"shards: {training.shards}" if training.shards > 1 else f"execution: {training.execution}"
        raise InvalidInput(f"training: jit_compile compiles a whole batch's step, not with {other}; keep one of them")
    if training.evaluate_steps and not training.evaluate_every_steps:
        raise InvalidInput("training: evaluate_steps is of evaluations on the way; say evaluate_every_steps too")
    if training.early_stopping and not training.evaluate_every_steps:
        raise InvalidInput("training: early_stopping looks at evaluations on the way; say evaluate_every_steps too")
    if training.fixed_batch and training.batch_size % training.shards:
        raise InvalidInput(
            f"training: fixed_batch cuts batch_size {training.batch_size} into {counted(training.shards, 'shard')} of "
            f"one size; make it a multiple of {training.shards}"
        )
    if training.compress != "none" and training.shards == 1:
        raise InvalidInput("training: compress is for gradients of shards, and there is a single shard; say shards: K")
    if training.check_gradients is not None and (training.quantize_aware or training.mixed_precision != "float32"):
        raise InvalidInput("training: check_gradients moves weights by little, which 8 and 16 bits round away")
    _check_ways(training)
    _check_local_steps(training)
    _check_asynchronous(training)
    if training.mixed_precision == "float16" and training.optimizer.options.get("loss_scale_factor"):
        raise InvalidInput("training: mixed_precision float16 scales the loss by itself; leave loss_scale_factor out")


def _beside_8_bits(training: Training) -> str:
    """What does not go with quantize_aware; empty where nothing is asked for."""
    given = {
        "mixed_precision": training.mixed_precision != "float32",
        "bottleneck": bool(training.bottleneck),
        "shards": training.shards > 1,
        "asynchronous": training.asynchronous is not None,
    }
    return next((name for name, is_given in given.items() if is_given), "")


def _check_ways(training: Training) -> None:
    """Of `execution`, `input`, `jit_compile` and `balance`."""
    ends = {"max_steps": training.max_steps, "early_stopping": training.early_stopping}
    if training.balance and (end := next((key for key, is_given in ends.items() if is_given), "")):
        raise InvalidInput(f"training: balance takes rows of a block again, and {end} ends within it; keep one of them")
    if training.summaries.compiled and not training.jit_compile:
        raise InvalidInput("training: summaries: compiled is of what XLA compiles; say jit_compile: true")
    whole = f"input: {training.input}" if training.input != "memory" else f"execution: {training.execution}"
    if training.shards > 1 and whole in ("input: feed", "input: stream", "execution: session"):
        raise InvalidInput(f"training: {whole} takes a batch in one piece, not with shards; keep one of them")
    if training.execution == "session" and training.input == "stream":
        raise InvalidInput("training: a session feeds placeholders, not input: stream; say input: feed")


def _check_local_steps(training: Training) -> None:
    if training.local_steps == 1:
        return
    if training.shards == 1:
        raise InvalidInput(
            "training: local_steps are those of shards, and there is a single shard; say shards: K with K of 2 at least"
        )
    together = {
        "compress": training.compress != "none",
        "prune": training.prune is not None,
        "norms_every_steps": training.norms_every_steps is not None,
        "mixed_precision: float16": training.mixed_precision == "float16",
    }
    for key, is_given in together.items():
        if is_given:
            raise InvalidInput(f"training: {key} belongs to steps that all shards take together; not with local_steps")


def _check_asynchronous(training: Training) -> None:
    if training.asynchronous is None:
        return
    options = training.optimizer.options
    together = {
        "shards": training.shards > 1,
        "fixed_batch": training.fixed_batch,
        "prune": training.prune is not None,
        "bottleneck": bool(training.bottleneck),
        "devices": bool(training.devices),
        "norms_every_steps": training.norms_every_steps is not None,
        f"execution: {training.execution}": training.execution != "graph",
        f"input: {training.input}": training.input != "memory",
        "check_gradients": training.check_gradients is not None,
        "debug": training.debug,
        "optimizers": bool(training.optimizers),
        "mixed_precision: float16": training.mixed_precision == "float16",
        "optimizer gradient_accumulation_steps": bool(options.get("gradient_accumulation_steps")),
    }
    for key, is_given in together.items():
        if is_given:
            raise InvalidInput(f"training: {key} belongs to steps that follow each other; not with asynchronous")
    clips_all = training.optimizer.clip_norm is not None or options.get("global_clipnorm")
    if clips_all and training.asynchronous.servers > 1:
        raise InvalidInput(
            "training: clip_norm needs the gradients of all variables, and each of several servers has some; "
            "say servers: 1, or clipnorm, which looks at each by itself"
        )


def _early_stopping(fields: Fields) -> EarlyStopping:
    metric = fields.text("metric")
    default = direction_of(metric)
    if not fields.has("direction") and default is None:
        raise InvalidInput(f"early_stopping: direction must say whether a higher or a lower {metric} is better")
    direction = fields.choice("direction", ("higher", "lower"), default or "higher")
    return fields.made(EarlyStopping, metric=metric, direction=direction)


def _prune(fields: Fields) -> Prune:
    prune = fields.made(Prune)
    if prune.to_step <= prune.from_step:
        raise InvalidInput(f"prune: to_step {prune.to_step} must be after from_step {prune.from_step}")
    return prune


def _factors(section: object) -> dict[str, float]:
    if not isinstance(section, Mapping) or not all(isinstance(pattern, str) for pattern in section):
        raise InvalidInput(f"training: learning_rates must be a mapping of pattern to factor, got {section!r}")
    fields = Fields("learning_rates", section)
    factors = {pattern: fields.number(pattern, minimum=0.0) for pattern in section}
    if idle := [pattern for pattern, factor in factors.items() if not factor]:
        raise InvalidInput(f"learning_rates: factor 0 for {', '.join(idle)}; name it under training: frozen instead")
    return factors
