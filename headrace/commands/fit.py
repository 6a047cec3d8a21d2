"""fit and search, over given files and without a platform: a bounded run from a definition to an export, and rounds
with other values of a definition's keys, compared by a held-out metric."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.counted import counted
from common.errors import Conflict, InvalidInput
from common.storage import LOCAL, Place, place_of
from headrace.commands.checked_events import (
    DefinitionFolder,
    EventFiles,
    FileFormat,
    OnInvalidEvents,
    checked_events,
    show_round,
    show_skipped,
)
from headrace.commands.session import Session, Steps
from headrace.commands.terminal import echo
from headrace.files.upload_state import UploadState

_SUMMARY = "fit.json"


def fit(
    session: Session,
    directory: DefinitionFolder,
    data: EventFiles,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="A new folder, by path or URL, for the export.")],
    file_format: FileFormat = None,
    on_invalid: OnInvalidEvents = "reject",
    readers: Annotated[int, typer.Option(min=1, max=64, help="Files that are read at once.")] = 1,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that training and export may take.")] = 3600.0,
) -> None:
    """Train a definition on the events of given files, once, and leave the export in a folder.

    It is the round that a platform would train over the same events, with all passes that the definition asks for,
    each in another order. Nothing is registered.
    """
    from headrace.files.definition_folder import read_folder
    from headrace.files.sources import formats
    from headrace.local.check import check_round, work_folder

    if file_format is not None and file_format not in formats():
        raise InvalidInput(f"--format takes {', '.join(formats())}, not {file_format!r}")
    source, target = place_of(data), place_of(to)
    if target.exists():
        raise Conflict(f"{target} is there already; --to names a new folder")
    with Steps(quiet=session.as_json) as steps:
        steps.begin("read stream.yaml and model.yaml")
        folder = read_folder(directory)
        schema, definition = folder.checked()
        with work_folder() as work_dir:
            steps.begin(f"read and check the events of {source.name}")
            files = UploadState("", "").files(source, file_format)
            checked = checked_events(files, schema, work_dir, on_invalid=on_invalid, readers=readers)
            done = check_round(work_dir, folder.files or {}, on_step=steps.begin, limit_seconds=limit, whole=True)
            steps.begin(f"write {target}")
            written = Place(LOCAL, str(work_dir / "versions" / str(done["model"]) / "1"))
            counts = {"events": checked.events, "events_left_out": checked.refused_count}
            document = {"files": [str(file.place) for file in files], **counts, **done}
            (written / _SUMMARY).write(json.dumps(document, indent=1).encode())
            written.copy_tree(target)

    def show() -> None:
        show_skipped(checked)
        steps_taken = counted(done["steps"], "step")
        show_round(f"{definition.name}: {counted(done['trained'], 'event')}, {steps_taken}", definition, done)
        echo(f"{target / 'saved_model'} is the export, {target / _SUMMARY} what was measured")

    session.show(document | {"to": str(target), "steps_of_run": steps.finished}, show)


if TYPE_CHECKING:
    from headrace.local.search import Trial

_TRIALS = "trials.json"


def search(
    session: Session,
    directory: DefinitionFolder,
    data: EventFiles,
    space: Annotated[Path, typer.Option("--space", help="YAML: keys of model.yaml with the values to try.")],
    metric: Annotated[str, typer.Option("--metric", help="Of the held-out events, as a version names it.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder, for the best definition.")],
    trials: Annotated[int, typer.Option(min=1, max=10_000, help="Rounds.")] = 20,
    on_invalid: OnInvalidEvents = "reject",
    sampler: Annotated[str, typer.Option(help="Of Optuna: tpe, which learns from trials, or random.")] = "tpe",
    seed: Annotated[int, typer.Option(min=0, help="Of the sampler.")] = 0,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that a round may take.")] = 3600.0,
) -> None:
    """Search hyperparameters: train a definition with several values of its keys on the same events, keep the best.

    Each trial is the round that `headrace fit` would train; all hold out the same events. Nothing is registered.
    """
    from common.definition.metrics import direction_of
    from common.strict_yaml import read_yaml
    from headrace.files.definition_folder import read_folder
    from headrace.local import search as searching
    from headrace.local.check import check_round, work_folder

    direction = direction_of(metric)
    if direction is None or sampler not in ("tpe", "random"):
        wrong = f"sampler {sampler!r} is none of tpe, random" if direction else f"metric {metric!r} is not in the table"
        raise InvalidInput(f"search: {wrong}")
    if to.exists():
        raise Conflict(f"{to} is there already; --to names a new folder")
    ranges = searching.parse_space(read_yaml(space.read_bytes(), space.name))
    schema, definition = (folder := read_folder(directory)).checked()
    with Steps(quiet=session.as_json) as steps, work_folder() as work_dir:
        steps.begin("read and check the events")
        sources = UploadState("", "").files(place_of(data), None)
        checked = checked_events(sources, schema, work_dir, on_invalid=on_invalid)

        def measure(files: Mapping[str, bytes]) -> float:
            with work_folder() as trial_dir:
                for name in ("schema.json", "examples.tfrecord"):
                    (trial_dir / name).symlink_to(work_dir / name)
                done = check_round(trial_dir, files, on_step=lambda step: None, limit_seconds=limit, whole=True)
            value = done["metrics"].get(metric)
            if value is None or not math.isfinite(value):
                known = ", ".join(name for name, value in done["metrics"].items() if value is not None)
                raise InvalidInput(f"a round has not measured {metric}; it has {known or 'no metric'}")
            return float(value)

        def on_trial(trial: "Trial") -> None:
            value = trial.problem or f"{metric} {trial.value:.4g}"
            steps.begin(f"trial {trial.number + 1} of {trials}: {json.dumps(trial.values)}: {value}")

        found = searching.search(
            folder.files or {}, ranges, measure, trials=trials, direction=direction,
            sampler="tpe" if sampler == "tpe" else "random", seed=seed, on_trial=on_trial,
        )  # fmt: skip
    document = _written(to, folder.files or {}, found, metric, is_higher=direction == "higher")
    best = document["best"]

    def show() -> None:
        show_skipped(checked)
        echo(
            f"{definition.name}: {metric} {best['value']:.4g} with {json.dumps(best['values'])}, the best of "
            f"{counted(len(found), 'trial')}; {to} has the definition, and {_TRIALS} all of them"
        )

    session.show(document | {"to": str(to), "events_left_out": checked.refused_count}, show)


def _written(
    to: Path, files: Mapping[str, bytes], found: "list[Trial]", metric: str, *, is_higher: bool
) -> dict[str, Any]:
    """The best trial's definition and what all gave, in the new folder; returns the document. A crash leaves a part."""
    from headrace.local.search import with_values

    done = [trial for trial in found if trial.value is not None]
    best = (max if is_higher else min)(done, key=lambda trial: trial.value or 0.0)
    document = {"metric": metric, "best": asdict(best), "trials": [asdict(trial) for trial in found]}
    for name, content in with_values(files, best.values).items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (to / _TRIALS).write_text(json.dumps(document, indent=1))
    return document
