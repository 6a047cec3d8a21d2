"""Chooses an engine for each signature of a SavedModel, with the reason.

The SavedModel itself is always loaded, too: it answers an engine's refusals (other shapes than the signature's, no
rows, values on which they differ, everything that is an error), so that answers and errors are TensorFlow's whichever
engine runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.process.pace import Pace
from services.serving.engines import litert_engine, onnx_engine, tensorflow_engine
from services.serving.engines.candidate import Candidate, EngineRefused
from services.serving.engines.conversion import Conversion, Conversions
from services.serving.engines.guarded import GuardedCall
from services.serving.engines.platforms.loading import LoadedModel, LoadRequest
from services.serving.engines.trial import SignatureTrial
from services.serving.options.model_options import GPU, EngineOptions
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed
from services.serving.wire.replica_state import Signature

CANDIDATES: tuple[Candidate, ...] = (onnx_engine.CANDIDATE, litert_engine.CANDIDATE)
AUTO, TENSORFLOW = "auto", "tensorflow"
_WORTH_IT = 0.95
"""An engine that takes more than this share of TensorFlow's time is not worth its memory."""

_ANY = (0, math.inf)
"""Batches of any size."""


@dataclass(frozen=True)
class _Choice:
    engine: str
    """Empty: TensorFlow."""
    call: GuardedCall | None
    reason: str


class MixedModel:
    """A SavedModel with signatures that other engines compute. Calls are thread-safe."""

    def __init__(self, reference: tensorflow_engine.TensorFlowEngine, choices: Mapping[str, _Choice]) -> None:
        self._reference = reference
        self._calls = {name: choice.call for name, choice in choices.items() if choice.call is not None}
        self.signatures = reference.signatures
        self.reasons: Mapping[str, str] = {name: choice.reason for name, choice in choices.items()}
        self.kind = _kind(reference.kind, choices)
        others = sorted({choice.engine for choice in choices.values() if choice.call is not None})
        # Their files hold the variables: another version's are made, compared and measured in processes of their own.
        self.refuses_states = f"{' and '.join(others)} has the variables in its files" if others else ""

    def beside(self) -> "MixedModel":
        """As TensorFlowEngine.beside; only where it refuses no states."""
        choices = {name: _Choice("", None, reason) for name, reason in self.reasons.items()}
        return MixedModel(self._reference.beside(), choices)

    def take(self, directory: Path, pace: Pace | None = None) -> None:
        """As TensorFlowEngine.take."""
        self._reference.take(directory, pace)

    def values(self) -> Sequence[np.ndarray] | None:
        """As TensorFlowEngine.values."""
        return self._reference.values()

    def put(self, values: Sequence[np.ndarray]) -> None:
        """As TensorFlowEngine.put."""
        self._reference.put(values)

    def close(self) -> None:
        self._reference.close()

    def callable_signatures(self) -> tuple[str, ...]:
        return self._reference.callable_signatures()

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        """As TensorFlowEngine.run; TensorFlow answers what the chosen engine refuses."""
        call = self._calls.get(signature)
        if call is not None:
            try:
                return call.run(inputs, output_filter)
            except EngineRefused:
                return self._reference.run(signature, inputs, output_filter)
        return self._reference.run(signature, inputs, output_filter)


def load(request: LoadRequest, *, candidates: Sequence[Candidate] = CANDIDATES) -> LoadedModel:
    """Loads a SavedModel with the engine that its options name. Raises RequestFailed: TensorFlow cannot load it, or the
    engine that is named is not installed."""
    options = request.options.engine
    # The converters know one graph, that tagged serve.
    is_usual = options.saved_model_tags == EngineOptions.saved_model_tags
    if options.engine not in (AUTO, TENSORFLOW) and not is_usual:
        tags = ",".join(options.saved_model_tags)
        raise RequestFailed(
            Code.FAILED_PRECONDITION, f"engine {options.engine} takes graphs tagged serve only, not {tags}"
        )
    if options.engine not in (AUTO, TENSORFLOW) and options.device == GPU:
        raise RequestFailed(
            Code.FAILED_PRECONDITION, f"engine {options.engine} computes on CPUs, and SERVING_DEVICE is {GPU}"
        )
    if options.engine == TENSORFLOW or options.device == GPU or request.is_cautious or not is_usual:
        return tensorflow_engine.load(request.directory, options, is_cautious=request.is_cautious)
    wanted = [candidate for candidate in candidates if options.engine in (AUTO, candidate.name)]
    if options.engine != AUTO:
        for candidate in wanted:
            if reason := candidate.missing():
                raise RequestFailed(Code.FAILED_PRECONDITION, f"engine {candidate.name} is {reason}")
    with Conversions(request.model, request.directory, request.options, request.engines_dir) as conversions:
        # Before TensorFlow runs in this process: its threads would not survive the forks.
        tried = [(candidate, None if candidate.missing() else conversions.get(candidate)) for candidate in wanted]
        reference = tensorflow_engine.load(request.directory, options)
        choices = {
            name: _choose(name, reference.signatures[name], tried, options) for name in reference.callable_signatures()
        }
        return MixedModel(reference, choices)


def _choose(
    name: str, signature: Signature, tried: Sequence[tuple[Candidate, Conversion | None]], options: EngineOptions
) -> _Choice:
    usable: list[tuple[float, Candidate, Path, SignatureTrial]] = []
    remarks: list[str] = []
    for candidate, conversion in tried:
        trial = conversion.signatures.get(name) if conversion is not None else None
        problem = _problem(candidate, conversion, trial)
        if problem or conversion is None or trial is None:
            remarks.append(f"{candidate.name}: {problem}")
            continue
        usable.append((_share_of_time(trial), candidate, conversion.folder / trial.file, trial))
    usable.sort(key=lambda choice: choice[0])
    for share, candidate, path, trial in usable:
        if options.engine == AUTO and share > _WORTH_IT:
            break
        rows = _worthwhile_rows(trial) if options.engine == AUTO else _ANY
        try:
            call = GuardedCall(signature, candidate.open(path, signature, options), trial.guards, rows)
        except EngineRefused as error:
            remarks.append(str(error))
            continue
        others = [_figures(other.name, seen) for _, other, _, seen in usable if other is not candidate]
        figures = [*others, _reference_figures(trial), *remarks]
        reason = "; ".join([f"runs on {_figures(candidate.name, trial)}{_rows_in_words(rows)}", *figures])
        return _Choice(candidate.name, call, reason)
    slower = [_figures(candidate.name, trial) for _, candidate, _, trial in usable]
    reference = _reference_figures(usable[0][3]) if usable else TENSORFLOW
    return _Choice("", None, "; ".join([f"runs on {reference}", *slower, *remarks]))


def _problem(candidate: Candidate, conversion: Conversion | None, trial: SignatureTrial | None) -> str:
    if conversion is None:
        return candidate.missing()
    if conversion.problem:
        return conversion.problem
    return trial.problem if trial is not None else "it did not try this signature"


def _share_of_time(trial: SignatureTrial) -> float:
    """Its time over TensorFlow's, where it is faster: the geometric mean over the batch sizes."""
    ratios = [
        math.log(min(micros / trial.tensorflow_microseconds[size], 1.0))
        for size, micros in trial.microseconds.items()
        if micros
    ]
    return math.exp(sum(ratios) / len(ratios)) if ratios else 1.0


def _worthwhile_rows(trial: SignatureTrial) -> tuple[int, float]:
    """The batch sizes for which the engine is faster, from and to: time is taken to grow evenly with the rows."""
    sizes = sorted(trial.microseconds, key=int)
    small, large = int(sizes[0]), int(sizes[-1])
    saved_small, saved_large = (
        trial.tensorflow_microseconds[size] - trial.microseconds[size] for size in (sizes[0], sizes[-1])
    )
    if (saved_small > 0) == (saved_large > 0):
        return _ANY
    crossing = small + (large - small) * saved_small / (saved_small - saved_large)
    return (0, math.floor(crossing)) if saved_small > 0 else (math.ceil(crossing), math.inf)


def _rows_in_words(rows: tuple[int, float]) -> str:
    if rows == _ANY:
        return ""
    smallest, largest = rows
    limits = f"up to {largest:g} rows" if smallest == 0 else f"from {smallest} rows on"
    return f" {limits}, on tensorflow otherwise"


def _figures(engine: str, trial: SignatureTrial) -> str:
    parts = [f"{engine} ({_times(trial.microseconds)}", f"largest difference {trial.max_difference:.2g}"]
    if trial.guards:
        parts.append(f"values that are {' or '.join(trial.guards)} go to tensorflow")
    return ", ".join(parts) + ")"


def _reference_figures(trial: SignatureTrial) -> str:
    return f"{TENSORFLOW} ({_times(trial.tensorflow_microseconds)})"


def _times(microseconds: Mapping[str, float]) -> str:
    return ", ".join(f"{micros:.3g} us at {size}" for size, micros in microseconds.items())


def _kind(reference_kind: str, choices: Mapping[str, _Choice]) -> str:
    engines = {name: choice.engine or reference_kind for name, choice in choices.items()}
    if len(set(engines.values())) == 1:
        return next(iter(engines.values()))
    by_engine: dict[str, list[str]] = {}
    for name, engine in engines.items():
        by_engine.setdefault(engine, []).append(name)
    return "; ".join(f"{engine} for {', '.join(names)}" for engine, names in sorted(by_engine.items()))
