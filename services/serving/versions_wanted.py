"""Which versions a replica should have loaded, and which runner should read which queue. Pure functions."""

from collections.abc import Collection, Mapping

from services.serving.queue_keys import alias_target, version_target

VersionKey = tuple[str, int]
"""(model, version)."""
Models = Mapping[str, Mapping[str, int]]
"""{model: {alias: version}}."""


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
    """Which version should answer each queue of one model.

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


def answers_for_aliases(version: int, owners: Mapping[str, int]) -> bool:
    """True when the version owns more than the queue under its own number."""
    own_target = version_target(version)
    return any(owner == version and target != own_target for target, owner in owners.items())
