"""The batch size follows the latency objective: a model of known cost, a queue that is always full, a virtual clock."""

from collections.abc import Callable

import pytest

from services.serving.batching.groups import Taken
from services.serving.batching.merge import Batcher
from services.serving.batching.objective import BatchSizeLimit
from services.serving.options.model_options import BatchingOptions
from services.serving.tests.support.queue_asker import request
from services.serving.tests.support.recording_model import SECOND, RecordingModel, rows


def serve(limit: BatchSizeLimit, cost: Callable[[int], float], batches: int = 1000) -> list[int]:
    """Full batches one after the other; each request waited for the call before its own. The sizes that were used."""
    sizes, wait_seconds = [], 0.0
    for _ in range(batches):
        size = limit.size
        sizes.append(size)
        limit.observe(size, engine_seconds=cost(size), wait_seconds=wait_seconds)
        wait_seconds = cost(size)
    return sizes


def test_the_size_settles_below_the_largest_that_keeps_the_objective() -> None:
    limit = BatchSizeLimit(0.020, largest=256)
    sizes = serve(limit, lambda size: 0.001 * size)  # 2 x 10 ms is what a batch of ten costs its requests
    assert sizes[0] == 1
    assert 7 <= min(sizes[100:]) <= max(sizes[100:]) <= 16
    kept = [size for size in sizes[100:] if 2 * 0.001 * size <= 0.020]
    assert len(kept) > 0.98 * len(sizes[100:])


def test_a_fast_model_gets_the_largest_batch_soon() -> None:
    limit = BatchSizeLimit(0.020, largest=64)
    assert serve(limit, lambda size: 0.0001, batches=60)[-1] == 64


def test_a_model_that_slows_down_gets_smaller_batches_and_a_faster_one_larger_again() -> None:
    limit = BatchSizeLimit(0.020, largest=64)
    assert serve(limit, lambda size: 0.0001)[-1] == 64
    assert serve(limit, lambda size: 0.001 * size)[-1] <= 16
    assert serve(limit, lambda size: 0.0001)[-1] == 64


def test_a_queue_that_grows_does_not_make_the_batches_smaller() -> None:
    limit = BatchSizeLimit(0.020, largest=64)
    for _ in range(200):
        limit.observe(limit.size, engine_seconds=0.002, wait_seconds=5.0)
    assert limit.size == 64
    assert limit.predicted_seconds == pytest.approx(0.004)


def test_batches_that_are_not_full_say_nothing_about_the_size() -> None:
    limit = BatchSizeLimit(0.020, largest=64)
    serve(limit, lambda size: 0.0001)
    for _ in range(200):
        limit.observe(4, engine_seconds=1.0, wait_seconds=0.0)
    assert limit.size == 64


def test_only_allowed_sizes_are_used() -> None:
    limit = BatchSizeLimit(0.020, largest=64, allowed_sizes=(4, 8, 64))
    sizes = serve(limit, lambda size: 0.001 * size)
    assert set(sizes) <= {4, 8, 64}
    assert sizes.count(64) <= 10, "a probe in a hundred batches at most"
    assert sizes.count(8) > 900


def test_a_batcher_with_an_objective_takes_and_merges_no_more_than_it_allows() -> None:
    model = RecordingModel()
    now = [0.0]

    def clock() -> float:
        now[0] += 0.004 * (len(model.calls[-1]) if model.calls else 0)
        return now[0]

    batcher = Batcher(model, version=1, options=BatchingOptions(slo_ms=50, max_batch_size=64), clock=clock)
    for _ in range(200):
        taken = [Taken("t", b"1000-0", request(b"a", rows(1))) for _ in range(64)]
        for group in batcher.plan(taken, now_micros=SECOND)[0]:
            batcher.answer(group)
    report = batcher.report()
    assert 4 <= report["batch_size"] <= 7, "2 x 4 ms x 6 is what keeps 50 ms"
    assert report["predicted_p99_seconds"] > 0
    assert max(len(call) for call in model.calls[-20:]) <= 7
