"""What a version's way into a replica looks like in a trace."""

from common.process.tracing import Tracing, open_tracing
from services.serving.front.load_trace import LoadTrace
from services.serving.tests.support.replica_states import replica_state, version
from services.serving.wire.replica_state import LoadAttempt, ReplicaState, ServingState, decode, encode


def told(tracing: Tracing) -> list[tuple[str, float, str]]:
    return [(span["name"], round(span["seconds"], 3), span["error"]) for span in tracing.kept("m@3")]


def test_each_attempt_to_load_a_version_is_told_once_with_its_parts_and_its_error() -> None:
    tracing, updates = open_tracing("serving", 1e-12), list[ReplicaState]()
    trace = LoadTrace(tracing, updates.append)
    began = LoadAttempt(began_at=100.0, fetched_at=102.0)
    failed = LoadAttempt(100.0, 102.0, 103.0, 107.0, "no such op")
    for attempt in (LoadAttempt(), began, failed, failed):
        trace(replica_state(version(3, state=ServingState.LOADING, attempt=attempt)))
    assert told(tracing) == [
        ("fetch the files", 2.0, ""),
        ("load m", 7.0, "no such op"),
        ("load in the runner", 4.0, ""),
    ]
    for _ in range(2):
        trace(decode(encode(replica_state(version(3, attempt=LoadAttempt(110.0, 0.0, 110.0, 115.0))))))
    assert told(tracing)[3:] == [("load in the runner", 5.0, ""), ("load m", 5.0, "")]
    assert len(updates) == 6
    attributes = tracing.kept("m@3")[-1]["attributes"]
    assert (attributes["headrace.version"], attributes["headrace.replica"]) == (3, "replica")
    tracing.close()
