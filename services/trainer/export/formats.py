"""A version's other formats: made of its SavedModel, held against it, and told of in its lineage.

    exports/<format>/    services/trainer/export/converting.py says what lies there

Lineage (`environment.formats`), one entry per format: `bytes`, `rows` that were asked and whether they were `held_out`
(else learned: no event was held out), `largest_difference` over the float outputs,
`largest_difference_share` of the span of the model's own answers, `differing_share` of the others' values, `note` where
the file is not what its name says, `calibrated_on` events or made_up values, `metric` and `saved_model_metric` on the
held-out rows that were asked, or `problem`. Equal weights give equal files where the converter allows it: `frozen` and
`onnx` do, LiteRT's converter writes what its version writes. A rebuild compares weights, not these files.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.definition.export import INT8, QUANTISED, Export
from common.process.lean_imports import lean_command
from common.process.own_time import clock_of, ends_within
from services.trainer.export.arrays import Arrays, read_arrays, write_arrays
from services.trainer.families.reasons import DefinitionFailedError

EXPORTS = "exports"
CONVERSION_SECONDS = 900.0
"""For all converters together; seconds without a core do not count."""
_TOLERANCE, _FROZEN_TOLERANCE = 1e-3, 1e-6
"""Of tflite and onnx, which add the same numbers in another order; of frozen, absolute or as a share of the span."""


@dataclass(frozen=True)
class FormatRows:
    """The rows that every format is asked: held-out ones, or the sample where none is held out.

    Attributes:
        inputs: of `serving_default`, by name.
        held_out: whether they are.
        metric: of served outputs on these rows: its name and value; None where nothing is held out.
    """

    inputs: Arrays
    held_out: bool
    metric: Callable[[Arrays], tuple[str, float] | None]


def write_formats(
    export: Export, output: Path, work_dir: Path, rows: FormatRows, *, conversion_seconds: float = CONVERSION_SECONDS
) -> dict[str, Any]:
    """Makes every format of the definition below output/exports; returns the lineage's entry. Raises
    DefinitionFailedError: one cannot be made or answers otherwise than the model, and `on_unsupported` is fail."""
    if not export.formats:
        return {}
    question = work_dir / "formats"
    shutil.rmtree(question, ignore_errors=True)
    question.mkdir(parents=True)
    write_arrays(question / "rows.npz", rows.inputs)
    target = output / EXPORTS
    (question / "question.json").write_text(
        json.dumps(
            {
                "saved_model": str(output / "saved_model"),
                "target": str(target),
                "formats": list(export.formats),
                "calibration": export.int8_calibration,
            }
        )
    )
    ended = _convert(question, conversion_seconds)
    results = _read(question / "answers.json")
    model = read_arrays(question / "outputs" / "saved_model.npz")
    found: dict[str, Any] = {}
    for name in export.formats:
        problem = results[name]["problem"] if name in results else ended
        entry = {} if problem else _compared(name, target / name, model, question, rows)
        entry |= {"calibrated_on": export.int8_calibration} if name == INT8 and not problem else {}
        entry |= {"note": note} if (note := results.get(name, {}).get("note")) else {}
        problem = problem or _too_different(name, entry, export)
        if problem and export.on_unsupported == "fail":
            raise DefinitionFailedError(f"export: format {name} cannot be made of this model: {problem}")
        if problem:
            shutil.rmtree(target / name, ignore_errors=True)
            entry |= {"problem": problem}
        found[name] = entry
    return found


def _convert(question: Path, conversion_seconds: float) -> str:
    """Runs the converters; how their process ended, in words."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    command = lean_command("services.trainer.export.converting", str(question))
    with (
        (question / "conversion.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as converters,
    ):

        def ended(seconds: float) -> bool:
            with suppress(subprocess.TimeoutExpired):
                converters.wait(seconds)
            return converters.returncode is not None

        try:
            is_in_time = ends_within(conversion_seconds, clock_of(converters.pid), ended)
        finally:
            converters.kill()  # does nothing to one that has ended
    if not is_in_time:
        return f"the converters did not end within {conversion_seconds:g} s (TRAINER_EXPORT_CONVERSION_SECONDS)"
    last = (question / "conversion.log").read_text(errors="replace").strip().splitlines()[-1:]
    return f"the converters' process ended with status {converters.returncode}: {' '.join(last)[:300]}"


def _compared(name: str, folder: Path, model: Arrays, question: Path, rows: FormatRows) -> dict[str, Any]:
    outputs = read_arrays(question / "outputs" / f"{name}.npz")
    entry: dict[str, Any] = {"bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())}
    entry |= {"rows": len(next(iter(rows.inputs.values()))), "held_out": rows.held_out}
    missing = sorted(set(model) - set(outputs))
    if missing:
        return entry | {"missing_outputs": missing}
    floats = [key for key, value in model.items() if value.dtype.kind == "f"]
    others = [key for key in model if key not in floats]
    if floats:
        differences = {key: _largest(model[key], outputs[key]) for key in floats}
        entry["largest_difference"] = max(differences.values())
        entry["largest_difference_share"] = max(differences[key] / _span(model[key]) for key in floats)
    if others:
        entry["differing_share"] = max(float(np.mean(model[key] != outputs[key])) for key in others)
    for part, values in (("metric", outputs), ("saved_model_metric", model)):
        measured = rows.metric(values)
        if measured is not None:
            entry[part] = {"name": measured[0], "value": measured[1]}
    return entry


def _largest(expected: NDArray[Any], got: NDArray[Any]) -> float:
    if expected.shape != got.shape:
        return float("inf")
    return float(np.max(np.abs(expected.astype(np.float64) - got.astype(np.float64)), initial=0.0))


def _span(answers: NDArray[Any]) -> float:
    """From the least to the greatest; of equal ones their size, so that a share of it is one of the answer itself."""
    return float(np.ptp(answers)) or float(np.max(np.abs(answers), initial=0.0)) or 1.0


def _too_different(name: str, entry: Mapping[str, Any], export: Export) -> str:
    if "missing_outputs" in entry:
        return f"its outputs lack {', '.join(entry['missing_outputs'])}"
    difference = entry.get("largest_difference", 0.0)
    limit = export.max_difference if name in QUANTISED else _TOLERANCE
    if name == "frozen":  # the same operations on the same numbers
        limit = _FROZEN_TOLERANCE
        difference = min(difference, entry.get("largest_difference_share", 0.0))
    if limit is not None and not difference <= limit:
        return f"its answers differ from the model's by up to {difference:.3g}, allowed is {limit:g}"
    share, most = entry.get("largest_difference_share", 0.0), export.max_difference_share
    if name in QUANTISED and most is not None and not share <= most:
        return (
            f"its answers differ from the model's by up to {difference:.3g}, {share:.0%} of the span of these; allowed "
            f"is {most:.0%} (export: max_difference_share)"
        )
    return ""


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}
