"""How a model is run: the options per model, from any source. No TensorFlow, no file formats.

Settings and flags give the defaults of a replica; a batching parameters file, the model's configuration and the
version itself may override them for a model. Readers of those files end in a `ModelOptions`; the runner gets nothing
else.
"""

from dataclasses import dataclass, field
from typing import Literal

from common.definition.serving import EngineName, check_batching
from common.errors import InvalidInput
from common.suggestions import did_you_mean

REWRITERS = (
    "arithmetic_optimization", "common_subgraph_elimination", "constant_folding", "dependency_optimization",
    "function_optimization", "layout_optimizer", "loop_optimization", "remapping", "shape_optimization",
)  # fmt: skip
"""Switches of TensorFlow's RewriterConfig, by its names."""

DeviceName = Literal["cpu", "gpu"]
GPU: DeviceName = "gpu"


@dataclass(frozen=True)
class BatchingOptions:
    """TensorFlow Serving's batching parameters, with its names; sizes count examples. docs/guide/batching.md describes
    each. An instance raises InvalidInput, with a sentence that names the field, for values that do not go
    together."""

    max_batch_size: int = 64
    """Examples in one call of the model, at most."""
    batch_timeout_micros: int = 0
    """How long a batch that is not full waits for more; 0 takes the waiting requests."""
    max_enqueued_batches: int | None = None
    """Batches that may wait in a queue of this model; past it, requests are refused. None: the queue_limit alone."""
    num_batch_threads: int = 1
    """Batches of a model that may run at the same time."""
    allowed_batch_sizes: tuple[int, ...] = ()
    """Ascending, the last equal to the largest batch; a batch is padded to the next of them. Empty: any size."""
    enable_large_batch_splitting: bool | None = None
    """Whether a request that does not fit the open batch fills it with its first rows, so that a request of more than
    max_batch_size examples is run in parts; False: each stays in a batch, and a larger request is refused. None, where
    it is unset: a larger request is a call of its own, or of 16,384 examples each, unless named sizes or an
    objective would not be kept."""
    max_execution_batch_size: int | None = None
    """The largest batch when requests are split; larger requests than max_batch_size are then refused. None: requests
    of any size, in parts of max_batch_size."""
    pad_variable_length_inputs: bool = False
    """Whether requests whose inputs differ in the sizes after the first share a batch, padded to the longest."""
    is_enabled: bool = True
    """Whether requests share calls at all."""
    slo_ms: float | None = None
    """Latency that 99 % of the requests should stay below; the batch size follows it. None: no objective."""

    def __post_init__(self) -> None:
        for name, smallest in (("max_batch_size", 1), ("batch_timeout_micros", 0), ("num_batch_threads", 1)):
            if getattr(self, name) < smallest:
                raise InvalidInput(f"{name} must be at least {smallest}, got {getattr(self, name)}")
        for name in ("max_enqueued_batches", "max_execution_batch_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.slo_ms is not None and not 0 < self.slo_ms < float("inf"):
            raise InvalidInput(f"slo_ms must be more than 0 milliseconds, got {self.slo_ms:g}")
        check_batching(
            max_batch_size=self.max_batch_size,
            max_execution_batch_size=self.max_execution_batch_size,
            allowed_batch_sizes=self.allowed_batch_sizes,
            enable_large_batch_splitting=self.enable_large_batch_splitting is not False,
            num_batch_threads=self.num_batch_threads,
        )

    @property
    def largest_batch(self) -> int:
        """Examples in one call of the model, at most."""
        return self.max_execution_batch_size or self.max_batch_size

    @property
    def splits_large_requests(self) -> bool:
        """Whether a request of more examples than a batch has is run in parts."""
        if self.enable_large_batch_splitting is None:
            return bool(self.max_execution_batch_size or self.allowed_batch_sizes or self.slo_ms)
        return self.enable_large_batch_splitting


@dataclass(frozen=True)
class EngineOptions:
    """The engine of a version's signatures."""

    engine: EngineName = "tensorflow"
    """`auto` converts at load, compares with the SavedModel, measures, and takes the fastest that agrees."""
    intra_op_threads: int = 1
    inter_op_threads: int = 1
    device: DeviceName = "cpu"
    """`gpu`: TensorFlow computes all that has a kernel there on the first GPU, the rest on the CPU."""
    is_xla: bool = False
    """Whether TensorFlow compiles the signatures with XLA."""
    rewriters_off: tuple[str, ...] = ()
    """Of REWRITERS, those that TensorFlow's Grappler leaves out."""
    saved_model_tags: tuple[str, ...] = ("serve",)
    """The tags of the graph that is loaded, where a SavedModel has several."""
    relative_tolerance: float = 1e-4
    absolute_tolerance: float = 1e-5
    """How far another engine's outputs may be from the SavedModel's."""
    conversion_timeout_seconds: float = 60.0
    """A conversion that takes longer is ended, and the version runs on TensorFlow."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.rewriters_off if name not in REWRITERS]
        if unknown:
            raise InvalidInput(
                f"rewriters_off names {unknown[0]!r}{did_you_mean(unknown, REWRITERS)}; it is of {', '.join(REWRITERS)}"
            )


@dataclass(frozen=True)
class WarmUpOptions:
    """The runs of a version before it is available."""

    is_enabled: bool = True
    iterations: int = 1
    """How often each of the requests that came with the version is run."""


@dataclass(frozen=True)
class ModelOptions:
    """Everything that may differ from model to model in how it is run."""

    platform: str = "tensorflow"
    """Name of the plugin that loads its versions (TensorFlow Serving's model_platform)."""
    batching: BatchingOptions = field(default_factory=BatchingOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    warm_up: WarmUpOptions = field(default_factory=WarmUpOptions)
