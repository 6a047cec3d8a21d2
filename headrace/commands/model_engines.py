"""model engines: the ways in which a replica could compute a version, measured on this machine, and which to take."""

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

import typer

from common.counted import counted
from common.errors import InvalidInput
from common.process.gpu import has_gpu
from headrace.commands.model_files import Name, fetched
from headrace.commands.session import Session, print_table
from headrace.commands.terminal import echo
from headrace.local.variants import ROWS, VariantProcess, machine, question, source

_TURNS = 5
_WORTH_IT = 1.1
"""Times as fast as a replica that nothing is set for: less is not worth a setting, nor sure on a machine in use."""
_AS_FAST = 0.95
"""Of the fastest: the plainest variant that comes so near is taken."""


@dataclass(frozen=True)
class Variant:
    """One way of computing a version."""

    name: str
    settings: str = ""
    """What turns it on in serving; empty: nothing has to be set."""
    price: str = ""
    """What else it brings, for the recommendation."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Fields of serving's EngineOptions."""
    onednn: bool | None = None
    """None: as a replica decides for the version."""


@dataclass(frozen=True)
class Measured:
    """What came of a variant."""

    variant: Variant
    milliseconds: Mapping[int, float] = field(default_factory=dict)
    """Per call, by rows."""
    difference: float = 0.0
    """The largest to the reference's numbers."""
    problem: str = ""
    """How its answers differ by more than serving permits an engine."""
    failed: str = ""
    """Why it could not run."""


def variants(*, processors: int, is_onednn: bool, is_gpu: bool = False) -> list[Variant]:
    """From the plainest on; the first is what a replica uses when nothing is set.

    Args:
        processors: that this process may use.
        is_onednn: whether a replica uses oneDNN for the version when nothing is set.
        is_gpu: whether there is a GPU.
    """
    found = []
    for threads in sorted({1, min(2, processors), processors}):
        for onednn in (is_onednn, not is_onednn):
            name = f"{'oneDNN' if onednn else 'tensorflow'}, {threads} thread{'s' if threads > 1 else ''}"
            settings = [f"SERVING_INTRA_OP_THREADS={threads}"] if threads > 1 else []
            settings += [f"TF_ENABLE_ONEDNN_OPTS={int(onednn)}"] if onednn is not is_onednn else []
            price = f"a call then takes {threads} processors" if threads > 1 else ""
            found.append(Variant(name, " ".join(settings), price, {"intra_op_threads": threads}, onednn))
    compiled = "each batch size is compiled when it first comes, so name them in allowed_batch_sizes"
    found.append(Variant("tensorflow, XLA", "SERVING_ENABLE_XLA=true", compiled, {"is_xla": True}))
    if is_gpu:
        on_gpu = "every model of the replica is computed there, and no other engine can be set"
        found.append(Variant("tensorflow, GPU", "SERVING_DEVICE=gpu", on_gpu, {"device": "gpu"}))
    for engine in ("onnxruntime", "litert"):
        turned_on = f"`serving: {{engine: {engine}}}` in its model.yaml, or SERVING_ENGINE={engine} for all models"
        found.append(Variant(engine, turned_on, "the weights are in memory twice", {"engine": engine}))
    return found


def recommend(measured: Sequence[Measured]) -> tuple[str, str]:
    """The name of the variant to use and a sentence about it; `measured` is in order of variants().

    The speed is the geometric mean over the batch sizes, relative to the first. Variants that differ or failed do not
    count.
    """
    reference = measured[0]
    speeds = {
        variant.variant.name: _speed(variant, reference)
        for variant in measured
        if not (variant.failed or variant.problem)
    }
    fastest = max(speeds.values())
    if fastest < _WORTH_IT:
        name = reference.variant.name
        return name, (
            f"Leave it as it is: over these batch sizes nothing is more than a tenth faster than {name}, which a "
            f"replica uses by itself."
        )
    chosen = next(variant for variant in measured if speeds.get(variant.variant.name, 0.0) >= fastest * _AS_FAST)
    slower = [rows for rows, value in chosen.milliseconds.items() if value > reference.milliseconds[rows]]
    at = f" (slower at {', '.join(map(str, slower))} row{'s' if slower != [1] else ''})" if slower else ""
    price = f"; {chosen.variant.price}" if chosen.variant.price else ""
    return chosen.variant.name, (
        f"Use {chosen.variant.name}, {speeds[chosen.variant.name]:.2f} times as fast over these batch sizes as "
        f"{reference.variant.name}{at}: {chosen.variant.settings}{price}."
    )


def _speed(variant: Measured, reference: Measured) -> float:
    logs = [math.log(reference.milliseconds[rows] / value) for rows, value in variant.milliseconds.items()]
    return math.exp(statistics.fmean(logs))


def engines(
    session: Session,
    name: Name,
    rows: Annotated[
        list[int] | None, typer.Option(help="A batch size; may be repeated. Default: 1, 16, 256.", min=1, max=100_000)
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Of measuring, for each variant at each batch size.", min=0.01, max=600.0)
    ] = 1.0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Variants by name, such as '*XLA'; may be repeated.")
    ] = None,
    signature: Annotated[str, typer.Option(help="Default: serving_default, or the first.")] = "",
) -> None:
    """Compare threads, oneDNN, XLA and engines on a version, on this machine, and name the fastest settings.

    Each runs in its process, on rows of the version's warm-up requests, in turns with the others; its answers
    are compared with TensorFlow's. TensorFlow has to be installed here.
    """
    sizes = sorted(set(rows or ROWS))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as processes:
        files = fetched(session, name, Path(folder))
        answers = Path(folder) / "answers"
        request = question(files.directory, sizes, answers, signature=signature, is_reference=True)
        reference = processes.enter_context(VariantProcess(request))
        for size, refused in reference.ready["refused"].items():
            raise InvalidInput(f"{files.title} does not answer {counted(size, 'row')}: {refused}")
        signature = str(reference.ready["signature"])
        listed = _chosen(
            variants(processors=reference.ready["processors"], is_onednn=reference.ready["onednn"], is_gpu=has_gpu()),
            only or [],
        )
        running: dict[str, VariantProcess] = {listed[0].name: reference}
        failed: dict[str, str] = {}
        for variant in listed[1:]:
            request = question(
                files.directory, sizes, answers, signature=signature, engine=variant.engine, onednn=variant.onednn
            )
            try:
                running[variant.name] = processes.enter_context(VariantProcess(request))
            except InvalidInput as error:
                failed[variant.name] = error.message
        times = _in_turns(running, failed, sizes, seconds)
        measured = [_measured(variant, times, running, failed) for variant in listed]
    _show(session, files.title, reference.ready, sizes, measured)


def _chosen(listed: Sequence[Variant], patterns: Sequence[str]) -> list[Variant]:
    """The first always: it is what the others are compared with."""
    for pattern in patterns:
        if not any(fnmatch(variant.name, pattern) for variant in listed):
            raise InvalidInput(
                f"no variant is named {pattern}; there are {'; '.join(variant.name for variant in listed)}"
            )
    return [
        variant
        for number, variant in enumerate(listed)
        if not number or not patterns or any(fnmatch(variant.name, pattern) for pattern in patterns)
    ]


def _in_turns(
    running: dict[str, VariantProcess], failed: dict[str, str], sizes: Sequence[int], seconds: float
) -> dict[str, dict[int, list[float]]]:
    """Milliseconds of each turn: what else the machine does then, all variants meet. Moves what ends to `failed`."""
    times: dict[str, dict[int, list[float]]] = {name: {size: [] for size in sizes} for name in running}
    for _ in range(_TURNS):
        for size in sizes:
            for name, process in running.items():
                if name in failed:
                    continue
                refused = process.ready["refused"]
                try:
                    if refused:
                        raise InvalidInput(
                            "; ".join(f"at {counted(rows, 'row')}: {reason}" for rows, reason in refused.items())
                        )
                    times[name][size].append(process.milliseconds(size, seconds / _TURNS))
                except InvalidInput as error:
                    failed[name] = error.message
    return times


def _measured(
    variant: Variant,
    times: Mapping[str, Mapping[int, Sequence[float]]],
    running: Mapping[str, VariantProcess],
    failed: Mapping[str, str],
) -> Measured:
    if variant.name in failed:
        return Measured(variant, failed=failed[variant.name])
    ready = running[variant.name].ready
    medians = {size: statistics.median(found) for size, found in times[variant.name].items()}
    return Measured(variant, medians, float(ready["difference"]), str(ready["problem"]))


def _show(
    session: Session, title: str, ready: Mapping[str, Any], sizes: Sequence[int], measured: Sequence[Measured]
) -> None:
    if measured[0].failed:
        raise InvalidInput(f"TensorFlow could not be measured: {measured[0].failed}")
    largest = sizes[-1]
    chosen, sentence = recommend(measured)
    document = {
        "model": title, "signature": ready["signature"], "rows": list(sizes), "inputs": ready["inputs"],
        "machine": {"processor": ready["processor"], "processors": ready["processors"]},
        "reference": measured[0].variant.name,
        "variants": [
            {
                "name": row.variant.name, "settings": row.variant.settings,
                "milliseconds": {str(size): value for size, value in row.milliseconds.items()},
                "rows_per_second": round(largest / row.milliseconds[largest] * 1e3, 1) if not row.failed else None,
                "largest_difference": row.difference if not row.failed else None,
                "problem": row.problem, "failed": row.failed,
            }
            for row in measured
        ],
        "recommendation": {"variant": chosen, "sentence": sentence},
    }  # fmt: skip

    def print_text() -> None:
        columns = ("variant", *(f">{counted(size, 'row')}" for size in sizes), ">rows/s", ">difference")
        heading = f"{title}, {ready['signature']}: ms per call, rows/s at {largest}"
        print_table(heading, columns, [_row(row, sizes) for row in measured if not row.failed])
        for row in measured:
            if row.failed:
                echo(f"{row.variant.name}: cannot run: {row.failed}")
            if row.problem:
                echo(f"{row.variant.name}: does not answer as TensorFlow does: {row.problem}")
        echo(f"measured on this machine: {machine(ready)}; {source(ready)}")
        echo(sentence)

    session.show(document, print_text)


def _row(row: Measured, sizes: Sequence[int]) -> list[str]:
    times = [f"{row.milliseconds[size]:.3g}" for size in sizes]
    rate = sizes[-1] / row.milliseconds[sizes[-1]] * 1e3
    return [row.variant.name, *times, f"{rate:,.0f}", f"{row.difference:.1e}"]
