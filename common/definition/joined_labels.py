"""Whether rounds learn labels that come after their events (section `labels`).

labels: {late: train}   # or leave_out: what becomes of a label that comes later than the stream waits for it
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
    """

    trains_late: bool = False


def parse_joined_labels(section: object) -> JoinedLabels | None:
    """None: rounds learn the labels that events bring. Raises InvalidInput."""
    if section is None:
        return None
    fields = Fields("labels", section)
    trains_late = fields.choice("late", LATE, "leave_out") == "train"
    fields.finish()
    return JoinedLabels(trains_late)


def check_joined_labels(labels: JoinedLabels | None, schema: Schema, *, place: str) -> None:
    if labels is not None and schema.late_labels is None:
        raise InvalidInput(
            f"{place}: labels needs a stream whose labels come late: late_labels: {{key: FEATURE, wait_seconds: N}} in "
            "stream.yaml"
        )
