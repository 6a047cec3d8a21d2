"""Tries an engine on every signature of a SavedModel: converts, compares with TensorFlow, measures. Runs in a process
of its own (conversion.py), because converters take much memory and may crash."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import op_def_registry

from common.counted import counted
from services.serving.engines import tensorflow_engine
from services.serving.engines.candidate import Call, Candidate, CannotConvert, EngineRefused
from services.serving.engines.guarded import GUARDED_KINDS, GuardedCall
from services.serving.engines.warm_up import batch_sizes, repeated
from services.serving.engines.warm_up_requests import recorded_predictions
from services.serving.options.model_options import EngineOptions, ModelOptions
from services.serving.wire.prediction import Arrays, Prediction, RequestFailed, numpy_type
from services.serving.wire.replica_state import Signature, TensorSpec

_CHECKS = {"CheckNumerics", "CheckNumericsV2"}
"""They have no effect as TensorFlow counts them, but they refuse values."""
_SHAPE_CHECK = "EnsureShape"
"""Refuses shapes: harmless where no call differs from another in more than its rows."""
_HARMLESS = {
    "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "ReadVariableOp", "VarIsInitializedOp",
    "ResourceGather", "ResourceGatherNd", "PartitionedCall", "StatefulPartitionedCall", "If", "While", "Case",
    "HashTable", "HashTableV2", "LookupTableFind", "LookupTableFindV2", "NoOp",
}  # fmt: skip
"""Stateful as TensorFlow counts them, but reading a variable or a table that nobody writes to changes nothing."""
Kind = Literal["plain", "not finite", "negative", "huge"]
_INNER_SIZES = (1, 5, 32)
"""Tried for dimensions after the first that are not fixed."""
_FEW_ROWS = 3
_MOST_RECORDED = 32
_SEED = 20
_HUGE = 2**40
_BLOCKS = 7
_BLOCK_SECONDS = 0.003
"""A load waits for all of them, once for each engine, signature and size of batch."""
_LONGEST_PROBLEM = 400


@dataclass(frozen=True)
class Probe:
    """`label` describes it."""

    kind: Kind
    label: str
    inputs: dict[str, np.ndarray]


def make_probes(signature: Signature, recorded: Sequence[Prediction], sizes: Sequence[int]) -> Iterator[Probe]:
    """Plain inputs first, at every batch size; then values that a converter may treat differently. Raises
    RequestFailed: an input has a type that the queue cannot carry."""
    rng = np.random.default_rng(_SEED)
    has_rows = all(spec.shape is None or spec.shape[:1] == (-1,) for spec in signature.inputs.values())
    sizes = sorted({*sizes, _FEW_ROWS}) if has_rows else [1]
    for number, prediction in enumerate(recorded[:_MOST_RECORDED]):
        yield Probe("plain", f"recorded request {number}", dict(prediction.inputs))
        if has_rows and prediction.rows > 0:
            for size in sizes:
                yield Probe("plain", f"recorded request {number} as {counted(size, 'row')}", repeated(prediction, size))
    has_inner = any(size < 0 for spec in signature.inputs.values() for size in (spec.shape or ())[1:])
    inner_sizes = _INNER_SIZES if has_inner else _INNER_SIZES[:1]
    for inner in inner_sizes:
        for size in sizes:
            yield Probe("plain", f"zeros, {_words(size, inner)}", _made_up(signature, size, inner, None))
            yield Probe("plain", f"random values, {_words(size, inner)}", _made_up(signature, size, inner, rng))
    rows = _FEW_ROWS if has_rows else 1
    bases = [dict(prediction.inputs) for prediction in recorded[:1]]
    bases += [_made_up(signature, rows, inner, rng) for inner in inner_sizes]
    for base in bases:
        yield from _ugly(base)


def _ugly(base: dict[str, np.ndarray]) -> Iterator[Probe]:
    for name, array in base.items():
        if not array.size:
            continue
        values: tuple[tuple[Kind, float], ...] = ()
        if array.dtype.kind == "f":
            values = (("not finite", np.nan), ("not finite", np.inf), ("not finite", -np.inf), ("plain", -1e4))
        if array.dtype.kind == "i":
            values = (("negative", -1), ("huge", min(_HUGE, int(np.iinfo(array.dtype).max))))
        for kind, value in values:
            planted = array.copy()
            planted.flat[0] = planted.flat[-1] = value
            yield Probe(kind, f"{value:g} in {name}", base | {name: planted})


def _made_up(signature: Signature, rows: int, inner: int, rng: np.random.Generator | None) -> dict[str, np.ndarray]:
    """Zeros without `rng`; with it small numbers that most models take: normal ones, 0 and 1, true and false."""
    return {
        name: _array(numpy_type(name, spec), _shape(spec, rows, inner), rng) for name, spec in signature.inputs.items()
    }


def _array(dtype: "np.dtype[np.generic]", shape: tuple[int, ...], rng: np.random.Generator | None) -> np.ndarray:
    if rng is None:
        return np.zeros(shape, dtype)
    if dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _shape(spec: TensorSpec, rows: int, inner: int) -> tuple[int, ...]:
    sizes = spec.shape if spec.shape is not None else (-1,)
    return tuple(size if size >= 0 else (rows if axis == 0 else inner) for axis, size in enumerate(sizes))


def _words(rows: int, inner: int) -> str:
    return f"{counted(rows, 'row')}" if inner == 1 else f"{counted(rows, 'row')} of {inner}"


@dataclass(frozen=True)
class SignatureTrial:
    """The result for a signature."""

    problem: str = ""
    """Why the engine must not compute it; empty when it may."""
    file: str = ""
    digest: str = ""
    """SHA-256 of the file."""
    guards: tuple[str, ...] = ()
    """Kinds of values on which the engine differs: calls that hold some go to TensorFlow."""
    probe_count: int = 0
    max_difference: float = 0.0
    microseconds: Mapping[str, float] = field(default_factory=dict)
    """Per call, by batch size."""
    tensorflow_microseconds: Mapping[str, float] = field(default_factory=dict)


def try_engine(
    candidate: Candidate, directory: Path, options: ModelOptions, target_dir: Path
) -> dict[str, SignatureTrial]:
    """Writes a converted model per signature below `target_dir`. Raises RequestFailed: TensorFlow cannot load the
    SavedModel, or its warm-up requests cannot be read."""
    reference = tensorflow_engine.load(directory, options.engine)
    signatures = {name: reference.signatures[name] for name in reference.callable_signatures()}
    recorded: dict[str, list[Prediction]] = {name: [] for name in signatures}
    for _, predictions in recorded_predictions(directory, signatures):
        for prediction in predictions:
            recorded[prediction.signature].append(prediction)
    found = {}
    for number, (name, signature) in enumerate(signatures.items()):
        path = target_dir / f"{number}.model"
        trial = _Trial(candidate, reference, name, signature, options)
        try:
            found[name] = trial.run(directory, path, recorded[name])
        except (CannotConvert, EngineRefused) as error:
            found[name] = SignatureTrial(problem=" ".join(str(error).split())[:_LONGEST_PROBLEM])
        except RequestFailed as error:
            found[name] = SignatureTrial(problem=error.message[:_LONGEST_PROBLEM])
    return found


class _Trial:
    """A signature on an engine."""

    def __init__(
        self,
        candidate: Candidate,
        reference: tensorflow_engine.TensorFlowEngine,
        name: str,
        signature: Signature,
        options: ModelOptions,
    ) -> None:
        self._candidate, self._reference, self._options = candidate, reference, options
        self._name, self._signature = name, signature
        self._outputs = tuple(signature.outputs)
        self._max_difference = 0.0
        self._probe_count = 0

    def run(self, directory: Path, path: Path, recorded: Sequence[Prediction]) -> SignatureTrial:
        problem = self._hopeless() or effect_in_words(directory, self._signature)
        if problem:
            raise CannotConvert(problem)
        self._candidate.convert(directory, self._name, path)
        call = self._candidate.open(path, self._signature, self._options.engine)
        sizes = batch_sizes(self._options.batching)
        guards: list[str] = []
        answered: dict[int, Arrays] = {}
        for probe in make_probes(self._signature, recorded, sizes):
            problem = self._problem_with(call, probe, answered)
            if not problem:
                continue
            if probe.kind not in GUARDED_KINDS:
                raise CannotConvert(f"{problem} ({probe.label})")
            guards.append(probe.kind)
        if not answered:
            raise CannotConvert("TensorFlow answers no made-up input; give the version warm-up requests")
        guarded = GuardedCall(self._signature, call, tuple(dict.fromkeys(guards)))
        return SignatureTrial(
            file=path.name,
            digest=hashlib.sha256(path.read_bytes()).hexdigest(),
            guards=guarded.guards,
            probe_count=self._probe_count,
            max_difference=self._max_difference,
            microseconds=self._measure(guarded.run, answered),
            tensorflow_microseconds=self._measure(lambda inputs: self._reference.run(self._name, inputs), answered),
        )

    def _hopeless(self) -> str:
        tensors = {**self._signature.inputs, **self._signature.outputs}
        strings = [name for name, spec in tensors.items() if spec.dtype == "DT_STRING"]
        return f"{strings[0]} holds strings, which stay with TensorFlow" if strings else ""

    def _problem_with(self, call: Call, probe: Probe, answered: dict[int, Arrays]) -> str:
        try:
            expected = self._reference.run(self._name, probe.inputs)
        except RequestFailed:
            expected = None
        try:
            found = call(probe.inputs, self._outputs)
        except EngineRefused as error:
            # Calls that the engine refuses go to TensorFlow; but it must be able to take the usual ones.
            return str(error) if expected is not None and probe.kind == "plain" else ""
        if expected is None:
            return "it answers inputs that TensorFlow refuses"
        self._probe_count += 1
        difference, problem = compare(
            expected, found,
            relative_tolerance=self._options.engine.relative_tolerance,
            absolute_tolerance=self._options.engine.absolute_tolerance,
        )  # fmt: skip
        if not problem:
            self._max_difference = max(self._max_difference, difference)
            if probe.kind == "plain":
                rows = next(iter(probe.inputs.values())).shape[:1] if probe.inputs else ()
                answered.setdefault(rows[0] if rows else 1, probe.inputs)
        return problem

    def _measure(self, run: Callable[[Arrays], object], answered: Mapping[int, Arrays]) -> dict[str, float]:
        """For the smallest and the largest batch that was answered."""
        sizes = sorted({min(answered), max(answered)})
        return {str(rows): microseconds_per_call(run, answered[rows], self._options.engine) for rows in sizes}


def microseconds_per_call(run: Callable[[Arrays], object], inputs: Arrays, options: EngineOptions) -> float:
    """The best of several blocks, in time of this thread where it does all the work: the machine has other work."""
    clock = time.thread_time if options.intra_op_threads == options.inter_op_threads == 1 else time.perf_counter
    run(inputs)
    best = float("inf")
    for _ in range(_BLOCKS):
        calls, started = 0, clock()
        while (spent := clock() - started) < _BLOCK_SECONDS:
            run(inputs)
            calls += 1
        best = min(best, spent / max(calls, 1))
    return round(best * 1e6, 2)


def compare(
    expected: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    *,
    relative_tolerance: float,
    absolute_tolerance: float,
) -> tuple[float, str]:
    """The largest difference between two numbers, and the fault in words; "" when they agree.

    Names, shapes and types must be the same; whole numbers, booleans and strings too. NaN equals NaN, and an infinity
    itself; other numbers may differ by absolute_tolerance + relative_tolerance x |expected|.
    """
    if expected.keys() != found.keys():
        return 0.0, f"its outputs are {sorted(found)}, TensorFlow's {sorted(expected)}"
    largest = 0.0
    for name, array in expected.items():
        other = found[name]
        if (array.shape, array.dtype) != (other.shape, other.dtype):
            return largest, f"output {name} is {other.dtype} {other.shape}, TensorFlow's {array.dtype} {array.shape}"
        if array.dtype.kind not in "fcV":
            if array.tolist() != other.tolist():
                return largest, f"output {name} has other values"
            continue
        wide = np.complex128 if array.dtype.kind == "c" else np.float64
        a, b = array.astype(wide), other.astype(wide)
        finite = np.isfinite(a)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
            return largest, f"output {name} is not finite in other places"
        distances = np.abs(a[finite] - b[finite])
        distance = float(distances.max(initial=0.0))
        largest = max(largest, distance)
        if np.any(distances > absolute_tolerance + relative_tolerance * np.abs(a[finite])):
            return largest, f"output {name} differs by {distance:.2g}"
    return largest, ""


def effect_in_words(directory: Path, signature: Signature) -> str:
    """Which operation keeps the signature on TensorFlow, as checks, random numbers, prints and assignments do:
    converters drop or freeze them, and no comparison of outputs would show it. Empty when there is none."""
    graph = _graph(directory)
    functions = {function.signature.name: list(function.node_def) for function in graph.library.function}
    waiting = _reachable(graph, [spec.tensor_name for spec in signature.outputs.values()])
    seen: set[str] = set()
    checks = _CHECKS if _only_rows_differ(signature) else _CHECKS | {_SHAPE_CHECK}
    while waiting:
        node = waiting.pop()
        if node.op in checks or (node.op not in _HARMLESS and _is_stateful(node.op)):
            return f"its operation {node.op} does more than compute, which a converted model would not do"
        for name in _called(node):
            if name in functions and name not in seen:
                seen.add(name)
                waiting += functions[name]
    return ""


def _only_rows_differ(signature: Signature) -> bool:
    return all(spec.shape is not None and -1 not in spec.shape[1:] for spec in signature.inputs.values())


def _graph(directory: Path) -> graph_pb2.GraphDef:
    saved_model = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    tagged = [graph for graph in saved_model.meta_graphs if tf.saved_model.SERVING in graph.meta_info_def.tags]
    return tagged[0].graph_def


def _reachable(graph: graph_pb2.GraphDef, tensors: Iterable[str]) -> list[node_def_pb2.NodeDef]:
    """The nodes that the tensors depend on."""
    nodes = {node.name: node for node in graph.node}
    found: dict[str, node_def_pb2.NodeDef] = {}
    waiting = list(tensors)
    while waiting:
        name = waiting.pop().removeprefix("^").partition(":")[0]
        if name in nodes and name not in found:
            found[name] = nodes[name]
            waiting += nodes[name].input
    return list(found.values())


def _called(node: node_def_pb2.NodeDef) -> list[str]:
    """The functions that a node may call."""
    names = [node.op]
    for value in node.attr.values():
        names.append(value.func.name)
        names += [function.name for function in value.list.func]
    return [name for name in names if name]


def _is_stateful(op: str) -> bool:
    known = op_def_registry.get(op)
    return known is not None and known.is_stateful
