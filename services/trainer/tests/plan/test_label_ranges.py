"""Events wait for their labels, and a plan says which labels its round joins."""

import json
import time

from common.eventlog.base import NewRecord, RecordHeaders
from common.eventlog.tfrecord import frame
from common.registry.catalog import RoundPlan
from common.registry.plan_notes import LABELS
from services.trainer.tests.support.plans import RULE, Plans
from services.trainer.tests.support.platform_processes import MODEL, SCHEMA, STREAM, definition

_NAME = "labelled"


def _use(plans: Plans) -> None:
    """A model whose rounds wait 100 s for labels, of ten events or more."""
    features: list[object] = [{"name": "distance", "dtype": "float32"}, {"name": "id", "dtype": "int64"}]
    late = {"key": "id", "wait_seconds": 100}
    plans.registry.register_stream("slow", json.dumps(SCHEMA | {"features": features, "late_labels": late}))
    text = definition(triggers="{min_examples: 10, cooldown_seconds: 0}", gate=RULE % "retry").decode()
    text = text.replace(f"name: {MODEL}", f"name: {_NAME}").replace(f"stream: {STREAM}", "stream: slow")
    files = {"model.yaml": f"{text}labels: {{late: train}}\n".encode()}
    plans.registry.register_model(_NAME, stream="slow", files=files, by="test")
    for topic in ("examples.slow", "labels.slow"):
        plans.events.log.create_topic(topic, partition_count=1)


def _ranges(found: list[dict[str, int]]) -> list[tuple[int, int]]:
    return [(one["from_offset"], one["to_offset"]) for one in found]


def test_events_wait_for_their_labels_and_the_plan_names_the_labels_that_are_joined(plans: Plans) -> None:
    _use(plans)
    begin = time.time()
    now = [begin]
    plans.begin(lambda: now[0])

    def append(topic: str, *seconds: int) -> None:
        for second in seconds:
            headers = RecordHeaders(1, 5, begin + second, f"{topic} {second:8}".encode()[-16:])
            plans.events.log.append(topic, 0, [NewRecord(frame([b"e"] * 5), headers)])

    def planned(count: int) -> RoundPlan:
        plans.look_again()
        rounds = plans.registry.list_rounds(_NAME)
        assert len(rounds) == count, plans.planner.status()
        return rounds[0].plan

    append("examples.slow", -200, -50)
    append("labels.slow", -500, -190)
    plans.look_again()
    told = next(one for one in plans.planner.status() if one["model"] == _NAME)
    assert told["lag_examples"] == 10
    waits = told["next_round"]["waiting_for"]
    assert (waits.startswith("5 of 10 examples"), waits.endswith("; 5 wait for their labels")) == (True, True), waits
    now[0] = begin + 50
    first = planned(1)
    note = first.configuration[LABELS]
    assert (_ranges([vars(one) for one in first.ranges]), first.example_count) == ([(0, 2)], 10)
    assert _ranges(note["labels"]) == [(1, 2)], "the first is too early for any"
    assert (note["new"], note["events"], note["trains_late"]) == ({"0": 2}, [], True)
    plans.finish(models=[_NAME])

    append("examples.slow", 60, 70)
    append("labels.slow", 80)
    now[0] = begin + 165
    planned(1)
    now[0] = begin + 171
    second = planned(2)
    note = second.configuration[LABELS]
    assert _ranges([vars(one) for one in second.ranges]) == [(2, 4)]
    assert (note["new"], note["ends"]) == ({"0": 2}, {"0": 3})
    assert _ranges(note["events"]) == [(1, 2)], "the label is too late for the first event"
