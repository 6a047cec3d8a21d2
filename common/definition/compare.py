"""The effect of a changed definition on the learned model, before the change is made.

`compare` needs no TensorFlow and no checkpoint. The trainer's restore obeys the same rule (identity.py), and the
version's lineage says what it did.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from common.counted import counted
from common.definition import identity
from common.definition.features import Quantiles
from common.definition.identity import Axis, VariableMeaning
from common.definition.model import Definition
from common.errors import Conflict
from common.schema import Schema


@dataclass(frozen=True)
class PartChange:
    """Rows of one variable (or of one feature's statistics), counted; `why` says what it rests on."""

    part: str
    kept: int
    moved: int
    new: int
    dropped: int
    why: str = ""

    @property
    def is_change(self) -> bool:
        return bool(self.moved or self.new or self.dropped or self.why)

    def __str__(self) -> str:
        counts = {"kept": self.kept, "moved": self.moved, "new": self.new, "dropped": self.dropped}
        counted = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        return f"{self.part}: {counted or 'nothing learned'}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True)
class Report:
    """Attributes:
    parts: what changes; variables that are carried whole are only counted in `unchanged`.
    needs_restart: layers that cannot be carried and start anew only on request.
    restarted: layers that start new because the definition says so.
    notes: what cannot be known before the round, in sentences.
    """

    parts: tuple[PartChange, ...]
    unchanged: int
    needs_restart: tuple[str, ...]
    restarted: tuple[str, ...]
    notes: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For a person, one change a line."""
        found = [str(part) for part in self.parts]
        found += [f"carried whole: {self.unchanged} other variables"] if self.unchanged else []
        found += [f"starts anew, as asked: {name}" for name in self.restarted]
        found += [f"needs --restart {name}: its width or its inputs changed, no row of it can be carried"
                 for name in self.needs_restart]  # fmt: skip
        return [*found, *self.notes]

    @property
    def refusal(self) -> str:
        """Why the definition cannot be applied as it stands; empty when it can."""
        if not self.needs_restart:
            return ""
        return (
            f"what {', '.join(self.needs_restart)} learned cannot be carried over: the width, the activation or all "
            f"inputs changed; apply with --restart {','.join(self.needs_restart)} (or --restart all) to start it anew"
        )

    def check(self) -> None:
        """Raises Conflict when a layer would have to start anew without permission."""
        if self.needs_restart:
            raise Conflict(self.refusal)


def compare(old: Definition, new: Definition, old_schema: Schema, new_schema: Schema) -> Report:
    """What a round of `new` takes over from a version of `old`."""
    before, after = identity.variables_of(old, old_schema), identity.variables_of(new, new_schema)
    if not before or not after:
        return _of_modules(old, new, _changed_inputs(old_schema, new_schema))
    report = of_variables(before, after, restart=new.restart, has_changed=old != new)
    statistics = [p for p in _statistics(identity.statistics_of(old), identity.statistics_of(new)) if p.is_change]
    notes = tuple(_learned_notes(old, new))
    if old.training.optimizer.name != new.training.optimizer.name:
        before_name, after_name = old.training.optimizer.name, new.training.optimizer.name
        notes += (f"the optimizer's state of {before_name} is dropped, {after_name} starts new",)
    parts = (*report.parts, *statistics)
    return Report(parts, report.unchanged, report.needs_restart, report.restarted, notes)


def of_variables(
    before: Mapping[str, VariableMeaning],
    after: Mapping[str, VariableMeaning],
    *,
    restart: Sequence[str],
    has_changed: bool,
) -> Report:
    """The same for variables whose words are known. A restart counts only where the definition has changed."""
    parts, needs, restarted = list[PartChange](), list[str](), set[str]()
    for path, meaning in after.items():
        old = before.get(path)
        if old is None:
            parts.append(PartChange(path, 0, 0, _learned_rows(meaning.axes[0]), 0, "not in the parent"))
        elif has_changed and identity.is_named(path, restart):
            restarted.add(path.rsplit("/", 1)[0])
        else:
            parts.append(_part(path, old, meaning))
            if _is_lost(old, meaning):
                needs.append(path.rsplit("/", 1)[0].removesuffix("_table"))
    for path, meaning in before.items():
        if path not in after:
            parts.append(PartChange(path, 0, 0, 0, _learned_rows(meaning.axes[0]), "not in the new definition"))
    changes = tuple(part for part in parts if part.is_change)
    return Report(changes, len(parts) - len(changes), tuple(dict.fromkeys(needs)), tuple(sorted(restarted)), ())


def _part(path: str, old: VariableMeaning, new: VariableMeaning) -> PartChange:
    kept, moved = identity.counted(old.axes[0], new.axes[0])
    if not all(sum(identity.counted(*axes)) for axes in zip(old.axes, new.axes, strict=True)):
        kept = moved = 0
    fresh, dropped = (_learned_rows(axis) - kept - moved for axis in (new.axes[0], old.axes[0]))
    return PartChange(path, kept, moved, fresh, dropped, _why(old, new))


def _why(old: VariableMeaning, new: VariableMeaning) -> str:
    gone, come = ({run.label for run in meaning.axes[0] if run.label[0] != "spare"} for meaning in (old, new))
    reasons = [f"{' '.join(label)[:80]} is new" for label in sorted(come - gone)[:3]]
    reasons += [f"{' '.join(label)[:80]} is gone" for label in sorted(gone - come)[:3]]
    if len(old.axes) > 1 and old.axes[1] != new.axes[1]:
        reasons.append(f"{counted(old.shape[1], 'column')} before, {new.shape[1]} now")
    return ", ".join(reasons)


def _is_lost(old: VariableMeaning, new: VariableMeaning) -> bool:
    """A layer or table of which nothing can be carried although it is to go on, other than for another question."""
    is_carried = [sum(identity.counted(*axes)) > 0 for axes in zip(old.axes, new.axes, strict=True)]
    if new.is_kernel:
        is_output = new.axes[1][0].label[0] in ("output", "class")
        return not is_carried[0] or (not is_output and not is_carried[1])
    has_width = len(new.axes) == 2 and new.axes[1][0].label == ("dimension",)
    return has_width and not is_carried[1]


def _learned_rows(axis: Axis) -> int:
    return sum(run.count for run in axis if run.label[0] != "spare")


def _statistics(old: Mapping[str, str], new: Mapping[str, str]) -> list[PartChange]:
    found = identity.carried_statistics({name: name for name in old}, old, new)
    parts = []
    for name, about in new.items():
        source = found.get(name)
        if source is None:
            why = f"{about} instead of {old[name]}" if name in old else f"{about} were not collected before"
            parts.append(PartChange(f"statistics of {name}", 0, 0, 1, 0, why))
        elif source != name:
            parts.append(PartChange(f"statistics of {name}", 0, 1, 0, 0, f"from {source}: {about}"))
    gone = sorted(set(old) - set(new) - set(found.values()))
    return [*parts, *(PartChange(f"statistics of {name}", 0, 0, 0, 1) for name in gone)]


def _learned_notes(old: Definition, new: Definition) -> list[str]:
    notes = []
    about_old, about_new = identity.statistics_of(old), identity.statistics_of(new)
    for name, spec in new.features.items():
        before = old.features.get(name)
        if Quantiles in (type(spec), type(before)) and about_old.get(name) != about_new.get(name):
            notes.append(f"feature {name}: a bucket whose interval stays keeps its rows; the version says how many")
            continue
        learned_before = about_old.get(name, "").startswith("words of")
        learned_now = about_new.get(name, "").startswith("words of")
        if before is None or learned_before == learned_now or type(before) is not type(spec) or before.of != spec.of:
            continue
        notes.append(
            f"feature {name}: each word that was {'learned' if learned_before else 'given'} keeps its rows where the "
            f"{'given' if learned_before else 'learned'} words have it; the version says how many"
        )
    return notes


def _of_modules(old: Definition, new: Definition, inputs: Sequence[str]) -> Report:
    if (old.module is None) != (new.module is None):
        note = "an estimator and a module share no variables: unless names and shapes agree, everything starts new"
    elif old.trees or new.trees:
        note = (
            "trees are carried as a whole where columns and answers stay as they are; otherwise the round fails unless "
            "it is applied with --restart trees"
        )
    else:
        note = (
            "what a module's layers learned about an input's columns moves with the input, of a new input it starts "
            "new; all else is carried by path and shape, and a layer whose shape changed fails the round unless it is "
            "named in --restart; the version says what was kept, moved, new and dropped"
        )
    restarted = new.restart if old != new else ()
    parts = _statistics(identity.statistics_of(old), identity.statistics_of(new))
    return Report(tuple(part for part in parts if part.is_change), 0, (), restarted, (note, *inputs))


def _changed_inputs(old: Schema, new: Schema) -> list[str]:
    """What a module that takes every feature of its stream gets from now on, in sentences."""
    before, after = ({feature.name: feature.shape for feature in schema.features} for schema in (old, new))
    return [
        f"feature {name} of the stream {'is new' if name not in before else 'has another shape'} since the parent"
        for name, shape in after.items()
        if name not in before or before[name] != shape
    ]
