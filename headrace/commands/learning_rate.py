"""lr-find: which rate a definition learns with, by one short run in which the rate rises from step to step.

The range test of Smith (Cyclical Learning Rates, arXiv:1506.01186, section 3.3), by the round that a platform trains.
"""

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.counted import counted, is_or_are
from common.errors import HeadraceError, InvalidInput
from common.storage import place_of
from headrace.commands.session import Session
from headrace.commands.steps import Steps
from headrace.files.upload_state import UploadState

if TYPE_CHECKING:
    from common.definition.model import Definition

_REACH = 0.025
"""The share of all steps, to each side, over which a step's loss is smoothed."""
_FALL = 0.9
"""The share of the loss's fall at which a rate is large enough: beyond it lies a plain, where the least is chance."""
_SHOWN, _BAR = 13, 40
_MOST_PASSES = 1000
_DIVERGED = re.compile(r"the loss became \S+ at step (\d+)")
_LEFT_OUT = ("early_stopping", "evaluate_every_steps", "summaries", "save_every_steps")
"""Of `training`: what ends a round before its rates have risen, and what is only looked at."""


def lr_find(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Holds stream.yaml and model.yaml.")],
    data: Annotated[str, typer.Option("--data", help="The events: a path or URL, a folder, a name with *.")],
    lowest: Annotated[float, typer.Option("--from", min=1e-12, help="The rate of the first step.")] = 1e-6,
    highest: Annotated[float, typer.Option("--to", min=1e-12, help="The rate of the last step.")] = 1.0,
    steps: Annotated[int, typer.Option(min=20, max=10_000, help="Steps of the run, each with another rate.")] = 200,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that the run may take.")] = 3600.0,
) -> None:
    """Let the learning rate rise from step to step in a short run, and name the rate to take.

    The optimizer is the definition's, and so are batches, losses and features. The loss falls once the rate is
    large enough and rises when it is too large; the printed rate is a tenth of the rate at which nine tenths of the
    fall are reached. Nothing is registered, and the definition stays as it is.
    """
    from headrace.files.definition_folder import read_folder
    from headrace.files.samples import write_sample
    from headrace.local.check import check_events, check_round, work_folder

    session: Session = context.obj
    if not lowest < highest:
        raise InvalidInput(f"--from {lowest:g} is not below --to {highest:g}")
    source, told = place_of(data), Steps(quiet=session.as_json)
    try:
        told.begin("read stream.yaml and model.yaml")
        folder = read_folder(directory)
        schema, definition = folder.checked()
        with work_folder() as work_dir:
            told.begin(f"read and check the events of {source.name}")
            count = write_sample(UploadState("", "").files(source, None), schema, work_dir, most=None)
            check_events(work_dir, schema.to_json()).refuse(f"of the {count:,} events of {source.name} are refused")

            def rise(until: int | None) -> Mapping[str, Any]:
                files = _rising(folder.files or {}, definition, lowest, highest, steps=steps, events=count, until=until)
                return check_round(work_dir, files, on_step=told.begin, limit_seconds=limit, whole=True)

            diverged = None
            try:
                done = rise(None)
            except InvalidInput as error:
                diverged = _DIVERGED.search(error.message)
                if not diverged or int(diverged[1]) < 2:
                    raise
                shutil.rmtree(work_dir / "log")
                done = rise(int(diverged[1]) - 1)
            told.end()
            rates, losses = _curve(work_dir / "versions" / str(done["model"]) / "1" / "tensorboard")
    except HeadraceError:
        told.fail()
        raise
    found = _found(rates, losses, lowest, highest)
    found["diverged_at"] = rates[-1] if diverged else None

    def show() -> None:
        for rate, loss in _thinned(rates, found["losses"]):
            typer.echo(f"{rate:10.2g}  {loss:10.4g}  {'#' * _length(loss, found['losses'])}")
        if diverged:
            typer.echo(f"the loss became infinite or NaN above {rates[-1]:.2g}")
        typer.echo(f"nine tenths of the fall at {found['low_at']:.2g}; a tenth of that rate: {found['suggested']:.1g}")
        if found["note"]:
            typer.echo(found["note"])

    session.show({"model": definition.name, "rates": rates, **found, "steps_of_run": told.finished}, show)


def _rising(
    files: Mapping[str, bytes],
    definition: "Definition",
    lowest: float,
    highest: float,
    *,
    steps: int,
    events: int,
    until: int | None,
) -> Mapping[str, bytes]:
    """The definition's files with a rate that rises by the same factor in each step, and enough passes for all steps.

    Args:
        until: the last step that is taken; None: all are.

    Raises:
        InvalidInput: the family has no optimizer, or there are too few events.
    """
    import yaml

    from common.strict_yaml import read_yaml

    mapping: Any = read_yaml(files["model.yaml"], "model.yaml")
    training = {key: value for key, value in (mapping.get("training") or {}).items() if key not in _LEFT_OUT}
    rate = {
        "schedule": "exponential", "initial": lowest, "decay_steps": 1,
        "decay_rate": (highest / lowest) ** (1 / (steps - 1)),
    }  # fmt: skip
    training["optimizer"] = {**(training.get("optimizer") or {}), "learning_rate": rate}
    trained = max(1.0, events * (1 - definition.evaluation.holdout_fraction))
    passes = math.ceil(1.1 * steps * definition.training.batch_size / trained)
    if passes > _MOST_PASSES:
        raise InvalidInput(
            f"{counted(events, 'event')} {is_or_are(events)} too few for {counted(steps, 'step')}; take fewer --steps"
        )
    training |= {"passes": passes, "max_steps": until or steps, "on_not_finite": "fail"}
    mapping["training"] = training
    mapping.pop("export", None)
    return {**files, "model.yaml": yaml.safe_dump(mapping, sort_keys=False).encode()}


def _curve(folder: Path) -> tuple[list[float], list[float]]:
    """The rate and the loss of each step, as the version's TensorBoard file has them."""
    from tensorboard.compat.proto.event_pb2 import Event

    from common.eventlog.tfrecord import cut

    found: dict[str, dict[int, float]] = {"learning_rate": {}, "loss": {}}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for record in cut(path.read_bytes())[0]:
            event = Event.FromString(record)
            for value in event.summary.value:
                if value.tag in found:
                    found[value.tag][event.step] = value.tensor.float_val[0]
    shared = sorted(found["learning_rate"].keys() & found["loss"].keys())
    return [found["learning_rate"][step] for step in shared], [found["loss"][step] for step in shared]


def _found(rates: Sequence[float], losses: Sequence[float], lowest: float, highest: float) -> dict[str, Any]:
    """Raises InvalidInput: the rate did not rise, or no step had a loss."""
    if len(rates) < 2 or rates[-1] <= rates[0]:
        raise InvalidInput(
            "the rate did not rise: the module's own optimizer takes the steps; leave `optimizer` out of compile"
        )
    smooth = _smoothed(losses)
    least, note = min(smooth), ""
    low_at = next(
        rate for rate, loss in zip(rates, smooth, strict=True) if loss <= smooth[0] - _FALL * (smooth[0] - least)
    )
    if low_at >= 0.9 * highest:
        note = f"the loss still fell at {highest:g}: try a larger --to"
    elif least >= smooth[0]:
        note = f"the loss fell at no rate: try a smaller --from than {lowest:g}, or look at the data"
    return {"losses": smooth, "low_at": low_at, "suggested": max(lowest, low_at / 10), "note": note}


def _smoothed(losses: Sequence[float]) -> list[float]:
    """The mean of each step and of as many before it as after it, so that no rate is blamed for another's loss."""
    reach = max(1, round(len(losses) * _REACH))
    widths = [min(reach, step, len(losses) - 1 - step) for step in range(len(losses))]
    return [sum(losses[step - width : step + width + 1]) / (2 * width + 1) for step, width in enumerate(widths)]


def _thinned(rates: Sequence[float], losses: Sequence[float]) -> list[tuple[float, float]]:
    """So many points, evenly over the steps, the first and the last among them."""
    places = sorted({round(index * (len(rates) - 1) / (_SHOWN - 1)) for index in range(_SHOWN)})
    return [(rates[place], losses[place]) for place in places]


def _length(loss: float, losses: Sequence[float]) -> int:
    """Of a bar: all of it for three times the least loss and more."""
    least = min(losses)
    most = min(max(losses), least + 2 * abs(least)) if least else max(losses)
    return round(_BAR * min(1.0, (loss - least) / (most - least))) if most > least else 0
