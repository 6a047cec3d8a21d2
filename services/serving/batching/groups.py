"""Requests that share a call of the model: their inputs can be put together along dimension 0."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from protos import queue_pb2
from services.serving.batching.input_contract import InputContract
from services.serving.batching.splitting import SplitRequest, rows_of
from services.serving.options.model_options import BatchingOptions
from services.serving.wire.prediction import Prediction
from services.serving.wire.replica_state import Signature

_MOST_FILLED_VALUES = 1 << 24
"""Of a batch whose requests are filled up to the longest; past it they are faster each alone."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A request as a runner took it from a queue."""

    target: str
    entry_id: bytes
    request: queue_pb2.PredictionRequest


@dataclass(frozen=True, slots=True)
class Answer:
    taken: Taken
    reply: queue_pb2.PredictionReply


@dataclass(slots=True)
class Member:
    """A request of a group; `rows` of it go into the merged batch."""

    taken: Taken
    prediction: Prediction


@dataclass(slots=True)
class Part(Member):
    """Some rows of a request; `prediction` has those alone."""

    whole: SplitRequest
    start: int
    """The first of them."""


@dataclass(slots=True)
class Group:
    members: list[Member] = field(default_factory=list)
    rows: int = 0
    has_parts: bool = False
    largest: tuple[tuple[int, ...], ...] = ()
    """The sizes after the first that each input is filled up to, where any is."""


class Grouping:
    """Of a version. `mergeable`: the signatures whose requests may share a call, as they are then."""

    def __init__(
        self,
        options: BatchingOptions,
        contract: InputContract,
        signatures: Mapping[str, Signature],
        mergeable: Collection[str],
    ) -> None:
        self._options, self._contract, self._signatures = options, contract, signatures
        self._mergeable = mergeable
        # Parts in batches of different inner sizes would have outputs of different sizes.
        self._is_filling = options.enable_large_batch_splitting is not False and not options.pad_variable_length_inputs

    def groups_of(self, members: Sequence[Member], size: int) -> list[Group]:
        """At most `size` rows each, but for a request that has more and is not split."""
        closed: list[Group] = []
        open_groups: dict[tuple[object, ...], Group] = {}
        for member in members:
            prediction = member.prediction
            if prediction.rows < 0 or prediction.signature not in self._mergeable:
                closed.append(Group([member], prediction.rows))
                continue
            # Their dtypes are the signature's; so these can be put together along dimension 0.
            key = (prediction.signature, prediction.output_filter, self._inner_of(prediction))
            group = open_groups.get(key)
            if group is None:
                group = open_groups[key] = Group()
            if not self._widen(group, prediction):
                closed.append(group)
                group = open_groups[key] = Group()
            if group.rows + prediction.rows > size:
                open_groups[key] = self._overflow(closed, group, member, size)
                continue
            group.members.append(member)
            group.rows += prediction.rows
        return closed + list(open_groups.values())

    def _inner_of(self, prediction: Prediction) -> object:
        """The common part of requests that share a call, beside their signature: the sizes after the first, but
        for those that are filled up to the longest."""
        shapes = prediction.trailing_shapes
        if not self._options.pad_variable_length_inputs:
            return shapes
        fillers = self._contract.pads(prediction.signature)
        if fillers is None:
            return tuple(map(len, shapes))
        names = self._signatures[prediction.signature].inputs
        return tuple(len(shape) if name in fillers else shape for name, shape in zip(names, shapes, strict=True))

    def _widen(self, group: Group, prediction: Prediction) -> bool:
        """Whether the request may join the group, with the sizes that the others would be filled up to."""
        if not self._options.pad_variable_length_inputs:
            return True
        shapes = prediction.trailing_shapes
        before = group.largest or (group.members[0].prediction.trailing_shapes if group.members else shapes)
        largest = tuple(tuple(map(max, size, other)) for size, other in zip(before, shapes, strict=True))
        if not before == largest == shapes:
            values = (group.rows + prediction.rows) * sum(map(math.prod, largest))
            if values > _MOST_FILLED_VALUES:
                return False
        group.largest = largest
        return True

    def _overflow(self, closed: list[Group], group: Group, member: Member, size: int) -> Group:
        """Puts in a request that does not fit the open group: where it may be split, its head fills that one. Returns
        the group that is open then."""
        rows = member.prediction.rows
        is_split = self._is_filling and (rows <= size or self._options.splits_large_requests)
        if group.members and not (is_split and group.rows < size):
            closed.append(group)
            group = Group()
        if not is_split or group.rows + rows <= size:
            return Group([member], rows)
        whole, start = SplitRequest(member.prediction), 0
        while start < rows:
            if group.rows == size:
                closed.append(group)
                group = Group()
            stop = min(start + size - group.rows, rows)
            group.members.append(Part(member.taken, rows_of(member.prediction, start, stop), whole, start))
            group.rows += stop - start
            group.has_parts = True
            start = stop
        return group
