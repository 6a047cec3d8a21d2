"""What each row of a model's variables means, so that a changed definition moves rows by meaning, not by position.

A variable of an estimator has one axis per dimension. An axis is a sequence of runs: consecutive rows of one meaning.
Rows of two definitions are the same when their run's label and their key are equal: the word of a vocabulary, the
interval of a bucket, the number of an identity, a bin of a hash with as many bins, a column of a source. A row that has
no equal in the parent starts new. `variables_of` says the meaning, `carried` is the rule, and nothing else decides.

Of a Keras module the trainer finds the meaning in the network (families/module_meaning.py), as far as it can be seen
there; the others of its variables are carried by path and shape.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from common.definition.features import (
    Bucketized,
    Categorical,
    Crossed,
    Embedding,
    FeatureSpec,
    Hashed,
    Identity,
    Indicator,
    Numeric,
    Quantiles,
    Text,
    Vocabulary,
)
from common.definition.heads import REGRESSORS, Head
from common.definition.labels import class_count, unit_count
from common.definition.model import Definition
from common.schema import Schema

_WIDTHS = frozenset({"units", "dimension", "embedding"})
"""Runs whose rows mean nothing alone: of a narrower one none is carried."""
SPARE = ("spare",)
"""Label of rows that mean nothing yet."""
MAX_PARAMETERS = 1_000_000_000
"""That a model may have where no setting says otherwise: 4 GB of float32, without the optimizer's."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Run:
    """`count` rows that belong to `label`; `keys` names each, None: they go by number."""

    label: tuple[str, ...]
    count: int
    keys: tuple[str, ...] | None = None


Axis = tuple[Run, ...]


@dataclass(frozen=True)
class Learned:
    """What rounds have fitted, by feature: words of vocabularies, boundaries of quantiles."""

    words: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    boundaries: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class VariableMeaning:
    """`is_kernel`: axis 0 is inputs, axis 1 units. A new input of a carried kernel starts at zero, so that what the
    network answers does not change before it learns."""

    axes: tuple[Axis, ...]
    is_kernel: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(sum(run.count for run in axis) for axis in self.axes)


def variables_of(definition: Definition, schema: Schema, learned: Learned | None = None) -> dict[str, VariableMeaning]:
    """By path, for an estimator's variables (families/estimators/network.py makes them); empty for a module.

    Args:
        learned: None where it is not known: learned words and fitted boundaries go by number then.
    """
    parameters = definition.estimator_parameters
    if parameters is None:
        return {}
    specs, variables = definition.features, dict[str, VariableMeaning]()
    if parameters.towers:
        for side, names in (("user", parameters.towers.user), ("item", parameters.towers.item)):
            sizes = (*parameters.hidden_units, parameters.towers.dimension)
            labels = [*(f"{side}_hidden_{index}" for index in range(len(sizes) - 1)), f"{side}_output"]
            _add_tables(variables, specs, names, schema, learned)
            inputs = _inputs(specs, names, schema, learned)
            for label, size in zip(labels[:-1], sizes[:-1], strict=True):
                inputs = _add_layer(variables, label, parameters.activation.label, size, inputs)
                variables |= _norm_of(label, inputs) if parameters.batch_norm else {}
            _add_layer(variables, labels[-1], "", sizes[-1], inputs)
            variables.pop(f"{side}_output/bias")
        return variables
    outputs = _outputs(definition, schema)
    for name in parameters.wide:
        variables[f"wide/{name}_weights"] = VariableMeaning((_rows(specs, name, schema, learned), outputs))
        if parameters.dimension:
            factors: Axis = (Run(("dimension",), parameters.dimension),)
            variables[f"factors/{name}_factors"] = VariableMeaning((_rows(specs, name, schema, learned), factors))
    _add_tables(variables, specs, parameters.deep, schema, learned)
    if parameters.recurrent:
        steps, whole = (_inputs(specs, names, schema, learned)
                        for names in (parameters.recurrent.sequence, parameters.recurrent.context))  # fmt: skip
        inputs = (*steps, *whole)
        for index, size in enumerate(parameters.hidden_units):
            inputs = _add_recurrent(variables, f"rnn_{index}", parameters.recurrent.cell, size, inputs)
        variables["deep/kernel"] = VariableMeaning((inputs, outputs), is_kernel=True)
    elif parameters.deep:
        inputs = _inputs(specs, parameters.deep, schema, learned)
        for index, size in enumerate(parameters.hidden_units):
            inputs = _add_layer(variables, f"hidden_{index}", parameters.activation.label, size, inputs)
            variables |= _norm_of(f"hidden_{index}", inputs) if parameters.batch_norm else {}
        variables["deep/kernel"] = VariableMeaning((inputs, outputs), is_kernel=True)
    name = output_layer(definition)
    variables[f"{name}/bias"] = VariableMeaning((outputs,))
    return variables


def section_of(
    definition: Definition, schema: Schema, learned: Learned | None = None
) -> tuple[dict[str, Axis], dict[str, Axis]]:
    """Of a module's features, by name: the columns of numeric features, and the rows of a table of the others' ids."""
    specs = definition.features
    columns = {name: _columns(specs, name, schema, learned) for name in specs if isinstance(specs[name], Numeric)}
    return columns, {name: _rows(specs, name, schema, learned) for name in specs if name not in columns}


def _add_tables(
    variables: dict[str, VariableMeaning],
    specs: Mapping[str, FeatureSpec],
    names: Sequence[str],
    schema: Schema,
    learned: Learned | None,
) -> None:
    for spec in (specs[name] for name in names):
        if isinstance(spec, Embedding):
            # A shared table has one meaning for all that share it (features.py checks that): the first feature's.
            rows, dimension = _rows(specs, spec.of, schema, learned), (Run(("dimension",), spec.dimension),)
            variables.setdefault(f"{spec.table}_table/table", VariableMeaning((rows, dimension)))


def _inputs(specs: Mapping[str, FeatureSpec], names: Sequence[str], schema: Schema, learned: Learned | None) -> Axis:
    """Of a network's first kernel."""
    return tuple(run for name in sorted(names) for run in _columns(specs, name, schema, learned))


def _add_layer(variables: dict[str, VariableMeaning], layer: str, activation: str, size: int, inputs: Axis) -> Axis:
    """A dense layer's kernel and bias; its units, which are the next layer's inputs."""
    units = (Run(("units", layer, activation), size),)
    variables[f"{layer}/kernel"] = VariableMeaning((inputs, units), is_kernel=True)
    variables[f"{layer}/bias"] = VariableMeaning((units,))
    return units


def _add_recurrent(variables: dict[str, VariableMeaning], layer: str, cell: str, size: int, inputs: Axis) -> Axis:
    """A recurrent layer's variables, whose columns are those of its gates, side by side: they go over as a whole."""
    gates, biases = {"lstm": (4, 1), "gru": (3, 2), "simple_rnn": (1, 1)}[cell]
    units: Axis = (Run(("units", layer, cell), size),)
    columns: Axis = (Run(("gates", layer, cell, str(size)), gates * size),)
    variables[f"{layer}/{cell}_cell/kernel"] = VariableMeaning((inputs, columns), is_kernel=True)
    variables[f"{layer}/{cell}_cell/recurrent_kernel"] = VariableMeaning((units, columns))
    bias: tuple[Axis, ...] = (
        (columns,) if biases == 1 else ((Run(("gates", layer, "before and after"), biases),), columns)
    )
    variables[f"{layer}/{cell}_cell/bias"] = VariableMeaning(bias)
    return units


def _norm_of(layer: str, units: Axis) -> dict[str, VariableMeaning]:
    """Of the batch normalisation behind a hidden layer: a row for each of its units."""
    name = layer.replace("hidden", "batch_norm")
    parts = ("gamma", "beta", "moving_mean", "moving_variance")
    return {f"{name}/{part}": VariableMeaning((units,)) for part in parts}


def statistics_of(definition: Definition) -> dict[str, str]:
    """{feature: what its statistics are about}: numbers or words, and the raw feature."""
    about = dict[str, str]()
    for spec in definition.features.values():
        if isinstance(spec, Numeric) and spec.normalize != "none":
            about[spec.name] = ", ".join((f"numbers of {spec.of}", *spec.shaping))
        elif words := learned_words_of(spec):
            about[spec.name] = f"words of {words.of}"
        elif isinstance(spec, Quantiles):
            about[spec.name] = f"{spec.quantiles} quantiles of {spec.of}"
        elif isinstance(spec, Indicator) and spec.counts == "tf_idf":
            of_others = repr(definition.features[spec.of]).encode()  # its ids mean something else
            about[spec.name] = f"texts with each word of {spec.of}, {hashlib.sha256(of_others).hexdigest()[:12]}"
    return about


def learned_words_of(spec: FeatureSpec) -> Vocabulary | None:
    """The vocabulary of the feature where its words are learned."""
    words = spec.of_pieces if isinstance(spec, Text) else spec
    return words if isinstance(words, Vocabulary) and words.words is None else None


def carried_statistics(fitted: Mapping[str, _T], old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, _T]:
    """The parent's statistics under the new names: of the same source, first of the same name, then of any."""
    found = dict[str, _T]()
    for name, about in new.items():
        same = [other for other in sorted(fitted, key=lambda other: (other != name, other)) if old.get(other) == about]
        if same:
            found[name] = fitted[same[0]]
    return found


def carried(old: Axis, new: Axis) -> NDArray[np.int64]:
    """For each row of `new` the number of the same row in `old`, or -1: it starts new. Shape [rows of new]."""
    parts = [np.zeros(0, np.int64)]
    parts += [_matched(start, run_before, run) for run, _, start, run_before in _pairs(old, new)]
    return np.concatenate(parts)


def counted(old: Axis, new: Axis) -> tuple[int, int]:
    """How many rows of `new` are carried from the same place, and from another place. Millions of rows that go by
    number are counted without an array of them."""
    kept = moved = 0
    for run, place, start, before in _pairs(old, new):
        if before is not None and run.keys is None and before.keys is None:
            count = min(run.count, before.count) if _may_match(before, run) else 0
            kept += count if place == start else 0
            moved += count if place != start else 0
            continue
        rows = _matched(start, before, run)
        same = int((rows == np.arange(place, place + len(rows))).sum())
        kept += same
        moved += int((rows >= 0).sum()) - same
    return kept, moved


def _pairs(old: Axis, new: Axis) -> Iterator[tuple[Run, int, int, Run | None]]:
    """(run of `new`, its first row, first row of the run of `old` that it continues, that run)."""
    left = dict[tuple[str, ...], deque[tuple[int, Run]]]()
    start = 0
    for run in old:
        left.setdefault(run.label, deque()).append((start, run))
        start += run.count
    place = 0
    for run in new:
        candidates = left.get(run.label)
        yield (run, place, *candidates.popleft()) if candidates else (run, place, 0, None)
        place += run.count


def move(
    fresh: NDArray[Any], stored: NDArray[Any], old: VariableMeaning, new: VariableMeaning, *, is_slot: bool
) -> NDArray[Any]:
    """The stored rows at their new places; what has no row in `stored` is as in `fresh`, or zero (see is_kernel).

    Args:
        is_slot: an optimizer's slot of the variable: it starts as the optimizer starts it.
    """
    places = [carried(*axes) for axes in zip(old.axes, new.axes, strict=True)]
    kept = [np.flatnonzero(place >= 0) for place in places]
    moved = fresh.copy()
    if any(not len(rows) for rows in kept):
        return moved
    if new.is_kernel and not is_slot:
        moved[places[0] < 0] = 0
    moved[np.ix_(*kept)] = stored[np.ix_(*(place[rows] for place, rows in zip(places, kept, strict=True)))]
    return moved


def is_named(path: str, names: Sequence[str]) -> bool:
    """Whether a restart of `names` (layers, tables, paths or `all`) means the variable."""
    return any(name == "all" or path == name or path.startswith((f"{name}/", f"{name}_table/")) for name in names)


def to_mapping(variables: Mapping[str, VariableMeaning], statistics: Mapping[str, str]) -> dict[str, Any]:
    """JSON-ready, as a checkpoint holds it."""
    return {"variables": {path: asdict(meaning) for path, meaning in variables.items()}, "statistics": dict(statistics)}


def from_mapping(mapping: Mapping[str, Any]) -> tuple[dict[str, VariableMeaning], dict[str, str]]:
    """The inverse of to_mapping."""
    variables = {
        path: VariableMeaning(tuple(tuple(map(_run, axis)) for axis in stored["axes"]), stored["is_kernel"])
        for path, stored in mapping["variables"].items()
    }
    return variables, dict(mapping["statistics"])


def _run(stored: Mapping[str, Any]) -> Run:
    keys = stored["keys"]
    return Run(tuple(stored["label"]), stored["count"], None if keys is None else tuple(keys))


def _may_match(old: Run, new: Run) -> bool:
    if new.label == SPARE or (new.label[0] in _WIDTHS and new.count < old.count):
        return False
    return (old.keys is None) == (new.keys is None)


def _matched(start: int, old: Run | None, new: Run) -> NDArray[np.int64]:
    if old is None or not _may_match(old, new):
        return np.full(new.count, -1, np.int64)
    if old.keys is None or new.keys is None:
        numbers = np.arange(new.count)
        return np.where(numbers < old.count, start + numbers, -1)
    places = {key: start + number for number, key in enumerate(old.keys)}
    return np.fromiter((places.get(key, -1) for key in new.keys), np.int64, new.count)


def output_layer(definition: Definition) -> str:
    """Name of the layer that gives what all heads answer."""
    return "prediction" if all(head.task in REGRESSORS for head in definition.heads) else "logits"


def _outputs(definition: Definition, schema: Schema) -> Axis:
    """The columns of all heads, one after the other."""
    return tuple(_outputs_of(head, schema) for head in definition.heads)


def _outputs_of(head: Head, schema: Schema) -> Run:
    label = schema.feature(head.label)
    classes = class_count(head, label)
    own_name = () if head.name == head.label else (head.name,)
    count = unit_count(head, label, classes)
    if head.task == "multiclass":
        return Run(("class", head.label, *own_name), count, label.vocabulary or None)
    keys = tuple(map(repr, head.levels)) if head.task == "quantiles" else label.vocabulary
    named = keys or None if head.task in ("multilabel", "quantiles") else None
    units = () if (head.mean, head.deviation) == (0.0, 1.0) else (f"{head.mean:g}+-{head.deviation:g}",)
    return Run(("output", head.task, head.label, *own_name, *units), count, named)


def _rows(specs: Mapping[str, FeatureSpec], name: str, schema: Schema, learned: Learned | None) -> Axis:
    """Of a wide or embedding table: one row per id, or per column of a numeric feature."""
    spec = specs[name]
    if isinstance(spec, Numeric):
        return _columns(specs, name, schema, learned)
    assert isinstance(spec, Categorical)
    match spec:
        case Bucketized():
            return (_buckets(spec.of, spec.boundaries),)
        case Quantiles() if learned is None:
            return (Run(("bucket", spec.of, f"{spec.quantiles} quantiles"), spec.quantiles),)
        case Quantiles():
            assert learned is not None
            return _padded(_buckets(spec.of, learned.boundaries.get(spec.name, ())), spec.quantiles)
        case Identity():
            return (Run(("id", spec.of), spec.size),)
        case Crossed():
            members = [_member(specs.get(member), member) for member in spec.of]
            return (Run(("cross", *members, str(spec.bins)), spec.bins),)
        case Vocabulary() | Hashed():
            return _id_rows(spec, learned)
        case Text():
            return _id_rows(spec.of_pieces, learned)


def _buckets(of: str, boundaries: Sequence[float]) -> Run:
    edges = ["-inf", *map(repr, boundaries), "inf"]
    keys = tuple(f"{low}..{high}" for low, high in pairwise(edges))
    return Run(("bucket", of), len(keys), keys)


def _padded(run: Run, count: int) -> Axis:
    """With rows that mean nothing yet, so that there are `count`."""
    return (run, *((Run(SPARE, count - run.count),) if count > run.count else ()))


def _id_rows(spec: Vocabulary | Hashed, learned: Learned | None) -> Axis:
    if isinstance(spec, Hashed):
        return (Run(("hash", spec.of, str(spec.bins)), spec.bins),)
    buckets = (Run(("unknown", spec.of, str(spec.oov_buckets)), spec.oov_buckets),) if spec.oov == "bucket" else ()
    if spec.words is None and learned is None:
        return (Run(("word", spec.of), spec.max_words), *buckets)
    words = spec.words
    if words is None:
        known = learned.words.get(spec.name, ()) if learned else ()
        words = tuple(word.decode("utf-8", "surrogateescape") for word in known)
    return (*_padded(Run(("word", spec.of), len(words), words), spec.max_words), *buckets)


def _member(spec: FeatureSpec | None, name: str) -> str:
    """A crossed member hashes the text of its id: a change of an id changes the meaning of every row."""
    if spec is None:
        return name
    meaning = {key: value for key, value in asdict(spec).items() if key not in ("name", "update", "min_count")}
    return f"{type(spec).__name__} {meaning}"


def _columns(specs: Mapping[str, FeatureSpec], name: str, schema: Schema, learned: Learned | None) -> Axis:
    """Of a kernel: one row per column that the feature gives."""
    spec = specs[name]
    if isinstance(spec, Numeric):
        width = spec.width(schema.feature(spec.of).seen_count or 1)
        return (Run(("number", spec.of, spec.normalize, *spec.shaping), width),)
    if isinstance(spec, Embedding):
        ids = _rows(specs, spec.of, schema, learned)[0].label
        return (Run(("embedding", spec.table, spec.combiner, *ids), spec.dimension),)
    assert isinstance(spec, Indicator)
    return _rows(specs, spec.of, schema, learned)
