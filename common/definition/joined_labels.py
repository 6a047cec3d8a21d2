"""Whether rounds learn labels that come after their events (section `labels`).

labels: {late: train, late_weight: 0.5}   # or leave_out: what becomes of a label that comes later than the stream waits
"""

from dataclasses import dataclass

from common.definition.fields import Fields
from common.errors import InvalidInput
from common.schema import Schema

LATE = ("leave_out", "train")


@dataclass(frozen=True)
class JoinedLabels:
    """An event is in no round before the stream's wait for its labels is over, and is learned with those in time.

    Attributes:
        trains_late: whether an event whose label came later, up to twice the wait, is learned with it by a later round.
        late_weight: by which the weight of such an event is multiplied.
    """

    trains_late: bool = False
    late_weight: float = 1.0


def parse_joined_labels(section: object) -> JoinedLabels | None:
    """None: rounds learn the labels that events bring. Raises InvalidInput."""
    if section is None:
        return None
    fields = Fields("labels", section)
    trains_late = fields.choice("late", LATE, "leave_out") == "train"
    late_weight = fields.number("late_weight", JoinedLabels.late_weight, minimum=0.0)
    fields.finish()
    if late_weight != JoinedLabels.late_weight and not trains_late:
        raise InvalidInput("labels: late_weight is of late: train, which learns late labels")
    if not late_weight:
        raise InvalidInput("labels: late_weight is 0, so nothing would be learned; late: leave_out counts late labels")
    return JoinedLabels(trains_late, late_weight)


def check_joined_labels(labels: JoinedLabels | None, schema: Schema, *, place: str) -> None:
    if labels is not None and schema.late_labels is None:
        raise InvalidInput(
            f"{place}: labels needs a stream whose labels come late: late_labels: {{key: FEATURE, wait_seconds: N}} in "
            "stream.yaml"
        )
    if labels is not None and labels.late_weight != JoinedLabels.late_weight and schema.weight is None:
        raise InvalidInput(
            f"{place}: labels: late_weight multiplies an event's weight, and stream.yaml names none (weight: FEATURE)"
        )
