"""Is a version what its lineage says? Train it again from the plan, compare weight by weight, say what differs.

Nothing is leased, registered or saved; files go to the assignment's own folder and are fetched from the registry
anew, so that a damaged stored file shows.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.counted import counted
from common.errors import DataLoss, InvalidInput, NotFound
from common.eventlog.base import EventLog
from common.eventlog.topics import examples_topic
from common.registry.catalog import FileEntry, OffsetRange, Version, VersionStatus
from common.registry.forgotten import read_ranges
from common.registry.plan_notes import without_notes
from services.trainer.features.statistics import Arrays
from services.trainer.learn import checkpoint
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.plan import lineage
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.protocol.messages import Rebuilt
from services.trainer.rounds import environment
from services.trainer.rounds.outside import RoundRegistry
from services.trainer.rounds.parameter_servers import section_of

_MOST_DIFFERENCES = 20
TrainAgain = Callable[[], tuple[Checkpoint, int]]
"""The final checkpoint and how many examples it was trained on. Raises the six."""
Measure = Callable[[], Mapping[str, float]]
"""Metrics of what was trained, on the held-out events. Raises DataLoss: the log no longer has those of its window."""


def compare(
    assignment: RoundAssignment,
    train_again: TrainAgain,
    measure: Measure,
    *,
    here: Mapping[str, Any],
    registry: RoundRegistry,
    log: EventLog,
) -> Rebuilt:
    """Trains only when the whole lineage is there, and measures on what the version was judged on. A version that was
    trained asynchronously is judged by these metrics, not by its weights. Equal weights with other metrics are a
    warning. Raises Unavailable, Overloaded: the log or the registry is away; nothing is known then."""
    plan = assignment.plan
    version = registry.get_version(plan.model, assignment.rebuild_of)
    warnings = (*environment.differences(version.environment, here), *_code_difference(version))
    try:
        ancestors = thinned_ancestors(version, registry)
    except NotFound as error:
        return Rebuilt("", missing=(f"an ancestor is not in the registry: {error.message}",), warnings=warnings)
    warnings = (*_trained_first(ancestors), *warnings)
    if version.forgotten_at:
        warnings = ("it, or an ancestor, learned events that were forgotten since; this rebuild read them", *warnings)
    ranges = [*(piece for ancestor in ancestors for piece in ancestor.ranges), *read_ranges(plan)]
    missing = (*_not_as_planned(assignment, version), *_gone_records(assignment, log, ranges))
    if missing:
        return Rebuilt("", missing=missing, warnings=warnings)
    try:
        rebuilt, events_trained = train_again()
    except (DataLoss, NotFound, InvalidInput) as error:
        return Rebuilt("", missing=(error.message,), warnings=warnings)
    digest = checkpoint.weights_digest(rebuilt.arrays)
    stored, damage, note = _stored(assignment, version, registry)
    metrics, remarks = _metrics_again(version, measure, is_equal=digest == version.weights_digest)
    warnings = (*warnings, *remarks)
    found = list[str]()
    section = section_of(assignment)
    if section:
        judged = [rule.metric for rule in version.verdict.rule.all_rules]
        found += metric_differences(metrics, judged, tolerance=section.tolerance)
    elif digest != version.weights_digest:
        found += variable_differences(stored.arrays, rebuilt.arrays) if stored else []
        found = found or ["the weights digest is another; the stored checkpoint is not there to compare with"]
    if stored and (of_files := checkpoint.weights_digest(stored.arrays)) != version.weights_digest:
        found.append(f"the stored checkpoint's weights have digest {of_files}, the catalog names another")
    if events_trained != version.events_trained:
        trained_on = counted(events_trained, "example")
        found.append(f"it was trained on {trained_on}, the catalog says {version.events_trained}")
    return Rebuilt(digest, events_trained, damage, tuple(found), (*warnings, *note), metrics, section is None)


def _metrics_again(
    version: Version, measure: Measure, *, is_equal: bool
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """{metric: (of the version, of what was trained again)}, and remarks."""
    before = version.metrics.get("candidate", {})
    try:
        found = {name: (before[name], value) for name, value in measure().items() if name in before}
    except DataLoss as error:
        return {}, [error.message]
    differing = [(name, was, now) for name, (was, now) in found.items() if was != now] if is_equal else []
    return found, [f"{name} was {was:.6g} and is {now:.6g} with the same weights" for name, was, now in differing]


def metric_differences(
    metrics: Mapping[str, tuple[float, float]], judged: Sequence[str], *, tolerance: float
) -> list[str]:
    """A sentence for each judged metric whose two values are further apart than a share of the larger; where none of
    them was measured, of every metric."""
    named = [name for name in judged if name in metrics] or [*metrics]
    return [
        f"{name} was {was:.6g} and is {now:.6g}: more than the tolerance of {tolerance:g} apart"
        for name, (was, now) in ((name, metrics[name]) for name in named)
        if not abs(was - now) <= tolerance * max(abs(was), abs(now))
    ]


def variable_differences(stored: Arrays, rebuilt: Arrays) -> list[str]:
    """A sentence per variable that is not bit-equal, the first twenty; then how many more."""
    differences = [f"{path} is only in the stored version" for path in sorted(stored.keys() - rebuilt.keys())]
    differences += [f"{path} is only in the rebuilt version" for path in sorted(rebuilt.keys() - stored.keys())]
    for path in sorted(stored.keys() & rebuilt.keys()):
        difference = _difference(np.asarray(stored[path]), np.asarray(rebuilt[path]))
        differences += [f"{path} {difference}"] if difference else []
    more = len(differences) - _MOST_DIFFERENCES
    return differences if more <= 0 else [*differences[:_MOST_DIFFERENCES], f"and {more} more variables differ"]


def _difference(stored: NDArray[Any], rebuilt: NDArray[Any]) -> str:
    if (stored.dtype, stored.shape) != (rebuilt.dtype, rebuilt.shape):
        return f"was {stored.dtype} {stored.shape} and is {rebuilt.dtype} {rebuilt.shape}"
    if stored.tobytes() == rebuilt.tobytes():
        return ""
    unequal = int(np.count_nonzero(stored != rebuilt))
    text = f"differs in {unequal} of {stored.size} values"
    if stored.dtype.kind in "fiu" and unequal:
        largest = np.max(np.abs(stored.astype(np.float64) - rebuilt.astype(np.float64)))
        text += f", by {largest:.3g} at most"
    return text


def _code_difference(version: Version) -> tuple[str, ...]:
    if version.code_digest in ("", lineage.code_digest()):
        return ()
    return (f"the trainer's code or libraries are not those of the version (code digest {version.code_digest[:12]})",)


def _not_as_planned(assignment: RoundAssignment, version: Version) -> tuple[str, ...]:
    """Where the version and the round it names contradict each other."""
    plan = assignment.plan
    pairs = {
        "parent version": (version.parent_version, plan.parent_version),
        "ranges": (version.ranges, plan.ranges),
        "definition": (version.definition_digest, plan.definition_digest),
        "schema version": (version.schema_version, plan.schema_version),
        "seed": (version.seed, plan.seed),
    }
    if version.configuration_digest:
        pairs["configuration"] = (version.configuration_digest, lineage.digest_of(without_notes(plan.configuration)))
    return tuple(
        f"the version's {name} is {of_version}, its round's plan says {of_plan}"
        for name, (of_version, of_plan) in pairs.items()
        if of_version != of_plan
    )


def _gone_records(assignment: RoundAssignment, log: EventLog, ranges: Sequence[OffsetRange]) -> tuple[str, ...]:
    topic = examples_topic(assignment.plan.stream)
    try:
        start, end = log.start_position(topic), log.end_position(topic)
    except NotFound:
        return (f"the event log has no topic {topic}",)
    gone = list[str]()
    for piece in ranges:
        name = f"{topic}, partition {piece.partition}"
        if piece.from_offset < start.get(piece.partition, 0):
            gone.append(f"retention has removed records {piece.from_offset} to {start[piece.partition] - 1} of {name}")
        if piece.to_offset > end.get(piece.partition, 0):
            gone.append(f"{name} ends before record {piece.to_offset - 1}; is this the log it was trained from?")
    return tuple(gone)


def thinned_ancestors(version: Version, registry: RoundRegistry) -> list[Version]:
    """Those without files between the version and its nearest ancestor with files, oldest first. Raises NotFound."""
    found = list[Version]()
    number = version.parent_version
    while number:
        ancestor = registry.get_version(version.model, number)
        if ancestor.status is not VersionStatus.ARCHIVED:
            break
        found.append(ancestor)
        number = ancestor.parent_version
    return found[::-1]


def _trained_first(ancestors: Sequence[Version]) -> tuple[str, ...]:
    """What is trained beside the version itself, from which ancestor and over which records."""
    if not ancestors:
        return ()
    first, last = ancestors[0], ancestors[-1]
    starts, ends = dict[int, int](), dict[int, int]()
    for piece in (piece for ancestor in ancestors for piece in ancestor.ranges):
        starts[piece.partition] = min(starts.get(piece.partition, piece.from_offset), piece.from_offset)
        ends[piece.partition] = max(ends.get(piece.partition, 0), piece.to_offset)
    base = f"version {first.parent_version}, the nearest ancestor with files" if first.parent_version else "nothing"
    count = counted(len(ancestors), "thinned version")
    records = ", ".join(f"{partition}: {starts[partition]} to {ends[partition]}" for partition in sorted(starts))
    named = f"{count}, {first.version} to {last.version} (records {records})"
    return (f"{named}, must be trained again first, from {base}",)


def _stored(
    assignment: RoundAssignment, version: Version, registry: RoundRegistry
) -> tuple[Checkpoint | None, tuple[str, ...], tuple[str, ...]]:
    """The version's own checkpoint, or what is wrong with it, or a note why it need not be there."""
    directory = Path(assignment.work_dir) / "stored"
    if version.thinned_by or not _checkpoint_files(version):
        return None, (), ("the version is thinned: its files are removed, only its digest was compared",)
    try:
        registry.download(_checkpoint_files(version), directory)
        return checkpoint.read(directory), (), ()
    except (DataLoss, NotFound) as error:
        if version.status is VersionStatus.ARCHIVED:
            return None, (), ("the version is archived: its files are removed, only its digest was compared",)
        return None, (f"the stored checkpoint: {error.message}",), ()


def _checkpoint_files(version: Version) -> list[FileEntry]:
    return [entry for entry in version.files if entry.path.startswith("checkpoint/")]
