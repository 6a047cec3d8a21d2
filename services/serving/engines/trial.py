"""Tries an engine on every signature of a SavedModel: converts, compares with TensorFlow, measures. Runs in a process
of its own (conversion.py), because converters take much memory and may crash."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.serving.engines import effects, tensorflow_engine
from services.serving.engines.candidate import Call, Candidate, CannotConvert, EngineRefused
from services.serving.engines.comparison import compare
from services.serving.engines.guarded import GUARDED_KINDS, GuardedCall
from services.serving.engines.probes import Probe, make_probes
from services.serving.engines.warm_up import batch_sizes
from services.serving.engines.warm_up_requests import recorded_predictions
from services.serving.options.model_options import EngineOptions, ModelOptions
from services.serving.wire.prediction import Arrays, Prediction, RequestFailed
from services.serving.wire.replica_state import Signature

_BLOCKS = 7
_BLOCK_SECONDS = 0.01
_LONGEST_PROBLEM = 400


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
        problem = self._hopeless() or effects.effect_in_words(directory, self._signature)
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
