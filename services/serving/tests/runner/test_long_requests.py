"""A request of many calls of the model holds up nobody, in the runner's real loop and queue, with a model in Python."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from services.serving.batching.merge import Batcher
from services.serving.options.model_options import BatchingOptions
from services.serving.queue.runner_queue import RunnerQueue
from services.serving.runner.control import Assignment
from services.serving.runner.process import Runner
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.recording_model import RecordingModel, rows
from services.serving.wire.keys import DEFAULT_TARGET
from services.serving.wire.prediction import Arrays, read_tensor
from testing.redis_server import RedisServer

WAIT_SECONDS = 60.0
_LONG = 3 * 16_384


class InterruptedModel(RecordingModel):
    """Something happens in its first call."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self._happens = happens

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        if not self.calls:
            self._happens()
        return super().run(signature, inputs, output_filter)


@pytest.mark.parametrize("splits", [None, True])
def test_what_comes_while_a_long_request_runs_is_answered_between_its_calls(
    redis_server: RedisServer, splits: bool | None
) -> None:
    asker = Asker(redis_server.url, "m")
    late = Asker(redis_server.url, "m")
    model = InterruptedModel(
        lambda: late.enqueue(request(b"long, too", rows(*range(_LONG))), request(b"short", rows(7)))
    )
    options = BatchingOptions(max_batch_size=16_384, enable_large_batch_splitting=splits)
    queue, assignment = RunnerQueue(redis_server.url, model="m", runner_id="r"), Assignment()
    runner = Runner(queue, {1: Batcher(model, version=1, options=options)}, assignment, linger_seconds=0.0)
    assignment.want({DEFAULT_TARGET: 1})
    asker.enqueue(request(b"long", rows(*range(_LONG))))
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    replies = dict(zip((b"long", b"long, too", b"short"), asker.wait_for(b"long", b"long, too", b"short"), strict=True))
    assert list(asker.answers) == [b"short", b"long", b"long, too"]
    assert [len(call) for call in model.calls] == [16_384, 1, 16_384, 16_384, 16_384, 16_384, 16_384]
    assert read_tensor(replies[b"short"].outputs[0]).tolist() == [[14.0]]
    for name in (b"long", b"long, too"):
        assert np.array_equal(read_tensor(replies[name].outputs[0]).ravel(), 2.0 * np.arange(_LONG, dtype=np.float32))
    assignment.leave()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    queue.close()
    assert asker.queue_length() == 0
    assert not asker.answered_twice
