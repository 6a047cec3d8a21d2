"""The `serving:` section of model.yaml: what a model asks of its servers. All keys are optional.

    serving:
      engine: auto                # or tensorflow, onnxruntime, litert
      slo_ms: 20                  # 99 % of the requests should stay below; the batch size follows
      batching: {max_batch_size: 64, batch_timeout_micros: 0, max_enqueued_batches: 10, num_batch_threads: 1,
                 allowed_batch_sizes: [8, 64], max_execution_batch_size: null, enable_large_batch_splitting: null,
                 pad_variable_length_inputs: false, is_enabled: true}

It says nothing about training: no digest of a round's configuration holds it. The trainer writes it beside the export,
as JSON under OPTIONS_PATH, with the keys that were given and no others; a replica's own defaults fill in the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

from common.definition.fields import Fields
from common.errors import InvalidInput

OPTIONS_PATH = "assets.extra/headrace_serving.json"
"""Below the SavedModel."""
EngineName = Literal["auto", "tensorflow", "onnxruntime", "litert"]
ENGINES: tuple[str, ...] = get_args(EngineName)
_COUNTS = {
    "max_batch_size": 1, "max_execution_batch_size": 1, "max_enqueued_batches": 1, "num_batch_threads": 1,
    "batch_timeout_micros": 0,
}  # fmt: skip
"""Integers of `batching`, with the smallest that makes sense."""
_FLAGS = ("enable_large_batch_splitting", "pad_variable_length_inputs", "is_enabled")
MOST_BATCH_THREADS = 64


@dataclass(frozen=True)
class ServingSpec:
    """What the section says; None and missing keys leave it to the replica."""

    engine: str | None = None
    slo_ms: float | None = None
    batching: Mapping[str, Any] = field(default_factory=dict)

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready, with the given keys only; empty without any."""
        mapping = {"engine": self.engine, "slo_ms": self.slo_ms, "batching": dict(self.batching) or None}
        return {key: value for key, value in mapping.items() if value is not None}


def parse_serving(section: object) -> ServingSpec:
    """Checks the section, of model.yaml or of the JSON beside an export. Raises InvalidInput: an unknown key, or which
    key is wrong and what was expected."""
    fields = Fields("serving", section)
    engine = fields.choice("engine", ENGINES) if fields.has("engine") else None
    slo_ms = fields.optional_number("slo_ms", None)
    if slo_ms is not None and slo_ms <= 0:
        raise InvalidInput(f"serving: slo_ms must be more than 0 milliseconds, got {slo_ms:g}")
    batching = _batching(fields.take("batching", {}))
    fields.finish()
    return ServingSpec(engine, slo_ms, batching)


def _batching(section: object) -> dict[str, Any]:
    fields = Fields("serving: batching", section)
    options: dict[str, Any] = {
        key: fields.integer(key, minimum=minimum) for key, minimum in _COUNTS.items() if fields.has(key)
    }
    options |= {key: fields.flag(key) for key in _FLAGS if fields.has(key)}
    if fields.has("allowed_batch_sizes"):
        options["allowed_batch_sizes"] = list(fields.integers("allowed_batch_sizes"))
    for key in (*_COUNTS, *_FLAGS, "allowed_batch_sizes"):
        fields.take(key, None)  # null says the same as leaving the key out
    fields.finish()
    for key in ("allowed_batch_sizes", "max_execution_batch_size"):
        if key in options and "max_batch_size" not in options:
            raise InvalidInput(f"serving: batching: {key} needs max_batch_size beside it, the replica's may differ")
    check_batching(
        max_batch_size=options.get("max_batch_size", 1),
        max_execution_batch_size=options.get("max_execution_batch_size"),
        allowed_batch_sizes=options.get("allowed_batch_sizes", ()),
        enable_large_batch_splitting=options.get("enable_large_batch_splitting", True),
        num_batch_threads=options.get("num_batch_threads", 1),
    )
    return options


def check_batching(
    *,
    max_batch_size: int,
    max_execution_batch_size: int | None,
    allowed_batch_sizes: Sequence[int],
    enable_large_batch_splitting: bool,
    num_batch_threads: int,
) -> None:
    """The rules between batching parameters, in TensorFlow Serving's words where it has some. Raises InvalidInput: one
    sentence that names the field."""
    batch = max_batch_size
    if max_execution_batch_size is not None:
        if not enable_large_batch_splitting:
            raise InvalidInput("max_execution_batch_size needs enable_large_batch_splitting, which is false")
        if max_execution_batch_size > max_batch_size:
            raise InvalidInput(
                f"max_execution_batch_size {max_execution_batch_size} must not be above max_batch_size {max_batch_size}"
            )
        batch = max_execution_batch_size
    if num_batch_threads > MOST_BATCH_THREADS:
        raise InvalidInput(f"num_batch_threads must be at most {MOST_BATCH_THREADS}, got {num_batch_threads}")
    if not allowed_batch_sizes:
        return
    sizes = list(allowed_batch_sizes)
    if sizes[0] < 1 or any(later <= earlier for earlier, later in pairwise(sizes)):
        raise InvalidInput(f"allowed_batch_sizes entries must be monotonically increasing, and positive; got {sizes}")
    if sizes[-1] != batch:
        name = "max_batch_size" if max_execution_batch_size is None else "max_execution_batch_size"
        raise InvalidInput(
            f"Last entry in allowed_batch_sizes must match {name}; last entry was {sizes[-1]}; expected {batch}"
        )
