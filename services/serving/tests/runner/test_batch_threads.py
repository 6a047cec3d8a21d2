"""Several batches of one version at a time, in the runner's real loop and queue, with a model in Python."""

import threading

import numpy as np
import pytest

from services.serving.batching.merge import Batcher
from services.serving.options.model_options import BatchingOptions
from services.serving.queue.runner_queue import RunnerQueue
from services.serving.runner.batch_threads import BatchThreads
from services.serving.runner.control import Assignment
from services.serving.runner.process import Runner
from services.serving.tests.support.queue_asker import Asker, request
from services.serving.tests.support.recording_model import RecordingModel, rows
from services.serving.wire.keys import DEFAULT_TARGET
from services.serving.wire.prediction import Arrays, read_tensor
from testing.redis_server import RedisServer
from testing.waiting import wait_until

WAIT_SECONDS = 60.0


class MeetingModel(RecordingModel):
    """A call ends only when as many calls as it was told to expect run at the same time."""

    def __init__(self, calls_at_once: int) -> None:
        super().__init__()
        self.meeting = threading.Barrier(calls_at_once, timeout=WAIT_SECONDS)

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        self.meeting.wait()
        return super().run(signature, inputs, output_filter)


class BrokenModel(RecordingModel):
    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        raise ZeroDivisionError


class ThreadedRunner:
    """A runner's loop in a thread of the test, reading the queue of production."""

    def __init__(self, url: str, model: RecordingModel, count: int) -> None:
        self.assignment = Assignment()
        options = BatchingOptions(max_batch_size=2, num_batch_threads=count, enable_large_batch_splitting=True)
        self.batcher = Batcher(model, version=1, options=options)
        self._queue = RunnerQueue(url, model="m", runner_id="r")
        threads = BatchThreads(count, self.assignment, make_queue=lambda: RunnerQueue(url, model="m", runner_id="r"))
        threads.start()
        self._threads = threads
        self._runner = Runner(self._queue, {1: self.batcher}, self.assignment, linger_seconds=0.0, threads=threads)
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.assignment.want({DEFAULT_TARGET: 1})
        self._thread.start()

    def _run(self) -> None:
        try:
            self._runner.run()
        except Exception as error:
            self.error = error

    def leave(self) -> None:
        self.assignment.leave()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        self._threads.stop()
        self._queue.close()


@pytest.mark.covers("srv-batch-inter")
def test_as_many_batches_run_at_once_as_there_are_threads(redis_server: RedisServer, asker: Asker) -> None:
    asker.enqueue(*(request(str(index).encode(), rows(index)) for index in range(6)))
    runner = ThreadedRunner(redis_server.url, MeetingModel(3), 3)
    replies = asker.wait_for(*(str(index).encode() for index in range(6)))
    assert [read_tensor(reply.outputs[0]).tolist() for reply in replies] == [[[2.0 * index]] for index in range(6)]
    assert runner.batcher.report()["batches"] == 3
    runner.leave()
    assert asker.queue_length() == 0
    assert not asker.answered_twice


def test_the_parts_of_a_request_run_at_once_and_become_one_answer(redis_server: RedisServer, asker: Asker) -> None:
    asker.enqueue(request(b"a", rows(1)), request(b"b", rows(2, 3, 4, 5, 6)))
    runner = ThreadedRunner(redis_server.url, MeetingModel(3), 3)
    whole = asker.wait_for(b"a", b"b")[1]
    assert read_tensor(whole.outputs[0]).tolist() == [[4], [6], [8], [10], [12]]
    runner.leave()
    assert asker.queue_length() == 0
    assert not asker.answered_twice


def test_a_runner_that_leaves_finishes_the_batches_that_run(redis_server: RedisServer, asker: Asker) -> None:
    model = MeetingModel(2)
    runner = ThreadedRunner(redis_server.url, model, 2)
    asker.enqueue(request(b"a", rows(1)))
    wait_until(lambda: model.meeting.n_waiting == 1, "the batch runs")
    assert runner.assignment.busy_since > 0
    runner.assignment.leave()
    model.meeting.wait()
    asker.wait_for(b"a")
    runner.leave()
    assert runner.assignment.busy_since == 0
    assert asker.queue_length() == 0


def test_answers_of_threads_survive_a_redis_that_dies_meanwhile(redis_server: RedisServer, asker: Asker) -> None:
    model = MeetingModel(2)
    runner = ThreadedRunner(redis_server.url, model, 2)
    asker.enqueue(request(b"before", rows(1)))
    wait_until(lambda: model.meeting.n_waiting == 1, "the batch runs")
    redis_server.kill()
    redis_server.start()
    model.meeting.wait()
    model.meeting = threading.Barrier(1)
    assert asker.ask_again(request(b"after", rows(1))).error_code == 0
    assert read_tensor(asker.wait_for(b"before")[0].outputs[0]).tolist() == [[2.0]]
    runner.leave()


def test_something_unforeseen_in_a_thread_ends_the_runner(redis_server: RedisServer, asker: Asker) -> None:
    runner = ThreadedRunner(redis_server.url, BrokenModel(), 2)
    asker.enqueue(request(b"a", rows(1)))
    wait_until(lambda: runner.error is not None, "the loop ends")
    assert isinstance(runner.error, RuntimeError)
    assert isinstance(runner.error.__cause__, ZeroDivisionError)
