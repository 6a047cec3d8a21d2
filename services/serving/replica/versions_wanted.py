"""Which versions a replica should have loaded, and which runner should read which queue. Pure functions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from services.serving.wire.keys import NEWEST_ALIAS, alias_target, version_target
from services.serving.wire.replica_state import Split

VersionKey = tuple[str, int]
"""(model, version)."""
Models = Mapping[str, Mapping[str, int]]
"""{model: {alias: version}}."""


@dataclass(frozen=True)
class Wanted:
    """The versions that a source wants served."""

    models: Models
    """Every model it knows. Of a registry, the aliases decide which versions are wanted; otherwise they are labels."""
    versions: Mapping[str, Collection[int]] | None = None
    """The versions themselves, where they are not those behind the aliases."""
    served_models: tuple[str, ...] = ()
    """Models to serve of those known; empty: all."""
    splits: Mapping[str, Split] = field(default_factory=dict)
    """As in ReplicaState."""

    def keys(self) -> set[VersionKey]:
        if self.versions is None:
            return wanted_versions(self.models, served_models=self.served_models)
        return {(model, version) for model, versions in self.versions.items() for version in versions}


def labels_of_folders(
    labels: Mapping[str, int], *, aspired: Collection[int], available: Collection[int]
) -> dict[str, int]:
    """{alias: version} of a model from folders: labels of versions that are there, and the newest of those wanted."""
    aliases = {label: version for label, version in labels.items() if version in available}
    newest = max(set(aspired) & set(available) or set(available), default=None)
    return aliases if newest is None else aliases | {NEWEST_ALIAS: newest}


def kept_versions(aspired: Collection[int], available: Collection[int]) -> set[int]:
    """Versions of a model from folders that stay loaded: the wanted, and the no longer wanted until a version that
    is wanted can answer in its place."""
    if not aspired or set(aspired) & set(available):
        return set(aspired)
    return set(aspired) | set(available)


def wanted_versions(models: Models, *, served_models: Collection[str] = ()) -> set[VersionKey]:
    """The versions behind aliases; of every model, or of those named."""
    return {
        (model, version)
        for model, aliases in models.items()
        if not served_models or model in served_models
        for version in aliases.values()
    }


def queue_owners(
    aliases: Mapping[str, int], *, available: Collection[int], readers: Mapping[str, int]
) -> dict[str, int]:
    """The version to answer each queue of a model.

    An alias whose version is not available stays with the version that reads its queue now: a version that cannot be
    loaded takes nothing away.

    Args:
        available: the versions that are loaded and warm.
        readers: {target: version} as it is now.
    """
    owners = {version_target(version): version for version in available}
    for alias, version in aliases.items():
        target = alias_target(alias)
        if version in available:
            owners[target] = version
        elif readers.get(target) in available:
            owners[target] = readers[target]
    return owners


def routes_of(
    assigned: Mapping[str, int], owners: Mapping[str, int], *, held: Collection[int], confirmed: Collection[str]
) -> dict[str, int]:
    """{target: version} for a runner to read. It goes on reading queues that another owns and does not read yet.

    Args:
        assigned: its last assignment.
        held: the versions that it has.
        confirmed: the targets that their owners read.
    """
    awaited = {target: version for target, version in assigned.items() if target in owners and target not in confirmed}
    return dict(sorted((awaited | {target: owner for target, owner in owners.items() if owner in held}).items()))


def answers_for_aliases(version: int, owners: Mapping[str, int]) -> bool:
    """True when the version owns more than the queue under its own number."""
    own_target = version_target(version)
    return any(owner == version and target != own_target for target, owner in owners.items())
