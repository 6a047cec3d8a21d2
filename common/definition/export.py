"""The section `export` of model.yaml: what a version carries besides its model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from common.definition.fields import Allowed, Fields
from common.errors import InvalidInput
from common.feature_keys import check_name
from common.suggestions import did_you_mean

MAX_WARMUP_REQUESTS = 16
FORMATS = ("tflite", "tflite_float16", "tflite_dynamic", "tflite_int8", "frozen", "onnx")
"""LiteRT: float32, float16, 8-bit weights, 8-bit weights and activations; one graph of constants; ONNX."""
INT8 = "tflite_int8"
QUANTISED = ("tflite_float16", "tflite_dynamic", INT8)
"""Their answers differ from the model's on purpose."""


@dataclass(frozen=True)
class Export:
    """What a version carries besides its model.

    Attributes:
        warmup_requests: how many requests at most, from 0 to MAX_WARMUP_REQUESTS, made of a few real examples of the
            round; a replica replays them before a version is available. They are readable by all that can read the
            version: 0 where examples must not leave the log.
        formats: of FORMATS, each made of `serving_default` in every round, below exports/.
        on_unsupported: whether a format that cannot be made, or answers otherwise than the model, fails the round.
        max_difference: largest difference from the model's answers that a format of QUANTISED may have; None: any.
        max_difference_share: the same as a share of their span, greatest less least, over the events that were asked.
        int8_calibration: from what tflite_int8 takes its ranges: events, held out or learned, or made-up values.
        checkpoint_shard_bytes: weights larger than this are stored in several files with an index.
        subsets: by name, patterns of the model's variables that each version has in a separate file.
        assets: files of the definition that each version carries as they are.
        context: raw features that the rows of a request may share; a signature takes one row of them (inputs.py).
    """

    warmup_requests: Annotated[int, Allowed(minimum=0, maximum=MAX_WARMUP_REQUESTS)] = MAX_WARMUP_REQUESTS
    formats: Annotated[tuple[str, ...], Allowed(may_be_empty=True)] = ()
    on_unsupported: Literal["fail", "warn"] = "fail"
    max_difference: Annotated[float | None, Allowed(minimum=0.0)] = None
    max_difference_share: Annotated[float | None, Allowed(minimum=0.0)] = 0.1
    checkpoint_shard_bytes: Annotated[int, Allowed(minimum=1024)] = 268_435_456
    subsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    context: Annotated[tuple[str, ...], Allowed(may_be_empty=True)] = ()
    assets: Annotated[tuple[str, ...], Allowed(may_be_empty=True)] = ()
    int8_calibration: Literal["events", "made_up"] = "events"


def parse_export(section: object) -> Export:
    """Raises InvalidInput: which key, and what was expected."""
    fields = Fields("export", section)
    export = fields.made(Export, subsets=_subsets(fields.take("subsets", {})))
    fields.finish()
    for name in export.formats:
        if name not in FORMATS:
            raise InvalidInput(
                f"export: there is no format {name!r}, expected some of {', '.join(FORMATS)}"
                f"{did_you_mean([name], FORMATS)}"
            )
    if export.int8_calibration == "made_up" and INT8 not in export.formats:
        raise InvalidInput(f"export: int8_calibration is of the format {INT8}, which is not among the formats")
    return export


def _subsets(section: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(section, Mapping):
        raise InvalidInput(f"export: subsets must be a mapping of names to lists of patterns, got {section!r}")
    fields = Fields("export: subsets", {check_name("subset", name): patterns for name, patterns in section.items()})
    found = {name: fields.texts(name) for name in section}
    if empty := [name for name, patterns in found.items() if not patterns]:
        raise InvalidInput(f"export: subsets: {empty[0]} lists no pattern")
    return found
