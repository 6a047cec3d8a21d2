"""How a version is measured, as its definition says it (section `evaluation`).

holdout_fraction: 0.1
window_examples: 2000                 # judged on at least as many, the rounds before held out; 0: on this round's alone
metrics: [auc, recall, {name: precision, threshold: 0.3}]        # common/definition/metrics.py
slices:
  - carrier
  - {by: [carrier, month], most: 50}
  - {by: distance, boundaries: [500, 1000]}
calibration_fraction: 0.5             # of what is held out: where a head has calibration
group_by: session                     # examples of one session compete: what ndcg and mrr ask for
split_by: user                        # a user's events are all held out, or none of them
keep_equal_together: true             # the same of events whose features are equal
examples: judges.ndjson               # a file of the definition: they judge, and nothing of the stream is held out
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from common.counted import counted
from common.definition.fields import Allowed, Fields
from common.definition.metrics import Metric, read_metrics
from common.errors import InvalidInput
from common.schema import Schema

_MAX_SLICES, _MAX_FEATURES = 16, 3
DEFAULT_MOST, MAX_MOST = 20, 200
DEFAULT_CALIBRATION_FRACTION = 0.5
MAX_WINDOW = 100_000
_OF_THE_STREAM = ("holdout_fraction", "window_examples", "split_by", "keep_equal_together", "calibration_fraction")


@dataclass(frozen=True)
class SliceBy:
    """The held-out examples cut by what a few features say.

    Attributes:
        boundaries: rising; of a number, which is then cut between them. Each boundary begins the part above it.
        most: the count of frequent values with separate metrics; all other values share theirs.
    """

    by: tuple[str, ...]
    boundaries: tuple[float, ...] = ()
    most: int = DEFAULT_MOST

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of what the boundaries cut: "< 500", "500 to 1000", ">= 1000"."""
        texts = [f"{boundary:.12g}" for boundary in self.boundaries]
        between = [f"{low} to {high}" for low, high in itertools.pairwise(texts)]
        return (f"< {texts[0]}", *between, f">= {texts[-1]}") if texts else ()


@dataclass(frozen=True)
class Evaluation:
    """An example is held out by its position in the log, unless split_by or keep_equal_together says what stays whole.

    Attributes:
        warn_unknown_share: the version warns of a feature with more than this share of values without a separate id.
        max_unusable: a version of whose examples more than this share could not be used is rejected.
        metrics: by head.
        group_by: a feature; examples with an equal value of it belong together, and are resampled together.
    """

    holdout_fraction: Annotated[float, Allowed(minimum=0.0, below=1.0)] = 0.1
    warn_unknown_share: Annotated[float, Allowed(minimum=0.0)] = 0.1
    max_unusable: Annotated[float, Allowed(minimum=0.0)] = 0.01
    metrics: Mapping[str, tuple[Metric, ...]] = field(default_factory=dict)
    slices: tuple[SliceBy, ...] = ()
    group_by: str | None = None
    calibration_fraction: float = 0.0
    """Share of the held-out examples by which heads are calibrated; no gate judges by them."""
    split_by: str = ""
    """A feature by whose value events are held out."""
    keep_equal_together: bool = False
    """Whether events with equal features are on one side."""
    window_examples: Annotated[int, Allowed(minimum=0, maximum=MAX_WINDOW)] = 2000
    """A round that holds out fewer is judged on the newest that its ancestors held out as well, up to this number."""
    examples: tuple[str, ...] = ()
    """JSON, of a file of the definition: all rounds are judged on these events, and hold nothing out."""

    @property
    def has_judges(self) -> bool:
        """Whether there are examples that a round does not learn from and that judge it."""
        return bool(self.holdout_fraction or self.examples)

    def to_configuration(self) -> dict[str, float | str]:
        """What the plan of a round says of it: the choice of examples, and no metric. The trainer's splitting.py says
        what `split` may be; plans of before November 2026 have none."""
        split = "group" if self.split_by else "equal" if self.keep_equal_together else "position"
        return {
            "holdout_fraction": self.holdout_fraction,
            "warn_unknown_share": self.warn_unknown_share,
            "max_unusable": self.max_unusable,
            **({"calibration_fraction": self.calibration_fraction} if self.calibration_fraction else {}),
            "split": split,
            **({"split_by": self.split_by} if self.split_by else {}),
        }

    def of_ranking(self, group: str) -> "Evaluation":
        """Raises InvalidInput where the split would tear the groups that a ranking orders."""
        if self.split_by not in ("", group) or self.keep_equal_together:
            raise InvalidInput(
                f"evaluation: a ranking's groups stay whole, so events are held out by {group}; leave out "
                f"{'keep_equal_together' if self.keep_equal_together else 'split_by'}"
            )
        return replace(self, group_by=self.group_by or group, split_by=group)

    def check_schema(self, schema: Schema, *, place: str) -> None:
        """Raises InvalidInput when a slice is by what the stream does not have, or cannot be cut."""
        for slice_by in self.slices:
            for name in slice_by.by:
                _check_feature(slice_by, name, schema, place)
        if self.group_by is not None:
            _check_group("groups", self.group_by, schema, place)
        if self.split_by:
            _check_group("splits", self.split_by, schema, place)
        try:
            self.encoded(schema)
        except InvalidInput as error:
            raise InvalidInput(f"{place}: {error.message}") from error

    def encoded(self, schema: Schema) -> list[bytes]:
        """The examples as tf.train.Examples. Raises InvalidInput: one does not fit the schema; which."""
        from common.examples.codec import ExampleCodec  # protobuf, which the client does without

        codec, found = ExampleCodec(schema), list[bytes]()
        for number, line in enumerate(self.examples, 1):
            try:
                found.append(codec.encode(json.loads(line)))
            except (InvalidInput, ValueError, RecursionError) as error:
                fault = error.message if isinstance(error, InvalidInput) else f"it is not JSON: {error}"
                raise InvalidInput(f"evaluation: examples: event {number}: {fault}") from error
        return found


def parse_evaluation(section: object, heads: Mapping[str, str], files: Mapping[str, bytes]) -> Evaluation:
    """Args: heads: their names to their tasks; files: of the definition. Raises InvalidInput: which key, what was
    expected."""
    fields = Fields("evaluation", section)
    examples = _examples(fields.text("examples"), files) if fields.has("examples") else ()
    if examples and (idle := [key for key in _OF_THE_STREAM if fields.has(key)]):
        raise InvalidInput(f"evaluation: examples judge, and nothing of the stream is held out: leave out {idle[0]}")
    has_window = fields.has("window_examples")
    found = fields.made(
        Evaluation,
        metrics=read_metrics(fields.take("metrics", None), heads, place="evaluation: metrics"),
        slices=_slices(fields.take("slices", [])),
        calibration_fraction=fields.optional_number("calibration_fraction", None, minimum=0.01) or 0.0,
        split_by=fields.optional_text("split_by") or "",
        examples=examples,
    )
    fields.finish()
    if found.max_unusable > 1.0:
        raise InvalidInput(f"evaluation: max_unusable is a share and must be 0 to 1, got {found.max_unusable}")
    if examples:
        return replace(found, holdout_fraction=0.0, window_examples=0)
    if found.split_by and found.keep_equal_together:
        raise InvalidInput(
            f"evaluation: split_by keeps the events of one {found.split_by} together, keep_equal_together those with "
            "equal features; give one of them"
        )
    if (found.split_by or found.keep_equal_together) and not found.holdout_fraction:
        raise InvalidInput("evaluation: holdout_fraction is 0, so there is nothing to split by")
    if has_window and found.window_examples and not found.holdout_fraction:
        raise InvalidInput("evaluation: holdout_fraction is 0, so window_examples has nothing to take; leave it out")
    if found.calibration_fraction >= 1.0:
        raise InvalidInput(f"evaluation: calibration_fraction must be below 1, got {found.calibration_fraction}")
    return found


def _examples(path: str, files: Mapping[str, bytes]) -> tuple[str, ...]:
    if path not in files:
        raise InvalidInput(f"evaluation: examples {path!r} is no file of the definition: {', '.join(sorted(files))}")
    try:
        lines = files[path].decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"evaluation: examples: {path} is not UTF-8: {error.reason}") from error
    if not (found := tuple(line for line in lines if line.strip())):
        raise InvalidInput(f"evaluation: examples: {path} holds no event")
    return found


def _slices(entries: object) -> tuple[SliceBy, ...]:
    if not isinstance(entries, list | tuple):
        raise InvalidInput(f"evaluation: slices must be a list, got {entries!r}")
    found = tuple(_slice(entry) for entry in entries)
    if len(found) > _MAX_SLICES:
        raise InvalidInput(f"evaluation: slices has {counted(len(found), 'entry')}, at most {_MAX_SLICES} are taken")
    names = [slice_by.by for slice_by in found]
    repeated = next((by for by in names if names.count(by) > 1), None)
    if repeated:
        raise InvalidInput(f"evaluation: slices names {', '.join(repeated)} twice")
    return found


def _slice(entry: object) -> SliceBy:
    if isinstance(entry, str) and entry:
        return SliceBy((entry,))
    if not isinstance(entry, Mapping):
        raise InvalidInput(f"evaluation: a slice must be the name of a feature, or a mapping with by, got {entry!r}")
    fields = Fields("evaluation: slices", entry)
    by = fields.take("by")
    names = Fields("evaluation: slices", {"by": [by] if isinstance(by, str) and by else by}).texts("by")
    if not 1 <= len(names) <= _MAX_FEATURES:
        raise InvalidInput(f"evaluation: slices: by must name 1 to {_MAX_FEATURES} features, got {list(names)}")
    boundaries = fields.numbers("boundaries") if fields.has("boundaries") else ()
    most = fields.integer("most", DEFAULT_MOST, maximum=MAX_MOST)
    fields.finish()
    if any(low >= high for low, high in itertools.pairwise(boundaries)):
        raise InvalidInput(f"evaluation: slices: boundaries must rise, got {list(boundaries)}")
    if boundaries and len(names) > 1:
        raise InvalidInput(f"evaluation: slices: boundaries cut one feature, and by names {', '.join(names)}")
    return SliceBy(names, boundaries, most)


def _check_feature(slice_by: SliceBy, name: str, schema: Schema, place: str) -> None:
    feature = schema.own_feature(name, f"{place}: evaluation: slices")
    if not feature.is_scalar:
        raise InvalidInput(f"{place}: evaluation cannot slice by {name}: it holds a list of values and not one")
    if slice_by.boundaries and feature.dtype not in ("float32", "int64"):
        raise InvalidInput(f"{place}: evaluation slices by {name} with boundaries, and it is {feature.dtype}")
    if not slice_by.boundaries and feature.dtype not in ("string", "int64"):
        raise InvalidInput(
            f"{place}: evaluation slices by {name}, which is {feature.dtype} and not a few values; a number is cut by "
            f"boundaries, as in {{by: {name}, boundaries: [0, 1]}}"
        )


def _check_group(verb: str, name: str, schema: Schema, place: str) -> None:
    feature = schema.own_feature(name, f"{place}: evaluation {verb}")
    if not feature.is_scalar or feature.dtype not in ("string", "int64"):
        raise InvalidInput(f"{place}: evaluation {verb} by {name}, which is not one string or int64 value")
