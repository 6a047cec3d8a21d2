"""A trainer's documents about a version or a round, whose forms the gate, the pages and the metrics rely on.

The forms are in docs/guide/evaluate.md. Other keys are kept as they come: nothing reads them but people.
"""

from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic takes typing's from Python 3.12 on

from common.errors import InvalidInput
from common.registry.catalog import JsonMap

_MAX_FAULTS = 3
_Number = int | float
_Values = dict[str, dict[str, _Number | None]]
"""By side, by metric."""
_Interval = Annotated[list[_Number], Field(min_length=2, max_length=2)]
_Intervals = dict[str, dict[str, _Interval]]
"""By metric, of the candidate and of the difference: the lowest and the highest value."""
_Points = list[Annotated[list[_Number | None], Field(min_length=2)]]
_Rows = list[list[Any]]


class _Slice(TypedDict):
    by: list[str]
    where: dict[str, str] | None
    count: int
    metrics: _Values
    value_count: NotRequired[int]
    intervals: NotRequired[_Intervals]
    undefined: NotRequired[dict[str, str]]


class _Confusion(TypedDict):
    classes: list[Any]
    counts: _Rows


class _Curves(TypedDict, total=False):
    roc: _Points
    pr: _Points
    calibration: _Points
    predicted: _Points
    scores: _Points
    classes: _Rows
    labels: _Rows
    error_percentiles: _Rows
    residuals: _Rows
    levels: _Rows
    recall_at: _Rows
    confusion: _Confusion


class _Duplicates(TypedDict, total=False):
    same_features: int
    same_event: int


class _Range(TypedDict):
    partition: int
    from_offset: int
    to_offset: int


class _Window(TypedDict):
    examples: int
    earlier: int
    unusable: int
    ranges: list[_Range]


class _Evaluation(TypedDict, total=False):
    slices: list[_Slice]
    intervals: _Intervals
    curves: dict[str, dict[str, _Curves]]
    by_step: list[dict[str, Any]]
    duplicates: _Duplicates
    undefined: dict[str, str]
    window: _Window


class _LeftOut(TypedDict):
    examples: int
    reason: str


class _Training(TypedDict, total=False):
    left_out: _LeftOut


class _Latency(TypedDict):
    p99_ms: _Number
    calls: int


class _Program(TypedDict, total=False):
    latency: _Latency


class _Skew(TypedDict):
    version: int
    requests: int
    largest: _Number
    output: str


class _Labels(TypedDict):
    in_time: int
    own: NotRequired[int]
    """A trainer of another release leaves it out."""
    never: int
    late: int
    again: int


class _Environment(TypedDict, total=False):
    labels: _Labels
    program: _Program
    skew: _Skew
    warnings: dict[str, str]
    training: _Training


class _Unusable(TypedDict, total=False):
    reasons: dict[str, int]
    samples: list[dict[str, Any]]


class _Progress(TypedDict, total=False):
    stage: str
    began_at: _Number
    deaths: int
    examples_done: int
    pass_number: int
    passes: int
    examples_per_second: _Number
    activity: str
    cpu_seconds: _Number
    starved_seconds: _Number
    wall_seconds: _Number
    silent_seconds: _Number


class _Event(TypedDict):
    at: str | None
    event: dict[str, Any]


class _NotFinite(TypedDict, total=False):
    step: int
    events: list[_Event]


class _Failure(TypedDict, total=False):
    message: str
    stage: str
    place: str
    advice: str
    log: list[str]
    not_finite: _NotFinite


_FORMS: dict[str, TypeAdapter[Any]] = {
    "evaluation": TypeAdapter(_Evaluation),
    "environment": TypeAdapter(_Environment),
    "unusable": TypeAdapter(_Unusable),
    "timings": TypeAdapter(dict[str, _Number]),
    "progress": TypeAdapter(_Progress),
    "failure": TypeAdapter(_Failure),
}


def check_documents(**documents: JsonMap) -> None:
    """Raises InvalidInput: the document under one of the names above has another form than its readers know."""
    for name, document in documents.items():
        try:
            _FORMS[name].validate_python(document, strict=True)
        except ValidationError as error:
            faults = [".".join(map(str, (name, *fault["loc"]))) + f": {fault['msg']}" for fault in error.errors()]
            raise InvalidInput(f"{'; '.join(faults[:_MAX_FAULTS])[:1000]}") from error
    for slice_ in documents.get("evaluation", {}).get("slices", ()):
        if not slice_["where"] and "value_count" not in slice_:
            raise InvalidInput("evaluation: a slice of all other values (where: null) has a value_count")
    for drawn in _drawn(documents.get("evaluation", {})):
        confusion = drawn.get("confusion", {"classes": (), "counts": ()})
        if len(confusion["classes"]) != len(confusion["counts"]):
            raise InvalidInput("evaluation: a confusion matrix has a row of counts for each of its classes")


def _drawn(evaluation: JsonMap) -> list[dict[str, Any]]:
    return [drawn for heads in evaluation.get("curves", {}).values() for drawn in heads.values()]
