"""The queue that answers a request: the routes of served versions, and the refusals for others.

A route stands for a target of a model, a version or an alias, and names the version that is behind it just now.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from common.access.principal import PREDICT, may_know
from common.registry.catalog import CANARY
from common.suggestions import did_you_mean
from services.serving.front.split import Caller, is_canarys
from services.serving.options.model_priorities import ModelPriority, Priorities
from services.serving.queue.client import Queue
from services.serving.wire.codes import Code
from services.serving.wire.keys import DEFAULT_TARGET, alias_of_target, alias_target, version_target
from services.serving.wire.prediction import RequestFailed, invalid, meant_signature
from services.serving.wire.replica_state import ReplicaState, ServingState, Signature, Split, VersionState


@dataclass(frozen=True)
class Route:
    """Where requests for one target of a model go, and the inputs of the version behind it."""

    queue: Queue
    version: VersionState

    @property
    def alias(self) -> str:
        """ "" where it is of a version by its number."""
        return alias_of_target(self.queue.target)

    def signature(self, name: str) -> Signature | None:
        return self.version.signatures.get(name)

    def meant(self, name: str) -> str:
        return meant_signature(self.version.signatures, name)


class NotLoaded(RequestFailed):
    """A request has the model loaded; it may wait for that (cold_models.py)."""


class Routing:
    """The replica's versions by its manager's last state; belongs to a front."""

    def __init__(self, namespace: str = "", *, priorities: Priorities = MappingProxyType({})) -> None:
        self._namespace = namespace
        self._priorities = priorities
        self._default_target = DEFAULT_TARGET
        self.routes: Mapping[tuple[str, str], Route] = {}
        """By (model, target)."""
        self._queues: dict[tuple[str, str], Queue] = {}
        self.state: ReplicaState | None = None
        """The manager's last snapshot."""
        self.splits: Mapping[str, Split] = {}
        """By model; of models whose canary is being judged."""

    @property
    def queues(self) -> Collection[Queue]:
        """Those of all routes."""
        return self._queues.values()

    def update(self, state: ReplicaState) -> None:
        """Takes the manager's snapshot.

        A route whose runner just went away is kept while the registry still has its target: requests queue up until
        the next runner is there, and the queue itself refuses them when none has been there for some seconds.
        """
        routes: dict[tuple[str, str], Route] = {}
        for version in state.versions:
            if version.state is ServingState.AVAILABLE:
                labels = (label for label in version.aliases if not _is_dropped(version.model, label, state))
                for target in (version_target(version.version), *map(alias_target, labels)):
                    known = routes.get((version.model, target))
                    if known is None or known.version.version < version.version:
                        routes[version.model, target] = Route(self._queue(version.model, target), version)
        cold = {version.model for version in state.versions if version.is_cold}
        kept = {key: route for key, route in self.routes.items() if key[0] not in cold and _is_expected(key, state)}
        self.routes = kept | routes
        self._queues = {key: queue for key, queue in self._queues.items() if key in self.routes}
        for route in self.routes.values():
            route.queue.limit = route.queue.load.follow(route.version.options)
            route.queue.turns.follow(at_once=route.queue.load.at_once, runners=route.queue.runners)
        self._default_target = alias_target(state.default_alias)
        self.state, self.splits = state, state.splits

    def _queue(self, model: str, target: str) -> Queue:
        queue = self._queues.get((model, target))
        if queue is None:
            queue = self._queues[model, target] = Queue(model, target, namespace=self._namespace)
            queue.load.priority = self._priorities.get(model, ModelPriority.NORMAL)
        return queue

    def resolve(
        self, model: str, *, version: int | None = None, label: str | None = None, caller: Caller | None = None
    ) -> Route:
        """The route of a request; `caller` where a canary may have a share of them. Raises RequestFailed: in TensorFlow
        Serving's words where it has some: NOT_FOUND for a model or version nobody has, INVALID_ARGUMENT for a label
        nobody has, UNAVAILABLE for a version that is not there yet."""
        route = self.find(model, version, label, caller)
        if route is None:
            raise self._missing(model, version, label)
        return route

    def find(self, model: str, version: int | None, label: str | None, caller: Caller | None = None) -> Route | None:
        """The same, or None."""
        if label is not None:
            target = alias_target(label)
        elif version is not None:
            target = version_target(version)
        else:
            split = self.splits.get(model)
            if caller is not None and split is not None and is_canarys(split, model, caller):
                route = self.routes.get((model, alias_target(CANARY)))
                if route is not None and route.version.version == split.version:
                    return route
            target = self._default_target
        return self.routes.get((model, target))

    def _missing(self, model: str, version: int | None, label: str | None) -> RequestFailed:
        state = self.state
        if state is None:
            return RequestFailed(Code.UNAVAILABLE, "this replica is starting: it does not know its models yet")
        aliases = state.models.get(model, {})
        if self._is_coming(model, version, label):
            return NotLoaded(Code.UNAVAILABLE, f"model {model} is being loaded")
        if state.is_standalone:
            return _missing_folder(model, version, label, aliases)
        wanted = version
        if version is None:
            wanted = aliases.get(label if label is not None else DEFAULT_TARGET.removeprefix("alias/"))
        expected = next((v for v in state.versions if v.model == model and v.version == wanted), None)
        if expected is not None and expected.state is ServingState.END and expected.error_code:
            return RequestFailed(
                Code.UNAVAILABLE, f"version {wanted} of model {model} could not be loaded: {expected.error_message}"
            )
        is_coming = expected is not None and expected.state is not ServingState.END
        if is_coming or (version is None and wanted is not None):
            return RequestFailed(Code.UNAVAILABLE, f"version {wanted} of model {model} is being loaded")
        if not state.models and any(state.conditions.values()):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in state.conditions.items() if reason)
            return RequestFailed(Code.UNAVAILABLE, f"this replica does not know its models yet ({reasons})")
        if label is not None:
            near = did_you_mean([label], aliases)
            return invalid(f"Unrecognized servable version label: {label}{near}")
        wanted_version = f"Latest({model})" if version is None else f"Specific({model}, {version})"
        not_found = f"Servable not found for request: {wanted_version}"
        if version is None and model in state.models:
            return RequestFailed(Code.NOT_FOUND, f"{model} has no live version yet ({not_found})")
        near = did_you_mean([model], filter(may_know(PREDICT), state.models)) if model not in state.models else ""
        return RequestFailed(Code.NOT_FOUND, not_found + near)

    def _is_coming(self, model: str, version: int | None, label: str | None) -> bool:
        state = self.state
        assert state is not None
        aliases = state.models.get(model, {})
        wanted = aliases.get(label or state.default_alias) if version is None or label is not None else version
        return any(found.version == wanted for found in self.on_demand(model))

    def on_demand(self, model: str) -> list[VersionState]:
        """Versions that are loaded, or will be on demand; none where all models are loaded."""
        if self.state is None or self.state.memory is None:
            return []
        return [v for v in self.state.versions if v.model == model and v.state is not ServingState.END]

    def knows(self, model: str) -> bool:
        """Whether the replica has the model at all, so that it may have counters of its own."""
        return self.state is not None and model in self.state.models


def _is_expected(key: tuple[str, str], state: ReplicaState) -> bool:
    """Whether the registry has the target, so that a runner for it will be there again."""
    model, target = key
    kind, _, name = target.partition("/")
    if kind != "alias":
        return _is_coming(model, name, state)
    version = state.models.get(model, {}).get(name)
    return version is not None and (not state.is_standalone or _is_coming(model, str(version), state))


def _is_dropped(model: str, label: str, state: ReplicaState) -> bool:
    """Whether a configuration took the label away, though a runner still reads its queue for a moment."""
    is_label = state.is_standalone and label != state.default_alias
    return is_label and label not in state.models.get(model, {})


def _is_coming(model: str, version: str, state: ReplicaState) -> bool:
    """Whether the version is there or comes back. A registry may return to a version that leaves."""
    gone = (ServingState.END, ServingState.UNLOADING) if state.is_standalone else (ServingState.END,)
    return any(v.model == model and str(v.version) == version and v.state not in gone for v in state.versions)


def _missing_folder(model: str, version: int | None, label: str | None, aliases: Mapping[str, int]) -> RequestFailed:
    """TensorFlow Serving's words: an unavailable version is not found, whatever the reason."""
    if label is not None and label not in aliases:
        return invalid(f"Unrecognized servable version label: {label}")
    wanted = version if label is None else aliases[label]
    wanted_version = f"Latest({model})" if wanted is None else f"Specific({model}, {wanted})"
    return RequestFailed(Code.NOT_FOUND, f"Servable not found for request: {wanted_version}")
