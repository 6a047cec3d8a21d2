"""What a SavedModel made elsewhere is worth on a stream: beside the live version, on the held-out slice of the range of
the model's last round, which no round has trained on. Nothing is leased or registered."""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import InvalidInput
from common.eventlog.base import EventLog
from common.registry.catalog import FileEntry, RoundPlan
from common.registry.plan_notes import PUSHED
from services.trainer.families.external_model import ExternalModel
from services.trainer.families.port import Answering
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Figures
from services.trainer.rounds import window
from services.trainer.rounds.blocks import RoundData
from services.trainer.rounds.feature_counts import FeatureCounts
from services.trainer.rounds.inputs import RoundInputs, data_of, version_of
from services.trainer.rounds.measuring import measure
from services.trainer.rounds.outside import RoundRegistry

_FOLDER = "saved_model/"


def figures_of(assignment: RoundAssignment, *, registry: RoundRegistry, log: EventLog) -> Figures:
    """Measured as a round's candidate is, by the definition of the last round; its gate comes along.

    Raises:
        InvalidInput: the SavedModel does not answer the stream's events, or no event is held out.
        DataLoss, NotFound: the log or the registry lacks what it is measured by.
    """
    plan, work_dir = assignment.plan, Path(assignment.work_dir)
    stored = version_of(registry, plan.model, assignment.round.version, assignment, work_dir)[0]
    inputs, last = RoundInputs(stored.definition, stored.schema, stored.module, None), stored.built()
    candidate = _external(fetched(registry, assignment.candidate, work_dir / "candidate"), last)
    data = data_of(assignment, inputs, log)
    figures = compared(plan, candidate, _live(assignment, registry, last), data, log, against=assignment.against)
    if not figures.held_out:
        raise InvalidInput(f"no event of {plan.model}'s last round is held out, so there is nothing to judge by")
    return figures


def compared(
    plan: RoundPlan, candidate: Answering, parent: Answering | None, data: RoundData, log: EventLog, *, against: int
) -> Figures:
    """Both on what the plan's round holds out, as the round itself measures them. against: the parent's number."""
    measured = measure(
        candidate,
        parent,
        data,
        FeatureCounts(data.definition, {}, {}),
        set_aside={},
        left_out=None,
        check_stop=lambda: None,
        window=window.Window.of(plan, data, log, window.Kept()),
    )
    metrics = {side: finite(measured.metrics[side]) for side in ("candidate", "parent")}
    gate = data.definition.gate.to_mapping()
    return Figures(against, gate, metrics, finite(measured.evaluation), measured.held_out_count)


def _live(assignment: RoundAssignment, registry: RoundRegistry, last: Answering) -> Answering:
    """The version that the candidate is compared with; it may have been made elsewhere as well."""
    plan, number, work_dir = assignment.plan, assignment.against, Path(assignment.work_dir)
    if number == assignment.round.version:
        return last
    version = registry.get_version(plan.model, number)
    if PUSHED in version.environment:
        return _external(fetched(registry, version.files, work_dir / "live"), last)
    return version_of(registry, plan.model, number, assignment, work_dir)[0].built()


def _external(directory: Path, like: Answering) -> ExternalModel:
    return ExternalModel(directory, like.definition, like.schema, like.heads, like)


def finite(found: Any) -> Any:
    """JSON has no word for a number that is none: left out of a mapping, null in a list."""
    if isinstance(found, Mapping):
        return {key: finite(value) for key, value in found.items() if not _is_none(value)}
    if isinstance(found, list | tuple):
        return [finite(value) for value in found]
    return None if _is_none(found) else found


def _is_none(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def fetched(registry: RoundRegistry, files: Sequence[FileEntry], directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    registry.download([entry for entry in files if entry.path.startswith(_FOLDER)], directory)
    return directory / _FOLDER
