"""Events of a round that could not be used: what its version says of them, and what becomes of them."""

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from common.errors import HeadraceError
from common.eventlog.dead_letters import MAX_PAYLOAD_BYTES
from common.eventlog.topics import examples_topic
from common.facts import present
from common.registry.catalog import RoundPlan
from services.trainer.data.dataset import Reading, places_of
from services.trainer.protocol.calls import Place
from services.trainer.rounds.outside import RoundRegistry

logger = logging.getLogger(__name__)
_NAMED_REASONS, _SAMPLES, _MAX_REASON = 20, 5, 300


@dataclass(frozen=True)
class Unusable:
    """Attributes:
    events: (serialized, as the model sees it; reason).
    places: of those that lie in the range, in the order of the log.
    at: "partition:offset" of the first of equal events.
    """

    events: Sequence[tuple[bytes, str]]
    places: Sequence[Place]
    at: Mapping[bytes, str]

    @classmethod
    def of(cls, events: Sequence[tuple[bytes, str]], log: Reading, plan: RoundPlan) -> Self:
        """Reads the range again, where there are events; `log`: as the model sees it."""
        reasons, at, places = dict[bytes, deque[str]](), dict[bytes, str](), list[Place]()
        for example, reason in events:
            reasons.setdefault(example, deque()).append(reason)
        wanted = (example for example, _ in events)
        for example, place in places_of(log, examples_topic(plan.stream), plan.ranges, wanted):
            at.setdefault(example, f"{place[0]}:{place[1]}")
            places.append(Place(*place, reasons[example].popleft()))
        return cls(events, sorted(places), at)

    def facts(self) -> dict[str, Any]:
        """VersionDraft.unusable: the most frequent reasons with their counts, the rest together, and a few samples.

        A sample says where its event lies in the log; `without_payload` counts those too large for a dead letter.
        """
        if not self.events:
            return {}
        counted = Counter(reason[:_MAX_REASON] for _, reason in self.events)
        named = dict(counted.most_common(_NAMED_REASONS))
        rest = counted.total() - sum(named.values())
        samples = [
            {"reason": reason[:_MAX_REASON], "bytes": len(example), "at": self.at.get(example, "")}
            for example, reason in self.events[:_SAMPLES]
        ]
        too_large = sum(len(example) > MAX_PAYLOAD_BYTES for example, _ in self.events)
        return {
            "reasons": named | ({"other reasons": rest} if rest else {}),
            "samples": samples,
            **present(without_payload=too_large or None),
        }

    def set_aside(self, registry: RoundRegistry, plan: RoundPlan) -> None:
        """A crash before this leaves them unwritten; the version counts them."""
        named = {"model": plan.model, "stream": plan.stream}
        try:
            missing = len(self.places) - registry.set_aside(self.places)
        except HeadraceError as error:
            logger.warning("no dead letters", extra=named | {"error": error.message})
            return
        if missing:
            logger.warning("unusable events without a dead letter", extra=named | {"count": missing})
